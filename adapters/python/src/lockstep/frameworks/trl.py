"""TRL: a `GRPOTrainer` whose answers come with the distribution they were drawn from, and whose loss is DLC.

Exact here: supports, versions, both terms, centring (the subclass sees hidden states and head), the reduction of each loss
type. Refused: several processes, `use_vllm` (its weight sync runs before every generation), PEFT, a KL term, and the filters
that drop answers by outcome or length.
"""

from __future__ import annotations

import copy
import json
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, TrainerCallback
from trl import GRPOTrainer

from ..batch import BatchReader
from ..behavior import Behavior, SupportLogProbs
from ..calls import OPTIONS
from ..client import Client
from ..errors import MissingScores, NotSupported, PlanMismatch, TemperatureMismatch, UnknownVersion
from ..probe import digest
from ..rules import Dlc, EssReport, Rule, Trigger
from ..snapshots import SnapshotStore
from ..torch.loss import LossOutput, loss
from ..torch.model import check_no_dropout, projected
from ..torch.score import support_logprobs
from ..torch.source import Projection
from ..wire import lockstep_pb2 as pb
from ..wire.lockstep_pb2_grpc import SamplerStub
from ..words import Consumed, Plan, RolloutId, Stamp, WeightVersion

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


@dataclass(frozen=True)
class Answer:
    """One answer as the sampler gave it."""

    behavior: Behavior
    version: WeightVersion
    rollout: RolloutId | None = None

    @property
    def tokens(self) -> Any:
        """Its ids."""
        return self.behavior.tokens


class Sampler(Protocol):
    """Writes answers with weights of its own, until it is given others."""

    version: WeightVersion
    """What it draws with."""
    temperature: float

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """One answer a prompt, in their order."""
        ...

    def load(self, version: WeightVersion, model: Any) -> None:
        """Draws with the model's present weights from here on."""
        ...

    def consumed(self, consumed: Sequence[Consumed]) -> None:
        """What was trained on."""
        ...


class TransformersSampler:
    """`generate` of transformers on a copy of the model: q is what its processors leave, renormalised."""

    def __init__(self, model: Any, *, temperature: float, top_p: float, max_new_tokens: int, eos: Sequence[int], pad: int, top_k: int = 0, min_p: float = 0.0, version: WeightVersion = WeightVersion(1, 0)) -> None:
        self.model, self.version, self.temperature = copy.deepcopy(model).eval(), version, temperature
        self.eos, self.pad = list(eos), pad
        self.config = GenerationConfig(
            do_sample=True, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p or None, max_new_tokens=max_new_tokens, eos_token_id=self.eos,
            pad_token_id=pad, repetition_penalty=1.0, return_dict_in_generate=True, output_scores=True,
        )
        self.trained_on: list[Consumed] = []

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """Answers with exact supports."""
        width, device = max(map(len, prompts)), next(self.model.parameters()).device
        ids = torch.full((len(prompts), width), self.pad, device=device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt), device=device)
            mask[row, width - len(prompt) :] = 1
        out = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=self.config)
        drawn = out.sequences[:, width:].cpu().numpy()
        scores = [score.float().cpu() for score in out.scores]
        return [Answer(self._behavior(drawn[row], [score[row] for score in scores]), self.version) for row in range(len(prompts))]

    def _behavior(self, drawn: Any, scores: Sequence[Tensor]) -> Behavior:
        rows, tokens = [], []
        for token, score in zip(drawn.tolist(), scores):
            log_q = torch.log_softmax(score.double(), -1)
            kept = torch.isfinite(score)
            rows.append((torch.nonzero(kept)[:, 0].tolist(), log_q[kept].tolist()))
            tokens.append(token)
            if token in self.eos:
                break
        return Behavior.of_rows(tokens, rows, self.temperature)

    def load(self, version: WeightVersion, model: Any) -> None:
        """A copy of the weights as they are."""
        self.model.load_state_dict({name: value.detach().clone() for name, value in model.state_dict().items()})
        self.version = version

    def consumed(self, consumed: Sequence[Consumed]) -> None:
        """Kept for whoever asks."""
        self.trained_on += consumed


