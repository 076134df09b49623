"""The numpy reference in f64: the definition the torch functions are held against. Knows nothing of torch."""

from ..rules import *  # noqa: F403
from ..rules import __all__ as _rules
from .loss import Loss, decompose, loss, rows_of
from .score import log_softmax, support_logprobs
from .truncate import Truncated, truncate

__all__ = [*_rules, "Loss", "Truncated", "decompose", "log_softmax", "loss", "rows_of", "support_logprobs", "truncate"]
