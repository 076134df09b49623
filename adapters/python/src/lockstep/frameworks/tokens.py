"""What every framework without logits shares: DLC's token weight, the refusals, and a weight sync that waits.

The weight of the drawn token is exact where p_s and q are; the centring is not expressible from log-probs of drawn tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..errors import InvalidRule, LengthMismatch, NotANumber, NotSupported
from ..rules import Dlc, LagClip
from ..rules.rows import Rows, Terms, finite


def lag_clipped(
    log_theta: Tensor, log_s: Tensor, log_q: Tensor | None, advantages: Tensor, mask: Tensor, rule: Dlc | None = None
) -> tuple[Tensor, dict[str, float]]:
    """``-A sg(w) log p`` of each token, 0 where the mask is, and raw statistics of both terms.

    All tensors have one shape. Tokens outside the mask are not looked at.

    Raises:
        NotSupported: a rule that centres.
        LengthMismatch, NotANumber
    """
    rule = Dlc(centring="off", tail="collapsed") if rule is None else rule
    if rule.centring != "off":
        raise NotSupported(
            "centring needs the logits of every kept id, and this hook sees the log-prob of the drawn token alone: use Dlc(centring='off'), or replace the log-prob op by lockstep.torch.centred_logprobs"
        )
    columns = {"log_s": log_s, "advantages": advantages, "mask": mask, **({} if log_q is None else {"log_q": log_q})}
    for name, column in columns.items():
        if column.shape != log_theta.shape:
            raise LengthMismatch(name, tuple(column.shape), tuple(log_theta.shape))
    if rule.numeric_cap is not None and log_q is None:
        raise InvalidRule(f"numeric cap {rule.numeric_cap} needs log q, which this hook does not carry")
    at = mask.bool()
    if not bool(at.any()):
        raise LengthMismatch("tokens within the mask", 0, "at least 1")
    theta, s = log_theta[at].float(), log_s[at].detach().float()
    q = s if log_q is None else log_q[at].detach().float()
    none = torch.zeros(0, dtype=theta.dtype, device=theta.device)
    rows = Rows(
        torch.zeros(0, dtype=torch.long, device=theta.device),
        Terms(none, q),
        Terms(none, theta.detach()),
        Terms(none, s),
        finite(advantages[at].float(), "advantage"),
        torch.zeros(len(theta), dtype=torch.long, device=theta.device),
    )
    correction = rule.weigh(rows)
    lag = rows.log_ratio("lag")
    out = torch.zeros_like(log_theta, dtype=torch.float32)
    out[at] = -rows.advantages * correction.w.detach() * theta
    metrics = {
        "lockstep/lag/mean": float(lag.mean()),
        "lockstep/lag/max_abs": float(lag.abs().max()),
        "lockstep/clipped_share": float(correction.info["clipped"].float().mean()),
    }
    if log_q is not None:
        numeric = rows.log_ratio("numeric")
        metrics.update(
            {"lockstep/numeric/mean": float(numeric.mean()), "lockstep/numeric/max_abs": float(numeric.abs().max())}
        )
    return out, metrics


def rule_of(low: float = 0.0, high: float = LagClip.high, numeric_cap: float | None = None) -> Dlc:
    """The token part of DLC, from a configuration."""
    return Dlc(LagClip(low, high), centring="off", numeric_cap=numeric_cap, tail="collapsed")


def refuse(framework: str, wrong: Mapping[str, bool]) -> None:
    """Raises with everything that is asked and cannot be.

    Raises:
        NotSupported
    """
    asked = [what for what, is_asked in wrong.items() if is_asked]
    if asked:
        raise NotSupported(f"{framework}: " + "; ".join(asked))


def lookup(config: Any, path: str, default: Any = None) -> Any:
    """``a.b.c`` of nested mappings or objects."""
    for name in path.split("."):
        if isinstance(config, Mapping):
            config = config.get(name, None)
        else:
            config = getattr(config, name, None)
        if config is None:
            return default
    return config


class HeldSync:
    """In the place of a trainer's own weight update: passes a call on only after Lockstep asked for it.

    trainer.checkpoint_manager.update_weights = HeldSync(trainer.checkpoint_manager.update_weights)
    ...
    if client.report_step(..).resynchronise:
        held.release()
    """

    def __init__(self, update: Callable[..., Any], *, first: bool = True) -> None:
        self.update, self.wanted = update, first
        self.held_back, self.passed = 0, 0

    def release(self) -> None:
        """The next update goes through."""
        self.wanted = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.wanted:
            self.held_back += 1
            return None
        self.wanted = False
        self.passed += 1
        return self.update(*args, **kwargs)


def columns_of(batch: Batch, index: int) -> dict[str, list[Any]]:
    """Prompt, answer, log q and version of one rollout, as the lists frameworks carry."""
    part = batch.take([index])
    prompt, answer = part.rollout(0)
    log_q = part.behavior.log_q_drawn
    if not np.isfinite(log_q).all():
        raise NotANumber(f"rollout {batch.ids[index]} has a log q that is not finite")
    return {
        "prompt_ids": prompt.tolist(),
        "response_ids": answer.tolist(),
        "log_q": log_q.tolist(),
        "versions": part.steps.tolist(),
    }
