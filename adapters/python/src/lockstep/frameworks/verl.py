"""verl: agent-loop outputs, p_s in the place of the recomputed old policy, a policy loss, a held-back weight sync.

Exact: ids, q and version of every token; the token weight ``clip(p / p_s)`` at top-p 1. Not expressible: the centring, and p over
a kept support, since a loss plug-in sees neither logits nor supports; `lockstep.torch.centred_logprobs` in the place of the engine's
log-prob op gives both. Refused: what `check_config` lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..behavior import SupportLogProbs
from ..errors import LengthMismatch
from ..rules import LagClip
from ..words import Consumed
from .tokens import HeldSync, columns_of, lag_clipped, lookup, refuse, rule_of

LOSS_MODE = "lockstep_dlc"
LOG_PROB_OP = "lockstep.torch.centred_logprobs"

__all__ = [
    "LOSS_MODE",
    "HeldSync",
    "agent_loop_fields",
    "check_config",
    "consumed",
    "policy_loss",
    "register",
    "write_p_s",
]


def check_config(config: Any, *, log_prob_op_replaced: bool = False) -> None:
    """Refuses filters that choose by outcome or length, and settings under which the terms are not what they are named.

    Raises:
        NotSupported
    """
    rollout = lambda name, default=None: lookup(config, f"actor_rollout_ref.rollout.{name}", default)  # noqa: E731
    truncated = (rollout("top_p", 1.0) or 1.0) < 1.0 or (rollout("top_k", -1) or -1) > 0
    refuse(
        "verl",
        {
            "algorithm.filter_groups.enable: it drops groups by their rewards": bool(
                lookup(config, "algorithm.filter_groups.enable", False)
            ),
            "actor_rollout_ref.rollout.over_sample_rate > 0: it aborts the slowest answers": (
                rollout("over_sample_rate", 0) or 0
            )
            > 0,
            "algorithm.rollout_correction.rollout_rs: it rejects by the ratio of whole sequences": bool(
                lookup(config, "algorithm.rollout_correction.rollout_rs")
            ),
            "algorithm.rollout_correction.bypass_mode: it puts q in the place of p_s": bool(
                lookup(config, "algorithm.rollout_correction.bypass_mode", False)
            ),
            f"top_p or top_k with verl's own log-prob op, which is over the whole vocabulary: replace it by {LOG_PROB_OP}": truncated
            and not log_prob_op_replaced,
            f"actor_rollout_ref.actor.policy_loss.loss_mode is not {LOSS_MODE!r}": lookup(
                config, "actor_rollout_ref.actor.policy_loss.loss_mode"
            )
            != LOSS_MODE,
            "calculate_log_probs is off: q does not arrive": not rollout("calculate_log_probs", False),
        },
    )


def agent_loop_fields(batch: Batch, index: int) -> dict[str, Any]:
    """Fields of an `AgentLoopOutput` for one rollout of a sealed plan; versions and supports ride in ``extra_fields``."""
    columns = columns_of(batch, index)
    part = batch.take([index])
    return {
        "prompt_ids": columns["prompt_ids"],
        "response_ids": columns["response_ids"],
        "response_mask": [1] * len(columns["response_ids"]),
        "response_logprobs": columns["log_q"],
        "num_turns": 2,
        "metrics": {},
        "extra_fields": {
            "global_steps": max(columns["versions"]),
            "min_global_steps": min(columns["versions"]),
            "max_global_steps": max(columns["versions"]),
            "lockstep_rollout": str(batch.ids[index]),
            "lockstep_support_ids": part.behavior.ids.tolist(),
            "lockstep_support_offsets": part.behavior.offsets.tolist(),
            "lockstep_support_log_q": part.behavior.log_q.tolist(),
        },
    }


def write_p_s(data: Any, batch: Batch, log_s: SupportLogProbs) -> Any:
    """``old_log_probs := log p_s`` and ``rollout_log_probs := log q`` in a verl batch, by rollout in its order.

    Call it where `compute_rollout_correction_and_add_to_batch` runs; ``data`` has ``responses`` and ``response_mask``.

    Raises:
        LengthMismatch: rows that are not those of the plan.
    """
    responses, mask = data["responses"], data["response_mask"].bool()
    if len(responses) != len(batch):
        raise LengthMismatch("rows of responses", len(responses), len(batch))
    old = torch.zeros(responses.shape, dtype=torch.float32)
    drawn = torch.zeros_like(old)
    log_p = torch.as_tensor(log_s.check(batch.behavior).log_p_sampled).float().cpu()
    log_q = torch.from_numpy(batch.behavior.log_q_drawn).float()
    for row in range(len(batch)):
        begin, end = int(batch.starts[row]), int(batch.starts[row + 1])
        kept = int(mask[row].sum())
        if kept != end - begin or not np.array_equal(
            responses[row][mask[row]].cpu().numpy(), batch.tokens[begin:end].astype(np.int64)
        ):
            raise LengthMismatch(
                f"the tokens of row {row}, which are those of rollout {batch.ids[row]},", kept, end - begin
            )
        old[row][mask[row].cpu()], drawn[row][mask[row].cpu()] = log_p[begin:end], log_q[begin:end]
    data["old_log_probs"], data["rollout_log_probs"] = old.to(responses.device), drawn.to(responses.device)
    return data


def consumed(batch: Batch, response_mask: Any) -> list[Consumed]:
    """What an update on these rows has consumed, for `Client.report_consumed`."""
    kept = torch.as_tensor(response_mask).bool().sum(1).tolist()
    return [Consumed(rollout, int(n), int(k)) for rollout, n, k in zip(batch.ids, batch.lengths, kept)]


def policy_loss(
    old_log_prob: Any,
    log_prob: Any,
    advantages: Any,
    response_mask: Any,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """The token part of DLC as a verl policy loss: ``old_log_prob`` holds log p_s, ``rollout_is_weights`` are not wanted."""
    refuse(
        "verl",
        {
            "rollout_is_weights: the numeric term is centred, not weighed; unset algorithm.rollout_correction.rollout_is": rollout_is_weights
            is not None
        },
    )
    from verl.trainer.ppo.core_algos import agg_loss

    options = lookup(config, "policy_loss", {}) or {}
    rule = rule_of(lookup(options, "lag_clip_low", 0.0), lookup(options, "lag_clip_high", LagClip.high))
    per_token, metrics = lag_clipped(log_prob, old_log_prob, None, advantages, response_mask, rule)
    info = getattr(config, "global_batch_info", None) or {}
    return agg_loss(loss_mat=per_token, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **info), metrics


def register() -> None:
    """Makes ``loss_mode=lockstep_dlc`` known; import this module through ``actor_rollout_ref.model.external_lib``."""
    from verl.trainer.ppo.core_algos import register_policy_loss

    register_policy_loss(LOSS_MODE)(policy_loss)
