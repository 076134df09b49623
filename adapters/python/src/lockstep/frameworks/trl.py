"""TRL: a `GRPOTrainer` whose answers come with the distribution they were drawn from, and whose loss is DLC.

Exact here: supports, versions, both terms, centring (the subclass sees hidden states and head), the reduction of each loss
type. Refused: several processes, `use_vllm` (its weight sync runs before every generation), PEFT, a KL term, and the filters
that drop answers by outcome or length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from ..behavior import Behavior, SupportLogProbs
from ..errors import MissingScores, NotSupported, PlanMismatch, TemperatureMismatch
from ..rules import Dlc, EssReport, Rule, Trigger
from ..snapshots import SnapshotStore
from ..torch.loss import LossOutput, loss
from ..torch.model import check_no_dropout, projected
from ..torch.score import support_logprobs
from ..torch.source import Projection
from ..words import Consumed, RolloutId, WeightVersion
from .trl_samplers import Answer, EngineSampler, GatewaySampler, Sampler, TransformersSampler

__all__ = ["Answer", "DlcGRPOTrainer", "EngineSampler", "GatewaySampler", "Sampler", "TransformersSampler"]

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


def _refusals(args: Any) -> list[str]:
    """What a configuration asks that this trainer cannot do, or that breaks the fixed membership of a batch."""
    wrong = {
        "use_vllm: its weight sync runs before every generation and cannot wait for ESS": args.use_vllm,
        "use_transformers_continuous_batching: it bypasses the rollout function": getattr(
            args, "use_transformers_continuous_batching", False
        ),
        "mask_truncated_completions: it drops answers by length": args.mask_truncated_completions,
        "off_policy_mask_threshold: it drops answers by outcome": getattr(args, "off_policy_mask_threshold", None)
        is not None,
        "top_entropy_quantile < 1: it drops tokens": args.top_entropy_quantile < 1.0,
        "beta != 0: a KL term over the full vocabulary does not fit a kept support": args.beta != 0.0,
        f"loss_type {args.loss_type!r}: only {', '.join(LOSS_TYPES)} are reductions of (w, c)": args.loss_type
        not in LOSS_TYPES,
        "importance_sampling_level 'sequence': DLC weighs tokens": args.importance_sampling_level != "token",
        "an entropy bonus": bool(getattr(args, "entropy_coef", 0.0))
        or bool(getattr(args, "use_adaptive_entropy", False)),
        "use_liger_kernel: it computes another loss": getattr(args, "use_liger_kernel", False)
        or getattr(args, "use_liger_loss", False),
    }
    return [what for what, asked in wrong.items() if asked]


class DlcGRPOTrainer(GRPOTrainer):  # type: ignore[misc,unused-ignore]
    """`GRPOTrainer` on answers whose q is known. Rewards, advantages and optimiser are TRL's; generation and loss are not."""

    def __init__(
        self, *args: Any, sampler: Sampler, rule: Rule | None = None, trigger: Trigger | None = None, **kwargs: Any
    ) -> None:
        config = kwargs.get("args") or next((a for a in args if hasattr(a, "num_generations")), None)
        if config is None:
            raise NotSupported("DlcGRPOTrainer needs args=GRPOConfig(..)")
        if refused := _refusals(config):
            raise NotSupported("; ".join(refused))
        if abs(config.temperature - sampler.temperature) > 1e-9:
            raise TemperatureMismatch(
                f"GRPOConfig divides by temperature {config.temperature}, but the sampler draws at {sampler.temperature}"
            )
        if "rollout_func" in kwargs:
            raise NotSupported("rollout_func: the sampler takes its place")
        self.sampler, self.rule, self.trigger = sampler, rule or Dlc(), trigger or Trigger()
        self.resynchronised: list[int] = []
        self._answers: dict[int, Answer] = {}
        self._next_row = 0
        self._last_rows: list[int] = []
        self._seen: list[tuple[LossOutput, list[WeightVersion]]] = []
        super().__init__(*args, rollout_func=self._rollout, **kwargs)
        if self.accelerator.num_processes > 1:
            raise NotSupported(
                f"{self.accelerator.num_processes} processes: hidden states are taken from the unwrapped model, so gradients would not be reduced"
            )
        model = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "peft_config"):
            raise NotSupported("PEFT: snapshots hold whole models")
        check_no_dropout(model)
        self.store = SnapshotStore(model)
        self.store.keep(sampler.version)
        self.add_callback(_AfterStep(self))

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`."""
        prompt_ids, _, _ = self._tokenize_prompts(prompts)
        answers = self.sampler.generate(prompt_ids)
        if len(answers) != len(prompt_ids):
            raise PlanMismatch(f"{len(answers)} answers to {len(prompt_ids)} prompts")
        self._last_rows = list(range(self._next_row, self._next_row + len(answers)))
        self._next_row += len(answers)
        self._answers.update(zip(self._last_rows, answers))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [answer.tokens.tolist() for answer in answers],
            "logprobs": [answer.behavior.log_q_drawn.tolist() for answer in answers],
        }

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        # Rides through TRL's shuffle and split as any tensor of the batch does.
        output["lockstep_row"] = torch.tensor(self._last_rows, device=output["completion_ids"].device)
        return output

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        rows = inputs["lockstep_row"].tolist()
        answers = [self._answers[row] for row in rows]
        completion_mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            raise NotSupported("tool_mask: answers of several turns are not read back from TRL's rows")
        self._check_rows(rows, answers, inputs)
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention_mask = torch.cat([inputs["prompt_mask"], completion_mask], 1)
        behavior = Behavior.concatenate([answer.behavior for answer in answers])
        lengths = [len(answer.behavior) for answer in answers]
        of = torch.repeat_interleave(torch.arange(len(answers)), torch.tensor(lengths)).to(input_ids.device)
        first = inputs["prompt_ids"].shape[1] - 1
        places = torch.cat([torch.arange(n) for n in lengths]).to(input_ids.device) + first
        unwrapped = self.accelerator.unwrap_model(model)
        where = (input_ids, attention_mask, of, places)
        with self.accelerator.autocast():
            source = self._project(unwrapped, where)
        log_s = (
            self._log_s(unwrapped, where, behavior, [answer.version for answer in answers])
            if self.rule.needs_scores
            else None
        )
        k = self._coefficients(inputs, of, lengths)
        output = loss(
            source,
            behavior,
            inputs["advantages"].float()[of],
            self.rule,
            temperature=self.temperature,
            log_s=log_s,
            sequence=of,
            coefficients=k,
        )
        if unwrapped.training:
            self._record(output, rows, answers)
        return output.loss

    def _check_rows(self, rows: Sequence[int], answers: Sequence[Answer], inputs: Any) -> None:
        """TRL trains on the ids that were sampled, all of them."""
        for place, (row, answer) in enumerate(zip(rows, answers)):
            kept = int(inputs["completion_mask"][place].sum())
            found = inputs["completion_ids"][place, :kept].cpu().numpy()
            if kept != len(answer.tokens) or not np.array_equal(found, answer.tokens.astype(np.int64)):
                raise PlanMismatch(
                    f"row {row}: TRL would train on {kept} ids, the sampler drew {len(answer.tokens)}, and they are not the same"
                )

    @staticmethod
    def _project(model: Any, where: Any, parameters: Any = None) -> Projection:
        input_ids, attention_mask, of, places = where
        hidden, weight, bias = projected(model, input_ids, attention_mask, parameters)
        return Projection(hidden[of, places], weight, bias)

    @torch.no_grad()
    def _log_s(self, model: Any, where: Any, behavior: Behavior, versions: Sequence[WeightVersion]) -> SupportLogProbs:
        """p_s in the same forward as p_theta, so that equal weights give a lag of exactly 0."""
        out: SupportLogProbs | None = None
        row = torch.from_numpy(behavior.row).to(where[2].device)
        for version in sorted(set(versions)):
            with self.accelerator.autocast():
                source = self._project(model, where, self.store.load(version))
            scored = support_logprobs(source, behavior, self.temperature)
            mine = torch.tensor([v == version for v in versions], device=where[2].device)[where[2]]
            if out is None:
                out = scored
                continue
            out.log_p[mine[row]], out.log_p_sampled[mine] = scored.log_p[mine[row]], scored.log_p_sampled[mine]
            if out.log_rest is not None:
                out.log_rest[mine] = scored.log_rest[mine]
        if out is None:
            raise MissingScores("a batch without rows")
        return out

    def _coefficients(self, inputs: Any, of: Tensor, lengths: Sequence[int]) -> Tensor:
        """TRL's reduction of each loss type, one factor a token."""
        accumulation = self.current_gradient_accumulation_steps if self.model.training else 1.0
        if self.loss_type == "dapo":
            normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
            if self.model.training:
                normalizer = normalizer * accumulation / self.args.steps_per_generation
            return (1.0 / normalizer).float().to(of.device).expand(len(of))
        if self.loss_type == "bnpo":
            return torch.full((len(of),), 1.0 / (len(of) * accumulation), device=of.device)
        if self.loss_type == "dr_grpo":
            return torch.full(
                (len(of),), 1.0 / (len(lengths) * self.max_completion_length * accumulation), device=of.device
            )
        per_row = torch.tensor([1.0 / max(n, 1) for n in lengths], device=of.device)
        return per_row[of] / (len(lengths) * accumulation)

    def _record(self, output: LossOutput, rows: Sequence[int], answers: Sequence[Answer]) -> None:
        self._seen.append((output, [answer.version for answer in answers]))
        self.sampler.consumed(
            [
                Consumed(answer.rollout or RolloutId(0, row), len(answer.tokens), len(answer.tokens))
                for row, answer in zip(rows, answers)
            ]
        )
        for name, value in output.metrics(self.trigger.horizon).items():
            self._metrics["train"][f"lockstep/{name}"].append(value)
        if self.rule.needs_scores:
            numeric = output.rows.log_ratio("numeric").exp()
            for name, value in (("min", numeric.min()), ("mean", numeric.mean()), ("max", numeric.max())):
                self._metrics["train"][f"sampling/importance_sampling_ratio/{name}"].append(float(value))

    def finish_step(self, step: int) -> None:
        """After an update: ESS of the answers drawn at the sampler's present weights decides whether it gets new ones."""
        lags, sequence, base = [], [], 0
        for output, versions in self._seen:
            if not self.rule.needs_scores:
                break
            fresh = torch.tensor(
                [version == self.sampler.version for version in versions], device=output.rows.sequence.device
            )[output.rows.sequence]
            lags.append(output.rows.log_ratio("lag")[fresh])
            sequence.append(output.rows.sequence[fresh] + base)
            base += len(versions)
        self._seen = []
        if not lags or not sum(map(len, lags)):
            return
        _, dense = torch.unique(torch.cat(sequence), return_inverse=True)
        report = EssReport.of(torch.cat(lags).double(), dense, self.trigger.horizon)
        for level in ("token", "sequence", "horizon"):
            self._metrics["train"][f"lockstep/step_ess/{level}"].append(getattr(report, level))
        if self.trigger.decide(report):
            self.resynchronise(step)

    def resynchronise(self, step: int) -> None:
        """The sampler gets the weights behind ``step`` updates; older copies stay while buffered answers need them."""
        version = WeightVersion(self.sampler.version.epoch, step)
        if version not in self.store.live:
            self.store.keep(version)
        self.sampler.load(version, self.accelerator.unwrap_model(self.model))
        self.resynchronised.append(step)
        self.store.retain([version, *(answer.version for answer in self._answers.values())])

    def forget(self) -> None:
        """Answers of generations that are over."""
        oldest = self._next_row - 2 * max(len(self._last_rows), 1)
        self._answers = {row: answer for row, answer in self._answers.items() if row >= oldest}


class _AfterStep(TrainerCallback):  # type: ignore[misc,unused-ignore]
    def __init__(self, trainer: DlcGRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimiser step is over."""
        self.trainer.finish_step(state.global_step)
        self.trainer.forget()
