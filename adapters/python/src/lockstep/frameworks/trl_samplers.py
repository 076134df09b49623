"""Samplers a TRL trainer can ask: transformers' generate, an engine that speaks the contract, an engine behind `lockstep serve`.

Each draws with weights of its own until it is given others, and says of every token what it was drawn from.
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
from transformers import GenerationConfig

from ..batch import BatchReader
from ..behavior import Behavior
from ..calls import OPTIONS
from ..client import Client
from ..errors import NotSupported, PlanMismatch, UnknownVersion
from ..probe import digest
from ..wire import lockstep_pb2 as pb
from ..wire.lockstep_pb2_grpc import SamplerStub
from ..words import Consumed, Plan, RolloutId, Stamp, WeightVersion


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

    def __init__(
        self,
        model: Any,
        *,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
        eos: Sequence[int],
        pad: int,
        top_k: int = 0,
        min_p: float = 0.0,
        version: WeightVersion = WeightVersion(1, 0),
    ) -> None:
        self.model, self.version, self.temperature = copy.deepcopy(model).eval(), version, temperature
        self.eos, self.pad = list(eos), pad
        self.config = GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p or None,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.eos,
            pad_token_id=pad,
            repetition_penalty=1.0,
            return_dict_in_generate=True,
            output_scores=True,
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
        return [
            Answer(self._behavior(drawn[row], [score[row] for score in scores]), self.version)
            for row in range(len(prompts))
        ]

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

    def __init__(
        self,
        address: str,
        weights: str,
        *,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
        eos: Sequence[int],
        seed: int = 0,
    ) -> None:
        self._stub = SamplerStub(grpc.insecure_channel(address, options=OPTIONS))
        self._profile = self._stub.Describe(pb.Empty(), wait_for_ready=True, timeout=60).profile
        stamp = Stamp.of(self._stub.Version(pb.Empty()))
        if stamp.version is None:
            raise NotSupported(f"the sampler at {address} declares no weight version")
        self.version, self.temperature, self.weights = stamp.version, temperature, Path(weights)
        self._params: dict[str, Any] = {
            "temperature": temperature,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "stop": np.array(list(eos), "<u4").tobytes(),
        }
        self._seed, self._plan = seed, 0
        self.trained_on: list[Consumed] = []

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """Answers with the supports the engine reports."""
        plan, self._plan = self._plan, self._plan + 1
        requests = []
        for index, prompt in enumerate(prompts):
            self._seed += 1
            params = pb.SamplingParams(seed=self._seed, **self._params)
            requests.append(
                pb.Request(
                    id=pb.RolloutId(plan=plan, index=index),
                    group=index,
                    prompt=np.array(list(prompt), "<u4").tobytes(),
                    params=params,
                )
            )
        sent = iter([pb.SampleRequests(requests=[pb.SampleRequest(request=request)]) for request in requests])
        deltas: dict[int, list[Any]] = {index: [] for index in range(len(prompts))}
        for message in self._stub.Generate(sent):
            for delta in message.deltas:
                deltas[delta.rollout.index].append(delta)
        reader = BatchReader()
        reader.push(
            pb.BatchChunk(
                pieces=[
                    pb.BatchPiece(header=pb.BatchHeader(plan=plan, rollouts=len(prompts), profiles=[self._profile]))
                ]
            )
        )
        for index, request in enumerate(requests):
            own = sorted(deltas[index], key=lambda delta: int(delta.start))
            reader.push(
                pb.BatchChunk(pieces=[pb.BatchPiece(request=request), *(pb.BatchPiece(delta=delta) for delta in own)])
            )
        batch = reader.finish().check()
        answers = []
        for index, part in enumerate(batch.split(1)):
            if len(part.versions) != 1:
                raise NotSupported(
                    f"rollout {batch.ids[index]} was drawn at {len(part.versions)} versions: TRL's rows carry one"
                )
            answers.append(Answer(part.behavior, part.versions[0], batch.ids[index]))
        return answers

    def load(self, version: WeightVersion, model: Any) -> None:
        """Writes the weights, and waits until the engine says that it holds them."""
        state = model.state_dict()
        own = {
            name: value.detach().cpu().float().contiguous() for name, value in model.named_parameters() if name in state
        }
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

    def __init__(
        self,
        client: Client,
        base_url: str,
        model_name: str,
        groups_of: int,
        publish: Callable[[WeightVersion, Any], tuple[str, bytes]],
        *,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
    ) -> None:
        self.client, self.base_url, self.model_name, self.groups_of, self.publish = (
            client,
            base_url.rstrip("/"),
            model_name,
            groups_of,
            publish,
        )
        self.temperature, self.top_p, self.max_new_tokens = temperature, top_p, max_new_tokens
        stamp = client.describe().stamp
        if stamp is None or stamp.version is None:
            raise NotSupported(
                "the sampler behind the gateway declares no weight version: synchronise it once before training"
            )
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
                raise NotSupported(
                    f"rollout {batch.ids[index]} was drawn at {len(part.versions)} versions: TRL's rows carry one"
                )
            answers.append(Answer(part.behavior, part.versions[0], batch.ids[index]))
        return answers

    def _ask(self, prompt: Sequence[int], headers: dict[str, str]) -> None:
        body = {
            "model": self.model_name,
            "prompt": list(prompt),
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "n": 1,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{self.base_url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
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
