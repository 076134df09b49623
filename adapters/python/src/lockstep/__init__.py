"""Train on what was sampled: batches, corrections and adapters for the trainers of RL post-training.

`lockstep.torch` holds the losses (needs torch), `lockstep.reference` their definition in numpy, `lockstep.aio` the asyncio
client, `lockstep.frameworks` the adapters.
"""

from .batch import Batch
from .behavior import Behavior, Rest, SupportLogProbs
from .client import Client, connect
from .words import Consumed, Decision, Description, Plan, RolloutId, SamplingParams, Segment, Stamp, WeightVersion

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Behavior",
    "Client",
    "Consumed",
    "Decision",
    "Description",
    "Plan",
    "Rest",
    "RolloutId",
    "SamplingParams",
    "Segment",
    "Stamp",
    "SupportLogProbs",
    "WeightVersion",
    "__version__",
    "connect",
]
