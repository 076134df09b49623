"""What can be wrong, by name. Every message carries the numbers."""

from __future__ import annotations


class LockstepError(Exception):
    """The root of all errors of this package."""


class LengthMismatch(LockstepError, ValueError):
    """Columns, masks or tensors that do not have the length their partner has."""

    def __init__(self, name: str, found: object, expected: object) -> None:
        super().__init__(f"{name} has {found} values, not {expected}")
        self.name, self.found, self.expected = name, found, expected


class WrongDtype(LockstepError, TypeError):
    """A column or tensor of another type than it must have."""

    def __init__(self, name: str, found: object, expected: object) -> None:
        super().__init__(f"{name} has dtype {found}, not {expected}")
        self.name, self.found, self.expected = name, found, expected


class NotANumber(LockstepError, ValueError):
    """A value that must be finite and is not."""


class NotALogProb(LockstepError, ValueError):
    """A log-prob that is not a finite number <= 0."""


class SupportError(LockstepError, ValueError):
    """A support that contradicts itself."""


class EmptySupport(SupportError):
    """A token drawn from nothing."""


class SampledOutside(SupportError):
    """A token that is not in the support it was drawn from."""


class DuplicateId(SupportError):
    """An id that stands twice in one support."""


class SupportMass(SupportError):
    """Probabilities that do not add up to 1 within 1e-4."""


class OutsideVocabulary(SupportError):
    """An id beyond the vocabulary."""


class MissingMetric(LockstepError, ValueError):
    """A step's report without a metric that it needs."""


class MissingScores(LockstepError, ValueError):
    """A correction that needs log p_s and was given none."""


class MissingSupport(LockstepError, ValueError):
    """A correction that needs the distribution a token was drawn from and was given none."""


class TemperatureMismatch(LockstepError, ValueError):
    """A trainer that divides its logits by another temperature than the sampler did."""


class InvalidTemperature(LockstepError, ValueError):
    """A temperature that is not a finite number above 0: greedy answers have no ratio."""


class InvalidRule(LockstepError, ValueError):
    """Parameters with which a correction is not defined."""


class UnknownVersion(LockstepError, KeyError):
    """Weights that nobody kept."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NoSnapshots(LockstepError):
    """DLC without a snapshot store: p_s cannot be computed."""


class WireError(LockstepError):
    """A message that cannot be read."""


class PlanMismatch(LockstepError):
    """What was consumed is not what was planned."""


class NotSupported(LockstepError):
    """What a framework's hook cannot do."""


class Disconnected(LockstepError, ConnectionError):
    """The middleware did not answer."""


class Refused(LockstepError):
    """The middleware answered with an error."""
