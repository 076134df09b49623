"""AReaL: trajectories of a workflow, and a loss whose proximal policy is p_s.

    AREAL_LLM_SERVER_ADDRS=HOST:PORT        Lockstep in the place of the engine

Exact: ids, q and version of every token; the token weight ``clip(p / p_s)`` with ``prox_logp`` scored at the sampler's version. Not
expressible: the centring. Refused: a proximal policy that AReaL would write over p_s, and what `check_config` lists. A workflow never
returns None: that rejects an answer.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch import Batch
from ..behavior import SupportLogProbs
from ..errors import MissingScores
from ..rules import LagClip
from .tokens import columns_of, lag_clipped, lookup, refuse, rule_of


def check_config(config: Any) -> None:
    """Refuses what drops answers, and a q that is not DLC's.

    Raises:
        NotSupported
    """
    refuse(
        "areal",
        {
            "dynamic_bs: it takes what is there when enough is": bool(lookup(config, "dynamic_bs", False)),
            "actor.rejection_sampling: it drops tokens or answers by their ratio": lookup(
                config, "actor.rejection_sampling"
            )
            is not None,
            "actor.m2_threshold: it drops tokens by their ratio": lookup(config, "actor.m2_threshold") is not None,
            "actor.overlong_reward_penalty: rewards look at length": bool(
                lookup(config, "actor.overlong_reward_penalty", False)
            ),
            "actor.use_decoupled_loss is off: it writes q over prox_logp": not lookup(
                config, "actor.use_decoupled_loss", False
            ),
            "actor.prox_logp_method is 'recompute': it writes log p at the present weights over prox_logp; set 'loglinear', which skips that forward": lookup(
                config, "actor.prox_logp_method", "recompute"
            )
            == "recompute",
        },
    )


def trajectory(batch: Batch, index: int, log_s: SupportLogProbs) -> dict[str, Any]:
    """What `RolloutWorkflow.arun_episode` returns for one rollout of a sealed plan, with log p_s as ``prox_logp``."""
    columns = columns_of(batch, index)
    begin, end = int(batch.starts[index]), int(batch.starts[index + 1])
    prompt, answer = columns["prompt_ids"], columns["response_ids"]
    if batch.rewards is None:
        raise MissingScores(f"plan {batch.plan}: rollout {batch.ids[index]} has no reward yet")
    prox = torch.as_tensor(log_s.check(batch.behavior).log_p_sampled[begin:end]).float().tolist()
    row = lambda before, after, kind: torch.tensor([before] * len(prompt) + after, dtype=kind)[None]  # noqa: E731
    return {
        "input_ids": torch.tensor(prompt + answer)[None],
        "loss_mask": row(0, [1] * len(answer), torch.int32),
        "logprobs": row(0.0, columns["log_q"], torch.float32),
        "versions": row(-1, columns["versions"], torch.int32),
        # Where the actor's own forward would have put it: at the position that predicts each token.
        "prox_logp": torch.roll(row(0.0, prox, torch.float32), -1, -1),
        "attention_mask": torch.ones(1, len(prompt) + len(answer), dtype=torch.bool),
        "rewards": torch.tensor([float(batch.rewards[index])]),
    }


def grpo_loss_fn(
    logprobs: Any,
    entropy: Any,
    input_data: dict[str, Any],
    *_: Any,
    lag_clip_low: float = 0.0,
    lag_clip_high: float = LagClip.high,
    **__: Any,
) -> Any:
    """In the place of AReaL's function of this name (`PPOActor` binds it): packed tokens, ``prox_logp`` holds log p_s.

    The mean over the tokens of the mask, counted before anything else.

    Raises:
        MissingScores: no ``prox_logp``.
    """
    log_s = input_data.get("prox_logp")
    if log_s is None:
        raise MissingScores(f"areal: prox_logp of {len(logprobs)} tokens is missing; log p_s travels there")
    mask = input_data["loss_mask"].bool()
    per_token, _metrics = lag_clipped(
        logprobs, log_s, input_data["logprobs"], input_data["advantages"], mask, rule_of(lag_clip_low, lag_clip_high)
    )
    return per_token.sum() / mask.sum()
