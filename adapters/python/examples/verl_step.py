"""What verl's step does with a sealed plan, without verl: rows, p_s, loss, consumption.

python examples/verl_step.py
"""

import sys
import types
from types import SimpleNamespace

import numpy as np
import torch
from sealed import sealed_plan

from lockstep.behavior import SupportLogProbs
from lockstep.frameworks import verl

core = types.ModuleType("verl.trainer.ppo.core_algos")
core.agg_loss = lambda loss_mat, loss_mask, loss_agg_mode, **_: (loss_mat * loss_mask).sum() / loss_mask.sum()
sys.modules.setdefault("verl.trainer.ppo.core_algos", core)

plan = sealed_plan()
rows = [verl.agent_loop_fields(plan, i) for i in range(len(plan))]
width = max(len(row["response_ids"]) for row in rows)
data = {
    name: torch.tensor([row[key] + [0] * (width - len(row[key])) for row in rows])
    for name, key in [("responses", "response_ids"), ("response_mask", "response_mask")]
}
log_s = SupportLogProbs(np.zeros(len(plan.behavior.ids)), plan.behavior.log_q_drawn - 0.01, None)
verl.write_p_s(data, plan, log_s)
log_prob = (data["old_log_probs"] + 0.05).requires_grad_()
advantages = torch.zeros_like(log_prob)
for row, a in enumerate(plan.advantages()[plan.starts[:-1]]):
    advantages[row] = a
loss, metrics = verl.policy_loss(
    data["old_log_probs"],
    log_prob,
    advantages,
    data["response_mask"],
    "token-mean",
    SimpleNamespace(policy_loss={}),
    None,
)
loss.backward()
print(
    f"loss {loss.item():.4f}, {metrics}; consumed {[c.masked_in for c in verl.consumed(plan, data['response_mask'])]}"
)
