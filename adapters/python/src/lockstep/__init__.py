"""Train on what was sampled: batches, corrections and adapters for the trainers of RL post-training."""

from .behavior import Behavior, Rest, SupportLogProbs

__version__ = "0.1.0"
__all__ = ["Behavior", "Rest", "SupportLogProbs", "__version__"]
