"""AReaL's trajectories and loss on a sealed plan, without AReaL.

python examples/areal_step.py
"""

import numpy as np
import torch
from sealed import sealed_plan

from lockstep.behavior import SupportLogProbs
from lockstep.frameworks import areal

plan = sealed_plan()
log_s = SupportLogProbs(np.zeros(len(plan.behavior.ids)), plan.behavior.log_q_drawn - 0.01, None)
rows = [areal.trajectory(plan, i, log_s) for i in range(len(plan))]
# What AReaL's actor does before the loss: everything at the position that predicts the token, packed.
shifted = {name: torch.cat([torch.roll(row[name], -1, -1)[0] for row in rows]) for name in ("logprobs", "loss_mask")}
data = {
    **shifted,
    "prox_logp": torch.cat([row["prox_logp"][0] for row in rows]),
    "advantages": torch.ones(len(shifted["loss_mask"])),
}
log_p = (data["prox_logp"] + 0.05).requires_grad_()
loss = areal.grpo_loss_fn(log_p, torch.zeros_like(log_p), data, 0.2, None, None)
loss.backward()
print(
    f"loss {loss.item():.4f} over {int(data['loss_mask'].sum())} tokens, gradient {log_p.grad[data['loss_mask'].bool()][0]:.5f} each"
)
