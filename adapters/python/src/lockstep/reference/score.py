"""log p over the recorded supports, from logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..behavior import Behavior, SupportLogProbs
from ..errors import InvalidTemperature, LengthMismatch, NotANumber, OutsideVocabulary, TemperatureMismatch


def log_softmax(values: Any) -> Any:
    """``z - LSE(z)`` over the last axis."""
    top = values.max(-1, keepdims=True)
    return values - top - np.log(np.exp(values - top).sum(-1, keepdims=True))


def check_temperature(behavior: Behavior, temperature: float) -> None:
    """Both sides must divide by the same number.

    Raises:
        InvalidTemperature, TemperatureMismatch
    """
    if not (np.isfinite(temperature) and temperature > 0):
        raise InvalidTemperature(
            f"temperature {temperature} is not a finite number above 0: a greedy answer has no ratio"
        )
    recorded = behavior.temperature
    if recorded is not None and abs(recorded - temperature) > 1e-6 * abs(recorded):
        raise TemperatureMismatch(
            f"the trainer divides by temperature {temperature}, but the sampler drew at {recorded}"
        )


def check_logits(logits_shape: tuple[int, ...], behavior: Behavior, vocabulary: int) -> None:
    """One row of logits a token, wide enough for every id."""
    if logits_shape[0] != len(behavior):
        raise LengthMismatch("logits", logits_shape[0], len(behavior))
    for name, ids in (("token", behavior.tokens), ("support id", behavior.ids)):
        if len(ids) and int(ids.max()) >= vocabulary:
            raise OutsideVocabulary(f"{name} {int(ids.max())} is outside the trainer's vocabulary of {vocabulary}")


def domain_log_probs(z: Any, behavior: Behavior) -> Any:
    """log p over each row's domain, ``[T, V]``; ``-inf`` off it."""
    inside = np.repeat(behavior.whole_vocabulary[:, None], z.shape[1], 1)
    inside[behavior.row, behavior.ids.astype(np.int64)] = True
    inside[np.flatnonzero(behavior.single), behavior.tokens[behavior.single].astype(np.int64)] = True
    return log_softmax(np.where(inside, z, -np.inf))


def support_logprobs(logits: Any, behavior: Behavior, temperature: float) -> SupportLogProbs:
    """log p of every entry, drawn token and rest, from logits ``[T, V]``.

    Raises:
        LengthMismatch, OutsideVocabulary, TemperatureMismatch, NotANumber
    """
    check_temperature(behavior, temperature)
    logits = np.asarray(logits, np.float64)
    check_logits(logits.shape, behavior, logits.shape[1])
    if np.isnan(logits).any():
        at = int(np.flatnonzero(np.isnan(logits).any(1))[0])
        raise NotANumber(f"the logits of position {at} of {len(behavior)} hold NaN")
    return gather(domain_log_probs(logits / temperature, behavior), behavior)


def gather(log_p: Any, behavior: Behavior) -> SupportLogProbs:
    """From rows over the vocabulary to the entries of the supports."""
    ids, row = behavior.ids.astype(np.int64), behavior.row
    rest = None
    if behavior.rest is not None:
        off = log_p.copy()
        off[row[behavior.known], ids[behavior.known]] = -np.inf
        with np.errstate(divide="ignore"):
            rest = np.log(np.exp(off).sum(1))
        rest = np.where(np.isneginf(behavior.rest.log_rest), -np.inf, rest)
    drawn = log_p[np.arange(len(behavior)), behavior.tokens.astype(np.int64)]
    return SupportLogProbs(log_p[row, ids], drawn, rest)