class EngineSampler:
    """An engine that speaks the contract's `Sampler`, such as `lockstep sampler`: weights travel as files, proven by their digest."""

    def __init__(self, address: str, weights: str, *, temperature: float, top_p: float, max_new_tokens: int, eos: Sequence[int], seed: int = 0) -> None:
        self._stub = SamplerStub(grpc.insecure_channel(address, options=OPTIONS))
        self._profile = self._stub.Describe(pb.Empty(), wait_for_ready=True, timeout=60).profile
        stamp = Stamp.of(self._stub.Version(pb.Empty()))
        if stamp.version is None:
            raise NotSupported(f"the sampler at {address} declares no weight version")
        self.version, self.temperature, self.weights = stamp.version, temperature, Path(weights)
        self._params: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "stop": np.array(list(eos), "<u4").tobytes()}
        self._seed, self._plan = seed, 0
        self.trained_on: list[Consumed] = []

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """Answers with the supports the engine reports."""
        plan, self._plan = self._plan, self._plan + 1
        requests = []
        for index, prompt in enumerate(prompts):
            self._seed += 1
            params = pb.SamplingParams(seed=self._seed, **self._params)
            requests.append(pb.Request(id=pb.RolloutId(plan=plan, index=index), group=index, prompt=np.array(list(prompt), "<u4").tobytes(), params=params))
        sent = iter([pb.SampleRequests(requests=[pb.SampleRequest(request=request)]) for request in requests])
        deltas: dict[int, list[Any]] = {index: [] for index in range(len(prompts))}
        for message in self._stub.Generate(sent):
            for delta in message.deltas:
                deltas[delta.rollout.index].append(delta)
        reader = BatchReader()
        reader.push(pb.BatchChunk(pieces=[pb.BatchPiece(header=pb.BatchHeader(plan=plan, rollouts=len(prompts), profiles=[self._profile]))]))
        for index, request in enumerate(requests):
            own = sorted(deltas[index], key=lambda delta: int(delta.start))
            reader.push(pb.BatchChunk(pieces=[pb.BatchPiece(request=request), *(pb.BatchPiece(delta=delta) for delta in own)]))
        batch = reader.finish().check()
        answers = []
        for index, part in enumerate(batch.split(1)):
            if len(part.versions) != 1:
                raise NotSupported(f"rollout {batch.ids[index]} was drawn at {len(part.versions)} versions: TRL's rows carry one")
            answers.append(Answer(part.behavior, part.versions[0], batch.ids[index]))
        return answers

    def load(self, version: WeightVersion, model: Any) -> None:
        """Writes the weights, and waits until the engine says that it holds them."""
        state = model.state_dict()
        own = {name: value.detach().cpu().float().contiguous() for name, value in model.named_parameters() if name in state}
        path = self.weights / f"{version}.safetensors"
        save_file(own, str(path))
        self._stub.Pause(pb.Empty())
        published = pb.PublishedWeights(version=version.message(), path=str(path.resolve()), digest=digest(own))
        stamp = Stamp.of(self._stub.LoadWeights(published))
        self._stub.Resume(pb.Empty())
        if stamp.version != version:
            raise UnknownVersion(f"the sampler was given version {version} and says it holds {stamp.version}")
        self.version = version

    def consumed(self, consumed: Sequence[Consumed]) -> None:
        """Kept for whoever asks."""
        self.trained_on += consumed


