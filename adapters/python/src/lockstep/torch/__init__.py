"""The corrections on torch: one autograd function over rows, which never keeps ``[T, V]``.

``import lockstep.torch`` needs torch; the rest of the package does not.
"""

from ..rules import *  # noqa: F403
from ..rules import __all__ as _rules
from .centred_logprobs import centred_logprobs
from .loss import LossOutput, combined, dlc_loss, ess_by_version, loss
from .model import batch_loss, project_causal, projected, source
from .score import decompose, support_logprobs
from .shards import Shard, process_shard
from .source import Logits, Projection

__all__ = [
    *_rules,
    "Logits",
    "LossOutput",
    "Projection",
    "Shard",
    "batch_loss",
    "centred_logprobs",
    "combined",
    "decompose",
    "dlc_loss",
    "ess_by_version",
    "loss",
    "process_shard",
    "project_causal",
    "projected",
    "source",
    "support_logprobs",
]
