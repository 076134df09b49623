"""The trainer's weights of every version that something alive was drawn with: p_s needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from .batch import Batch
from .behavior import SupportLogProbs
from .errors import NoSnapshots, NotSupported, UnknownVersion, WrongDtype
from .torch.model import Project, project_causal, source
from .torch.score import support_logprobs
from .torch.source import ByVersion, Projection
from .words import WeightVersion


class SnapshotStore:
    """CPU copies of a model's parameters and buffers by version, pinned where the model is on a GPU; reference counted.

    Keep a version before its first update, hold it for everything drawn with it, and release it afterwards:

        store.keep(version)            # after each optimiser step
        store.retain(live)             # drops what nothing needs
        store.log_s(batch)             # each token under the weights that drew it
    """

    def __init__(self, model: nn.Module, *, project: Project = project_causal, rollouts: int = 8) -> None:
        self.model, self.project, self.rollouts = model, project, rollouts
        self._kept: dict[WeightVersion, dict[str, Tensor]] = {}
        self._held: dict[WeightVersion, int] = {}
        self._lock = threading.RLock()

    @property
    def live(self) -> tuple[WeightVersion, ...]:
        """Versions that can be scored at, oldest first."""
        with self._lock:
            return tuple(sorted(self._kept))

    def keep(self, version: WeightVersion) -> None:
        """Copies the weights as they are. A version is never kept twice with other weights."""
        if not isinstance(version, WeightVersion):
            raise WrongDtype(f"version {version!r}", type(version).__name__, "a WeightVersion")
        with self._lock:
            if version in self._kept:
                raise NotSupported(f"version {version} is kept already: a version is never reused")
            self._kept[version] = {name: _copy(value) for name, value in _tensors(self.model)}

    def hold(self, version: WeightVersion) -> None:
        """Something drawn at this version is alive."""
        with self._lock:
            self.parameters(version)
            self._held[version] = self._held.get(version, 0) + 1

    def release(self, version: WeightVersion) -> None:
        """It is not any more; the last release drops the copy."""
        with self._lock:
            if self._held.get(version, 0) == 0:
                raise UnknownVersion(f"version {version} is not held")
            self._held[version] -= 1
            if self._held[version] == 0:
                del self._held[version], self._kept[version]

    def retain(self, live: Iterable[WeightVersion]) -> None:
        """Drops every copy but these and those that are held."""
        with self._lock:
            stay = set(live) | set(self._held)
            self._kept = {version: tensors for version, tensors in self._kept.items() if version in stay}

    def parameters(self, version: WeightVersion) -> dict[str, Tensor]:
        """The tensors of a version, on the CPU.

        Raises:
            NoSnapshots: nothing was ever kept.
            UnknownVersion: not this one.
        """
        with self._lock:
            if not self._kept:
                raise NoSnapshots(
                    f"no weights were kept, so p_s at version {version} cannot be computed: keep() each version before its first update"
                )
            if version not in self._kept:
                raise UnknownVersion(
                    f"version {version} is not among the {len(self._kept)} that are kept ({', '.join(map(str, self.live))})"
                )
            return self._kept[version]

    def load(self, version: WeightVersion) -> dict[str, Tensor]:
        """The tensors of a version on the model's device."""
        device = next(self.model.parameters()).device
        return {name: value.to(device, non_blocking=True) for name, value in self.parameters(version).items()}

    @torch.no_grad()
    def score(self, batch: Batch, version: WeightVersion) -> SupportLogProbs:
        """log p of every support under the weights of one version, whoever drew it."""
        parameters = self.load(version)
        parts = []
        with _evaluating(self.model):
            for part in batch.split(self.rollouts):
                parts.append(
                    support_logprobs(
                        source(self.model, part, parameters, self.project), part.behavior, batch.temperature
                    )
                )
        rest = None
        if batch.behavior.rest is not None:
            rest = torch.cat(
                [torch.full_like(p.log_p_sampled, -torch.inf) if p.log_rest is None else p.log_rest for p in parts]
            )
        return SupportLogProbs(torch.cat([p.log_p for p in parts]), torch.cat([p.log_p_sampled for p in parts]), rest)

    def log_s(self, batch: Batch) -> SupportLogProbs:
        """log p_s: each token's support under the weights that drew it."""
        versions = batch.versions
        first = self.score(batch, versions[0])
        for version in versions[1:]:
            other = self.score(batch, version)
            rows = torch.from_numpy(batch.rows_at(version)).to(first.log_p_sampled.device)
            entries = rows[torch.from_numpy(batch.behavior.row).to(rows.device)]
            first.log_p[entries] = other.log_p[entries]
            first.log_p_sampled[rows] = other.log_p_sampled[rows]
            if first.log_rest is not None:
                first.log_rest[rows] = other.log_rest[rows]
        return first

    @torch.no_grad()
    def source(self, batch: Batch) -> Projection | ByVersion:
        """Hidden states and head at the versions that drew the batch: what a tail on p_s needs. Each version takes a forward of
        the batch."""
        with _evaluating(self.model):
            sources = tuple(source(self.model, batch, self.load(v), self.project) for v in batch.versions)
        if len(sources) == 1:
            return sources[0]
        which = np.zeros(len(batch.tokens), np.int64)
        for index, version in enumerate(batch.versions):
            which[batch.rows_at(version)] = index
        return ByVersion(sources, torch.from_numpy(which).to(sources[0].hidden.device))


class _evaluating:
    """Dropout off while p_s is computed."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.before = model, model.training

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.before)


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _copy(value: Tensor) -> Tensor:
    copy = value.detach().to("cpu", copy=True)
    return copy.pin_memory() if value.is_cuda else copy