class GatewaySampler:
    """An engine behind `lockstep serve`: each generation batch is a plan, its answers arrive whole and with their supports.

    ``publish`` writes the model's weights where the engine can read them and returns path and digest.
    """

    def __init__(self, client: Client, base_url: str, model_name: str, groups_of: int, publish: Callable[[WeightVersion, Any], tuple[str, bytes]], *, temperature: float, top_p: float, max_new_tokens: int) -> None:
        self.client, self.base_url, self.model_name, self.groups_of, self.publish = client, base_url.rstrip("/"), model_name, groups_of, publish
        self.temperature, self.top_p, self.max_new_tokens = temperature, top_p, max_new_tokens
        stamp = client.describe().stamp
        if stamp is None or stamp.version is None:
            raise NotSupported("the sampler behind the gateway declares no weight version: synchronise it once before training")
        self.version = stamp.version
        self._plans: dict[int, tuple[Plan, list[Consumed]]] = {}

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """Opens a plan, sends its requests, seals it."""
        if len(prompts) % self.groups_of:
            raise PlanMismatch(f"{len(prompts)} prompts are no whole number of groups of {self.groups_of}")
        plan = self.client.open_plan(len(prompts) // self.groups_of, self.groups_of)
        with ThreadPoolExecutor(min(64, len(prompts))) as pool:
            list(pool.map(lambda place: self._ask(prompts[place], plan.headers(place)), range(len(prompts))))
        batch = self.client.seal(plan)
        self._plans[plan.plan] = (plan, [])
        answers = []
        for index, part in enumerate(batch.split(1)):
            if len(part.versions) != 1:
                raise NotSupported(f"rollout {batch.ids[index]} was drawn at {len(part.versions)} versions: TRL's rows carry one")
            answers.append(Answer(part.behavior, part.versions[0], batch.ids[index]))
        return answers

    def _ask(self, prompt: Sequence[int], headers: dict[str, str]) -> None:
        body = {"model": self.model_name, "prompt": list(prompt), "max_tokens": self.max_new_tokens, "temperature": self.temperature, "top_p": self.top_p, "n": 1, "return_token_ids": True}
        request = urllib.request.Request(f"{self.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request) as reply:
            reply.read()

    def load(self, version: WeightVersion, model: Any) -> None:
        """Publishes, and waits until the engine draws with it."""
        path, digest = self.publish(version, model)
        self.version = self.client.synchronise(version, path, digest).version or version

    def consumed(self, consumed: Sequence[Consumed]) -> None:
        """Reports each plan once all of it was trained on."""
        for one in consumed:
            plan, rows = self._plans[one.rollout.plan]
            rows.append(one)
            if len(rows) == len(plan.rollouts):
                del self._plans[one.rollout.plan]
                self.client.report_consumed(plan, sorted(rows, key=lambda row: row.rollout))


def _refusals(args: Any) -> list[str]:
    """What a configuration asks that this trainer cannot do, or that breaks the fixed membership of a batch."""
    wrong = {
        "use_vllm: its weight sync runs before every generation and cannot wait for ESS": args.use_vllm,
        "use_transformers_continuous_batching: it bypasses the rollout function": getattr(args, "use_transformers_continuous_batching", False),
        "mask_truncated_completions: it drops answers by length": args.mask_truncated_completions,
        "off_policy_mask_threshold: it drops answers by outcome": getattr(args, "off_policy_mask_threshold", None) is not None,
        "top_entropy_quantile < 1: it drops tokens": args.top_entropy_quantile < 1.0,
        "beta != 0: a KL term over the full vocabulary does not fit a kept support": args.beta != 0.0,
        f"loss_type {args.loss_type!r}: only {', '.join(LOSS_TYPES)} are reductions of (w, c)": args.loss_type not in LOSS_TYPES,
        "importance_sampling_level 'sequence': DLC weighs tokens": args.importance_sampling_level != "token",
        "an entropy bonus": bool(getattr(args, "entropy_coef", 0.0)) or bool(getattr(args, "use_adaptive_entropy", False)),
        "use_liger_kernel: it computes another loss": getattr(args, "use_liger_kernel", False) or getattr(args, "use_liger_loss", False),
    }
    return [what for what, asked in wrong.items() if asked]


class DlcGRPOTrainer(GRPOTrainer):  # type: ignore[misc,unused-ignore]
    """`GRPOTrainer` on answers whose q is known. Rewards, advantages and optimiser are TRL's; generation and loss are not."""

    def __init__(self, *args: Any, sampler: Sampler, rule: Rule | None = None, trigger: Trigger | None = None, **kwargs: Any) -> None:
        config = kwargs.get("args") or next((a for a in args if hasattr(a, "num_generations")), None)
        if config is None:
            raise NotSupported("DlcGRPOTrainer needs args=GRPOConfig(..)")
        if refused := _refusals(config):
            raise NotSupported("; ".join(refused))
        if abs(config.temperature - sampler.temperature) > 1e-9:
            raise TemperatureMismatch(f"GRPOConfig divides by temperature {config.temperature}, but the sampler draws at {sampler.temperature}")
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
            raise NotSupported(f"{self.accelerator.num_processes} processes: hidden states are taken from the unwrapped model, so gradients would not be reduced")
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
        log_s = self._log_s(unwrapped, where, behavior, [answer.version for answer in answers]) if self.rule.needs_scores else None
        k = self._coefficients(inputs, of, lengths)
        output = loss(source, behavior, inputs["advantages"].float()[of], self.rule, temperature=self.temperature, log_s=log_s, sequence=of, coefficients=k)
        if unwrapped.training:
            self._record(output, rows, answers)
        return output.loss

    def _check_rows(self, rows: Sequence[int], answers: Sequence[Answer], inputs: Any) -> None:
        """TRL trains on the ids that were sampled, all of them."""
        for place, (row, answer) in enumerate(zip(rows, answers)):
            kept = int(inputs["completion_mask"][place].sum())
            found = inputs["completion_ids"][place, :kept].cpu().numpy()
            if kept != len(answer.tokens) or not np.array_equal(found, answer.tokens.astype(np.int64)):
                raise PlanMismatch(f"row {row}: TRL would train on {kept} ids, the sampler drew {len(answer.tokens)}, and they are not the same")

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
            return torch.full((len(of),), 1.0 / (len(lengths) * self.max_completion_length * accumulation), device=of.device)
        per_row = torch.tensor([1.0 / max(n, 1) for n in lengths], device=of.device)
        return per_row[of] / (len(lengths) * accumulation)

    def _record(self, output: LossOutput, rows: Sequence[int], answers: Sequence[Answer]) -> None:
        self._seen.append((output, [answer.version for answer in answers]))
        self.sampler.consumed([
            Consumed(answer.rollout or RolloutId(0, row), len(answer.tokens), len(answer.tokens)) for row, answer in zip(rows, answers)
        ])
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
            fresh = torch.tensor([version == self.sampler.version for version in versions], device=output.rows.sequence.device)[output.rows.sequence]
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
