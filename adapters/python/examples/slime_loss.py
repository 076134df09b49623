"""slime's custom loss on packed logits, without slime.

python examples/slime_loss.py
"""

from types import SimpleNamespace

import torch
from sealed import sealed_plan

import lockstep.torch as lt
from lockstep.frameworks import slime

torch.manual_seed(0)
plan, vocabulary = sealed_plan(), 32
behaviors = [plan.take([i]).behavior for i in range(len(plan))]
totals = [3 + int(n) for n in plan.lengths]
logits = torch.randn(1, sum(totals), vocabulary, requires_grad=True)
log_s = [lt.support_logprobs(torch.randn(len(b), vocabulary), b, 1.0) for b in behaviors]
batch = {
    "total_lengths": totals,
    "response_lengths": plan.lengths.tolist(),
    "loss_masks": [torch.ones(n) for n in plan.lengths.tolist()],
    "advantages": [torch.full((int(n),), float(a)) for n, a in zip(plan.lengths, plan.advantages()[plan.starts[:-1]])],
    "lockstep_behavior": behaviors,
    "lockstep_log_s": log_s,
}
args = SimpleNamespace(rollout_temperature=1.0, padded_vocab_size=vocabulary)
loss, metrics = slime.loss(args, batch, logits, torch.mean)
loss.backward()
print(
    f"loss {loss.item():.4f}, gradient norm {logits.grad.norm():.4f}, lag max {metrics['lockstep/lag/max_abs']:.3f}, ess {metrics['lockstep/ess/horizon']:.3f}"
)
