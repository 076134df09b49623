"""The corrections on torch: one autograd function over rows, which never keeps ``[T, V]``.

``import lockstep.torch`` needs torch; the rest of the package does not.
"""

from ..rules import *  # noqa: F403
from ..rules import __all__ as _rules
from .loss import LossOutput, dlc_loss, loss
from .score import decompose, support_logprobs
from .shards import Shard, process_shard
from .source import Logits, Projection

__all__ = [*_rules, "Logits", "LossOutput", "Projection", "Shard", "decompose", "dlc_loss", "loss", "process_shard", "support_logprobs"]
