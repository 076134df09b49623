"""prime-rl: a custom loss, and the client section that points its orchestrator at Lockstep.

Exact: the token weight ``clip(p / p_s)``, with p_s in ``ref_logprobs``. Not expressible: the centring (`LossInputs` has no logits).
Refused: a loss without p_s, and the filters `check_config` lists.

    [trainer.loss]
    type = "custom"
    import_path = "lockstep.frameworks.prime_rl.loss"
"""

from __future__ import annotations

from typing import Any

from ..errors import MissingScores
from ..rules import LagClip
from .tokens import lag_clipped, lookup, refuse, rule_of


def check_config(config: Any) -> None:
    """Refuses what drops answers by outcome or age.

    Raises:
        NotSupported
    """
    refuse(
        "prime-rl",
        {
            "orchestrator filter_zero_advantages: it drops groups by their rewards": bool(
                lookup(config, "orchestrator.filter_zero_advantages", True)
            ),
            "orchestrator max_off_policy_steps: it drops groups by age": lookup(
                config, "orchestrator.max_off_policy_steps"
            )
            is not None,
            "trainer.loss.type is not 'custom'": lookup(config, "trainer.loss.type") != "custom",
        },
    )


def client_section(address: str, *, admin: str) -> str:
    """The orchestrator's client section: generation and weight updates through Lockstep."""
    return f'[orchestrator.model.client]\nbase_url = "http://{address}/v1"\nadmin_base_url = ["http://{admin}"]\n'


def loss(
    inputs: Any, *, lag_clip_low: float = 0.0, lag_clip_high: float = LagClip.high, numeric_cap: float | None = None
) -> Any:
    """One sequence; the sum over its tokens, as prime-rl expects.

    Raises:
        MissingScores: ``ref_logprobs`` does not hold log p_s.
    """
    if inputs.ref_logprobs is None:
        raise MissingScores(
            f"prime-rl: ref_logprobs of {len(inputs.trainer_logprobs)} tokens is None; log p_s travels there"
        )
    rule = rule_of(lag_clip_low, lag_clip_high, numeric_cap)
    per_token, metrics = lag_clipped(
        inputs.trainer_logprobs,
        inputs.ref_logprobs,
        inputs.inference_logprobs,
        inputs.advantages,
        inputs.loss_mask,
        rule,
    )
    if getattr(inputs, "loss_weights", None) is not None:
        per_token = per_token * inputs.loss_weights
    return outputs(per_token.sum(), {name: per_token.new_tensor(value) for name, value in metrics.items()})


def outputs(total: Any, metrics: dict[str, Any]) -> Any:
    """prime-rl's `LossOutputs`, found where the installed version keeps it."""
    from prime_rl.trainer.rl.loss import LossOutputs

    return LossOutputs(loss=total, metrics=metrics)
