"""slime and vime: a custom loss that sees logits, so that DLC with its centring is exact there; and the TIS hook.

    --sglang-router-ip HOST --sglang-router-port PORT            (vime: --vllm-router-ip, --vllm-router-port)
    --loss-type custom_loss --custom-loss-function-path lockstep.frameworks.slime.loss

Each batch carries ``lockstep_behavior`` and, for DLC, ``lockstep_log_s`` (lists, one a sample). Refused: batches without them, and
the options `check_args` lists.
"""

from __future__ import annotations

from typing import Any

import torch

from ..behavior import Behavior, SupportLogProbs
from ..errors import LengthMismatch, MissingScores, MissingSupport
from ..rules import Dlc
from ..torch import loss as loss_of
from ..torch.shards import Shard, process_shard
from .tokens import refuse


def check_args(args: Any) -> None:
    """Refuses what takes the first answers or drops some.

    Raises:
        NotSupported
    """
    given = lambda name: getattr(args, name, None)  # noqa: E731
    over = given("over_sampling_batch_size")
    refuse(
        "slime",
        {
            "--over-sampling-batch-size above --rollout-batch-size: it takes the groups that finish first": over
            is not None
            and over > given("rollout_batch_size"),
            "--dynamic-sampling-filter-path: it drops groups by their rewards": bool(
                given("dynamic_sampling_filter_path")
            ),
            "--buffer-filter-path: it drops answers by age": bool(given("buffer_filter_path")),
            "--mask-offpolicy-in-partial-rollout: it drops tokens by version": bool(
                given("mask_offpolicy_in_partial_rollout")
            ),
        },
    )


def loss(
    args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any, *, rule: Any = None, shard: Shard | None = None
) -> tuple[Any, dict[str, Any]]:
    """slime's ``custom_loss``: packed logits ``[1, T, V / tp]`` over prompts and answers.

    ``sum_of_sample_mean`` reduces a packed ``[sum R]`` tensor as slime does; its weights are read by handing it ones, token by token.

    Raises:
        MissingSupport, MissingScores, LengthMismatch
    """
    rule = Dlc(tail="collapsed") if rule is None else rule
    if "lockstep_behavior" not in batch:
        raise MissingSupport(f"slime: a batch of {len(batch['response_lengths'])} samples carries no lockstep_behavior")
    behaviors: list[Behavior] = batch["lockstep_behavior"]
    scores: list[SupportLogProbs] | None = batch.get("lockstep_log_s")
    if rule.needs_scores and scores is None:
        raise MissingScores(
            f"slime: a batch of {len(behaviors)} samples carries no lockstep_log_s, which {type(rule).__name__} needs"
        )
    rows, base = [], 0
    for index, (total, response, behavior) in enumerate(
        zip(batch["total_lengths"], batch["response_lengths"], behaviors)
    ):
        if len(behavior) != response:
            raise LengthMismatch(f"the behaviour of sample {index}", len(behavior), response)
        rows.append(torch.arange(base + total - response - 1, base + total - 1, device=logits.device))
        base += total
    behavior = Behavior.concatenate(behaviors)
    log_s = None if scores is None else joined(scores)
    flat = lambda name: torch.cat([torch.as_tensor(x) for x in batch[name]]).to(logits.device)  # noqa: E731
    mask, advantages = flat("loss_masks").bool(), flat("advantages").float()
    k = weights_of(sum_of_sample_mean, len(behavior), logits.device)
    if shard is None and logits.shape[-1] < args.padded_vocab_size:
        shard = process_shard(logits.shape[-1], tensor_parallel_group())
    sequence = torch.repeat_interleave(torch.arange(len(behaviors)), torch.tensor([len(b) for b in behaviors]))
    output = loss_of(
        logits[0][torch.cat(rows)],
        behavior,
        advantages,
        rule,
        temperature=args.rollout_temperature,
        log_s=log_s,
        sequence=sequence,
        mask=mask,
        coefficients=k,
        shard=shard,
    )
    return output.loss, {f"lockstep/{name}": torch.tensor(value) for name, value in output.metrics().items()}


def weights_of(reduce: Any, count: int, device: Any) -> Any:
    """The factor a linear reduction gives each token."""
    ones = torch.ones(count, device=device, requires_grad=True)
    reduce(ones).backward()
    return ones.grad


def joined(scores: list[SupportLogProbs]) -> SupportLogProbs:
    """Scores of samples one after the other."""
    cat = lambda values: torch.cat([torch.as_tensor(v) for v in values])  # noqa: E731
    rest = (
        None
        if all(s.log_rest is None for s in scores)
        else cat(
            [torch.full((len(s.log_p_sampled),), -torch.inf) if s.log_rest is None else s.log_rest for s in scores]
        )
    )
    return SupportLogProbs(cat([s.log_p for s in scores]), cat([s.log_p_sampled for s in scores]), rest)


def tensor_parallel_group() -> Any:
    """Megatron's, where slime runs."""
    from megatron.core import parallel_state

    return parallel_state.get_tensor_model_parallel_group()


def tis(
    args: Any, *, pg_loss: Any, train_log_probs: Any, rollout_log_probs: Any, loss_masks: Any, **_: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """slime's TIS hook with ``--keep-old-actor``: the exact numeric weight ``min(p_s / q, C)`` on each token, no mask edited."""
    log_s, log_q = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    if log_s.shape != log_q.shape or pg_loss.shape != log_q.shape:
        raise LengthMismatch("train_log_probs", tuple(log_s.shape), tuple(pg_loss.shape))
    ratio = torch.exp((log_s - log_q).detach())
    weight = ratio.clip(max=getattr(args, "tis_clip", 2.0))
    return pg_loss * weight, loss_masks, {"lockstep/numeric_ratio": ratio, "lockstep/numeric_weight": weight}
