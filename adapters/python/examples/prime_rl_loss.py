"""prime-rl's custom loss on one sequence, without prime-rl.

python examples/prime_rl_loss.py
"""

import sys
import types
from types import SimpleNamespace

import torch

module = types.ModuleType("prime_rl.trainer.rl.loss")
module.LossOutputs = SimpleNamespace
sys.modules.setdefault("prime_rl.trainer.rl.loss", module)

from lockstep.frameworks import prime_rl

log_p = torch.tensor([-0.2, -1.1, -0.7], requires_grad=True)
inputs = SimpleNamespace(
    trainer_logprobs=log_p,
    ref_logprobs=torch.tensor([-0.3, -1.0, -0.7]),
    inference_logprobs=torch.tensor([-0.31, -1.02, -0.69]),
    advantages=torch.ones(3),
    loss_mask=torch.tensor([True, True, False]),
    loss_weights=None,
)
out = prime_rl.loss(inputs, lag_clip_high=5.0)
out.loss.backward()
print(
    f"loss {out.loss.item():.4f}, gradient {log_p.grad.tolist()}, { ({k: round(float(v), 4) for k, v in out.metrics.items()}) }"
)
