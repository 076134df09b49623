"""The loss a trainer calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..behavior import Behavior, SupportLogProbs
from ..errors import InvalidRule, LengthMismatch, MissingScores, WrongDtype
from ..reference.score import check_temperature
from ..rules import Dlc, EssReport, head_mass, shape, term
from ..rules import coefficients as reduction_coefficients
from ..rules.aggregate import Reduction
from ..rules.ess import DEFAULT_HORIZON
from ..rules.rows import Correction, Ratio, Rows, Rule, finite
from ..words import WeightVersion
from .function import LossFunction, Run, active_positions, in_order, joined
from .parts import CHUNK_BYTES
from .score import check_source, whole
from .shards import Shard
from .source import compute_dtype, source_of


@dataclass(frozen=True)
class LossOutput:
    """The loss and what was seen on the way; everything but ``loss`` is detached."""

    loss: Tensor
    """Differentiable."""
    per_token: Tensor
    """With their coefficients, of the active positions in order."""
    rows: Rows
    """The log-probs the rule saw, before any clip."""
    corrections: tuple[Correction, ...]

    def metrics(self, horizon: int = DEFAULT_HORIZON) -> dict[str, float]:
        """Raw terms, lag and numeric apart and both together, the ESS of the lag, and the shape of its tail."""
        out = self._means()
        if self.rows.scores is not None:
            ess = self.ess(horizon)
            out.update({"ess/token": ess.token, "ess/sequence": ess.sequence, "ess/horizon": ess.horizon})
            out.update(_shape([self], horizon))
        return out

    def _means(self) -> dict[str, float]:
        """The metrics that those of a batch are made of, part by part."""
        out: dict[str, float] = {"loss": float(self.loss.detach()), "head_mass": head_mass(self.rows)}
        ratios: tuple[Ratio, ...] = ("full",) if self.rows.scores is None else ("full", "lag", "numeric")
        for ratio in ratios:
            out.update({f"{ratio}/{name}": value for name, value in term(self.rows, ratio).items()})
        clipped = [c.info["clipped"] for c in self.corrections if "clipped" in c.info]
        if clipped:
            out["clipped_share"] = float(torch.cat(clipped).double().mean())
        out["support_size"] = len(self.rows.row) / max(len(self.rows.advantages), 1)
        return out

    def ess(self, horizon: int = DEFAULT_HORIZON) -> EssReport:
        """ESS of the raw lag ratios."""
        return EssReport.of(self.rows.log_ratio("lag"), self.rows.sequence, horizon)


def loss(
    source: Any,
    behavior: Behavior,
    advantages: Any,
    rule: Rule,
    *,
    temperature: float,
    log_s: SupportLogProbs | None = None,
    sampler: Any = None,
    sequence: Any = None,
    versions: Any = None,
    mask: Any = None,
    reduction: Reduction = "token_mean",
    length: int | None = None,
    totals: tuple[int, int] | None = None,
    coefficients: Any = None,
    shard: Shard | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> LossOutput:
    """``sum_t k_t (-A_t) [ sg(w_t) log p_a - sum_v sg(c_v) log p_v ]`` over T positions.

    Args:
        source: `Logits`, a tensor of logits ``[T, V]``, or a `Projection`; row t predicts token t.
        behavior: q of the T tokens.
        advantages: ``[T]``, detached.
        rule: any of `lockstep.rules`.
        temperature: what the trainer divides its logits by; must be the sampler's.
        log_s: log p_s on the supports, or
        sampler: a source at the sampler's weights (no gradient); a tail on p_s over the vocabulary needs it.
        sequence: which sequence each token belongs to, ``[T]``, from 0.
        mask: positions that count, ``[T]`` bool; the others are not looked at.
        reduction: how positions are summed; ``totals`` are tokens and sequences of the global batch.
        coefficients: ``k``, ``[T]``, in place of a reduction.
        shard: this rank's part of the vocabulary.
        chunk_bytes: memory for a chunk of logits.

    Raises:
        LengthMismatch, WrongDtype, TemperatureMismatch, MissingScores, NotANumber, OutsideVocabulary
    """
    check_temperature(behavior.check(), temperature)
    source = source_of(source)
    sampler = None if sampler is None else source_of(sampler)
    shard = shard or whole(source)
    for one in (source, sampler):
        if one is not None:
            check_source(one, behavior, shard)
    if rule.needs_scores and log_s is None and sampler is None:
        raise MissingScores(
            f"{type(rule).__name__} needs log p_s of {len(behavior)} positions and was given none: give log_s or sampler"
        )
    if log_s is not None:
        log_s.check(behavior)
    device, dtype = source.tensors[0].device, compute_dtype(source.tensors[0])
    count = len(behavior)
    columns = _columns(
        count, device, advantages=advantages, sequence=sequence, versions=versions, mask=mask, coefficients=coefficients
    )
    a = columns["advantages"]
    if not a.is_floating_point():
        raise WrongDtype("advantages", a.dtype, "a floating type")
    active = None if columns["mask"] is None else columns["mask"].bool()
    of = (
        columns["sequence"].long()
        if columns["sequence"] is not None
        else torch.zeros(count, dtype=torch.long, device=device)
    )
    k = columns["coefficients"]
    positions = active_positions(behavior, None if active is None else active.cpu().numpy())
    if len(positions) == 0:
        raise LengthMismatch("active positions", 0, "at least 1")
    if k is None:
        at = torch.from_numpy(positions).to(device)
        k = torch.zeros(count, dtype=dtype, device=device)
        k[at] = reduction_coefficients(reduction, of[at], length=length, totals=totals).to(dtype)
    finite(a if active is None else a[active], "advantage")
    finite(k if active is None else k[active], "coefficient")
    run = Run(
        source,
        sampler,
        behavior,
        log_s,
        rule,
        a.detach().to(dtype),
        k.detach().to(dtype),
        of,
        columns["versions"],
        temperature,
        shard,
        positions,
        max(1, chunk_bytes // (4 * shard.size)),
    )
    total = LossFunction.apply(run, *source.tensors)
    return _output(run, total)


def dlc_loss(source: Any, behavior: Behavior, advantages: Any, rule: Dlc | None = None, **options: Any) -> LossOutput:
    """`loss` with DLC, form A unless told otherwise."""
    return loss(source, behavior, advantages, Dlc() if rule is None else rule, **options)


def _columns(count: int, device: torch.device, **columns: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, column in columns.items():
        if column is not None:
            column = torch.as_tensor(column).to(device)
            if column.shape != (count,):
                raise LengthMismatch(name, tuple(column.shape), (count,))
        out[name] = column
    if out.get("advantages") is None:
        raise InvalidRule("a loss needs advantages")
    return out


def _output(run: Run, total: Tensor) -> LossOutput:
    order = torch.cat(run.order)
    rows, (rank, _) = in_order(joined(run.rows), order)
    per_token = torch.empty_like(torch.cat(run.values))
    per_token[rank] = torch.cat(run.values)
    return LossOutput(total, per_token, rows, tuple(run.corrections))


def combined(outputs: Sequence[LossOutput], horizon: int = DEFAULT_HORIZON) -> dict[str, float]:
    """Metrics of a batch from those of its micro-batches: means by token, the largest of the largest, the shape of all ratios.

    Raises:
        LengthMismatch: no micro-batch.
        MissingScores: some with log p_s, some without.
    """
    if not outputs:
        raise LengthMismatch("micro-batches", 0, "at least 1")
    scored = sum(output.rows.scores is not None for output in outputs)
    if scored not in (0, len(outputs)):
        raise MissingScores(f"{scored} of {len(outputs)} micro-batches know log p_s: metrics of a batch need it of all or none")
    tokens, parts = [len(output.per_token) for output in outputs], [output._means() for output in outputs]
    metrics: dict[str, float] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if name.endswith("max_abs"):
            metrics[name] = max(values)
        elif name == "loss":
            metrics[name] = sum(values)
        else:
            metrics[name] = sum(value * n for value, n in zip(values, tokens)) / sum(tokens)
    if scored:
        metrics.update(_shape(outputs, horizon))
    return metrics


def _shape(outputs: Sequence[LossOutput], horizon: int) -> dict[str, float]:
    """The shape of the ratios of some micro-batches, each with whole answers."""

    def logs(ratio: Ratio) -> Any:
        return torch.cat([output.rows.log_ratio(ratio) for output in outputs]).double().cpu().numpy()

    sequences, first = [], 0
    for output in outputs:
        sequences.append(output.rows.sequence.cpu().numpy() + first)
        first += output.rows.sequences
    found = shape(logs("lag"), np.concatenate(sequences), logs("numeric"), horizon)
    return {f"shape/{name}": value for name, value in found.items()}


def ess_by_version(
    batch: Batch, outputs: Sequence[LossOutput], horizon: int = DEFAULT_HORIZON
) -> dict[WeightVersion, EssReport]:
    """ESS of the raw lag by the version that drew the answers; answers of several versions are in none."""
    lags = torch.cat([output.rows.log_ratio("lag") for output in outputs]).double().cpu().numpy()
    if len(lags) != len(batch.tokens):
        raise LengthMismatch("lags of the micro-batches", len(lags), len(batch.tokens))
    drawn_at: dict[int, set[WeightVersion | None]] = {}
    for segment in batch.segments:
        drawn_at.setdefault(segment.rollout, set()).add(segment.stamp.version)
    out: dict[WeightVersion, EssReport] = {}
    for version in batch.versions:
        rows = np.flatnonzero(
            np.isin(batch.sequence, [rollout for rollout, versions in drawn_at.items() if versions == {version}])
        )
        if len(rows):
            out[version] = EssReport.of(lags[rows], batch.sequence[rows], horizon)
    return out
