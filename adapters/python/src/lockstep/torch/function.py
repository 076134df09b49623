"""The one autograd function: loss and gradient of any ``(w, c)``, part by part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..behavior import Behavior, SupportLogProbs
from ..errors import MissingScores
from ..rules.array import segment_sum
from ..rules.rows import Correction, Rows, Rule, TailTerm, Terms
from .parts import Part, Scored, parts_of, score
from .shards import Shard
from .source import BLOCK, Projection


@dataclass
class Run:
    """One batch through one rule."""

    source: Any
    sampler: Any
    behavior: Behavior
    log_s: SupportLogProbs | None
    rule: Rule
    advantages: Tensor
    coefficients: Tensor
    sequence: Tensor
    versions: Tensor | None
    temperature: float
    shard: Shard
    positions: Any
    """Active positions, numpy."""
    chunk_rows: int
    values: list[Tensor] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    order: list[Tensor] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return self.advantages.dtype

    def again(self) -> Run:
        """The same batch, with nothing recorded."""
        return replace(self, values=[], rows=[], corrections=[], order=[])

    def parts(self) -> list[Part]:
        """The batch in parts."""
        return parts_of(self.behavior, self.positions, self.advantages.device, self.chunk_rows)

    def scores_of(self, part: Part) -> tuple[Terms | None, Scored | None]:
        """log p_s of a part: as given, or from the trainer's own weights of then."""
        if self.sampler is not None:
            scored = score(self.sampler, part, self.temperature, self.shard)
            return scored.terms, scored
        if self.log_s is None:
            return None, None
        positions = part.rows.cpu().numpy()
        entries = self.behavior.entries_of(positions)
        on = lambda values: torch.as_tensor(values).to(self.advantages.device, self.dtype)  # noqa: E731
        log_p = on(self.log_s.log_p)[torch.from_numpy(entries).to(self.advantages.device)]
        drawn = on(self.log_s.log_p_sampled)[part.rows]
        rest = None
        if part.behavior.rest is not None:
            if self.log_s.log_rest is None:
                raise MissingScores(
                    f"q of {part.count} positions has unknown entries, but log p_s has no mass for them"
                )
            rest = on(self.log_s.log_rest)[part.rows]
        return Terms(log_p[part.known], drawn, rest), Scored(log_p, Terms(log_p[part.known], drawn, rest), None, None)

    def rows_of(self, part: Part, theta: Scored, scores: Terms | None) -> Rows:
        """What a rule looks at."""
        return Rows(
            part.row[part.known],
            part.q(self.dtype),
            theta.terms,
            scores,
            self.advantages[part.rows],
            self.sequence[part.rows],
            None if self.versions is None else self.versions[part.rows],
        )

    def forward(self, grads: Any) -> Tensor:
        """The summed loss; adds gradients into ``grads`` where they are asked for. An autocast around it does not reach in."""
        with torch.autocast(self.advantages.device.type, enabled=False):
            return self._forward(grads)

    def _forward(self, grads: Any) -> Tensor:
        parts = self.parts()
        given: list[Correction | None] = [None] * len(parts)
        if not self.rule.local:
            given = list(self._weigh_together(parts))
        total = self.advantages.new_zeros(())
        for part, correction in zip(parts, given):
            theta = score(self.source, part, self.temperature, self.shard)
            terms, sampler = self.scores_of(part)
            rows = self.rows_of(part, theta, terms)
            correction = self.rule.weigh(rows) if correction is None else correction
            value = self.apply(part, theta, sampler, correction, grads)
            self.values.append(value)
            self.rows.append(rows)
            self.corrections.append(correction)
            self.order.append(part.rows)
            total = total + value.sum()
        return total

    def backward(self, grads: Any) -> None:
        """Gradients from the coefficients of the forward."""
        with torch.autocast(self.advantages.device.type, enabled=False):
            self._backward(grads)

    def _backward(self, grads: Any) -> None:
        for part, correction in zip(self.parts(), self.corrections):
            theta = score(self.source, part, self.temperature, self.shard)
            _, sampler = self.scores_of(part) if correction.tail is not None else (None, None)
            self.apply(part, theta, sampler, correction, grads)

    def _weigh_together(self, parts: list[Part]) -> list[Correction]:
        rows = []
        for part in parts:
            theta = score(self.source, part, self.temperature, self.shard)
            theta.mass = None
            rows.append(self.rows_of(part, theta, self.scores_of(part)[0]))
        order = torch.cat([part.rows for part in parts])
        together = joined(rows)
        together, restore = in_order(together, order)
        return split(self.rule.weigh(together), rows, restore)

    def apply(self, part: Part, theta: Scored, sampler: Scored | None, correction: Correction, grads: Any) -> Tensor:
        """Value of each row, times its coefficient; adds ``dloss/dz`` into the gradients."""
        k, a = self.coefficients[part.rows], self.advantages[part.rows]
        c = torch.zeros_like(theta.all_entries)
        if correction.c is not None:
            c[part.known] = correction.c.to(c.dtype)
        tail_sum = tail_value = None
        tail_c: Tensor | None = None
        if correction.tail is not None:
            c, tail_c, tail_sum, tail_value = self._tail(part, theta, sampler, correction.tail, c)
        sum_c = segment_sum(c, part.row, part.count)
        centring = segment_sum(torch.where(c != 0, c * theta.all_entries, torch.zeros_like(c)), part.row, part.count)
        if tail_sum is not None and tail_value is not None:
            sum_c, centring = sum_c + tail_sum, centring + tail_value
        w = correction.w.to(self.dtype)
        value = -a * w * theta.terms.drawn if correction.value is None else correction.value.to(self.dtype)
        if grads is not None:
            factor = -k * a / self.temperature
            self._accumulate(part, theta, (w, c, sum_c, tail_c), factor, grads)
        return k * (value + a * centring)

    def _tail(
        self, part: Part, theta: Scored, sampler: Scored | None, tail: TailTerm, c: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """``c_v = scale clip(p_v, low p_s,v, high p_s,v)`` off the known entries."""
        low, high = tail.clip.low, tail.clip.high
        if not part.dense:
            if part.behavior.rest is None:
                return c, None, None, None
            assert sampler is not None
            p, p_s = torch.exp(theta.all_entries), torch.exp(sampler.all_entries)
            if not bool(torch.isfinite(sampler.all_entries[~part.known]).all()):
                raise MissingScores(
                    "a tail on p_s needs log p_s of every kept id: score with the trainer's weights of then"
                )
            off = tail.scale.to(c.dtype)[part.row] * torch.minimum(torch.maximum(p, low * p_s), high * p_s)
            return torch.where(part.known, c, off), None, None, None
        if (
            sampler is None
            or sampler.mass is None
            or sampler.normaliser is None
            or theta.mass is None
            or theta.normaliser is None
        ):
            raise MissingScores(
                f"a tail on p_s needs the trainer's whole distribution at the sampler's weights ({part.count} rows): "
                "give `sampler=` hidden states or logits of then, or use tail='collapsed'"
            )
        p = theta.mass / theta.normaliser[:, None]
        p_s = sampler.mass.div_(sampler.normaliser[:, None])
        off = torch.maximum(p, low * p_s)
        off = torch.minimum(off, p_s.mul_(high)).mul_(tail.scale.to(c.dtype)[:, None])
        value = torch.xlogy(off, p.clamp_(min=torch.finfo(p.dtype).tiny)).sum(1)
        return c, off, self.shard.all_sum(off.sum(1)), self.shard.all_sum(value)

    def _accumulate(self, part: Part, theta: Scored, coefficients: Any, factor: Tensor, grads: Any) -> None:
        w, c, sum_c, tail_c = coefficients
        beta = w - sum_c
        here, at = self.shard.local(part.ids)
        dz = -factor[part.row] * (c + beta[part.row] * torch.exp(theta.all_entries))
        if part.dense:
            assert theta.mass is not None and theta.normaliser is not None
            dense = theta.mass.mul_((-factor * beta / theta.normaliser)[:, None])
            if tail_c is not None:
                dense.sub_(tail_c.mul_(factor[:, None]))
            dense[part.row[here], at[here]] = dz[here]
            here_drawn, at_drawn = self.shard.local(part.tokens)
            own = torch.arange(part.count, device=dense.device)
            dense[own[here_drawn], at_drawn[here_drawn]] += (factor * w)[here_drawn]
            add_dense(self.source, part, dense, grads)
            return
        listed = part.drawn >= 0
        dz.index_add_(0, part.drawn[listed], (factor * w)[listed])
        add_listed(self.source, part.rows[part.row][here], at[here], dz[here], grads)


def add_dense(source: Any, part: Part, dz: Tensor, grads: Any) -> None:
    """``dloss/dz`` of whole rows, into logits or hidden states and head."""
    if not isinstance(source, Projection):
        grads[0][part.rows] = dz.to(grads[0].dtype)
        return
    grad_hidden, grad_weight = grads[0], grads[1]
    if grad_hidden is not None:
        grad_hidden[part.rows] = (dz @ source.head()).to(grad_hidden.dtype)
    if grad_weight is not None:
        grad_weight.addmm_(dz.T, source.hidden.detach()[part.rows].to(dz.dtype))
    if source.bias is not None and grads[2] is not None:
        grads[2].add_(dz.sum(0))


def add_listed(source: Any, rows: Tensor, ids: Tensor, dz: Tensor, grads: Any) -> None:
    """``dloss/dz`` of single entries, a block at a time."""
    if not isinstance(source, Projection):
        grads[0].index_put_((rows, ids), dz.to(grads[0].dtype), accumulate=True)
        return
    hidden, weight = source.hidden.detach(), source.weight.detach()
    for begin in range(0, len(rows), BLOCK):
        r, i, d = rows[begin : begin + BLOCK], ids[begin : begin + BLOCK], dz[begin : begin + BLOCK, None]
        if grads[0] is not None:
            grads[0].index_add_(0, r, (d * weight[i].to(d.dtype)).to(grads[0].dtype))
        if grads[1] is not None:
            grads[1].index_add_(0, i, d * hidden[r].to(d.dtype))
    if source.bias is not None and grads[2] is not None:
        grads[2].index_add_(0, ids, dz)


def joined(rows: list[Rows]) -> Rows:
    """Parts of a batch as one."""
    base, shifted = 0, []
    for part in rows:
        shifted.append(part.row + base)
        base += len(part.advantages)

    def terms(of: list[Terms]) -> Terms:
        rest = None
        if any(t.rest is not None for t in of):
            rest = torch.cat([torch.full_like(t.drawn, -torch.inf) if t.rest is None else t.rest for t in of])
        return Terms(torch.cat([t.entries for t in of]), torch.cat([t.drawn for t in of]), rest)

    scores = None if any(part.scores is None for part in rows) else terms([part.s for part in rows])
    versions = None if rows[0].versions is None else torch.cat([part.versions for part in rows])
    return Rows(
        torch.cat(shifted),
        terms([part.q for part in rows]),
        terms([part.theta for part in rows]),
        scores,
        torch.cat([part.advantages for part in rows]),
        torch.cat([part.sequence for part in rows]),
        versions,
    )


def in_order(rows: Rows, order: Tensor) -> tuple[Rows, tuple[Tensor, Tensor]]:
    """The rows as the batch has them, and how to go back: row and entry permutations."""
    by_row = torch.argsort(order)
    rank = torch.empty_like(by_row)
    rank[by_row] = torch.arange(len(by_row), device=by_row.device)
    new_row = rank[rows.row]
    by_entry = torch.argsort(new_row, stable=True)

    def terms(t: Terms) -> Terms:
        return Terms(t.entries[by_entry], t.drawn[by_row], None if t.rest is None else t.rest[by_row])

    scores = None if rows.scores is None else terms(rows.scores)
    versions = None if rows.versions is None else rows.versions[by_row]
    ordered = Rows(
        new_row[by_entry],
        terms(rows.q),
        terms(rows.theta),
        scores,
        rows.advantages[by_row],
        rows.sequence[by_row],
        versions,
    )
    back = torch.empty_like(by_entry)
    back[by_entry] = torch.arange(len(by_entry), device=by_entry.device)
    return ordered, (rank, back)


def split(correction: Correction, rows: list[Rows], restore: tuple[Tensor, Tensor]) -> list[Correction]:
    """Coefficients of the batch, back in its parts."""
    by_row, by_entry = restore
    out, t, n = [], 0, 0
    for part in rows:
        r, e = by_row[t : t + len(part.advantages)], by_entry[n : n + len(part.row)]
        t, n = t + len(part.advantages), n + len(part.row)
        tail = None if correction.tail is None else TailTerm(correction.tail.scale[r], correction.tail.clip)
        info = {name: value[r] if len(value) == len(by_row) else value for name, value in correction.info.items()}
        out.append(
            Correction(
                correction.w[r],
                None if correction.c is None else correction.c[e],
                tail,
                None if correction.value is None else correction.value[r],
                info,
            )
        )
    return out


class LossFunction(torch.autograd.Function):
    """From hidden states the gradient is made in the forward, where the logits are; from logits in the backward."""

    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> Tensor:
        """The summed loss."""
        ctx.run, ctx.needs, ctx.grads = run, ctx.needs_input_grad[1:], None
        if not isinstance(run.source, Projection) or not any(ctx.needs):
            return run.forward(None)
        loss, ctx.grads = _with_gradients(run, ctx.needs)
        return loss

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        """Gradients, times that of the loss."""
        (outer,) = outputs
        run: Run = ctx.run
        if isinstance(run.source, Projection):
            # Handed over, so that the head's gradient is not held twice; a second backward makes them anew.
            grads = ctx.grads if ctx.grads is not None else _with_gradients(run.again(), ctx.needs)[1]
            ctx.grads = None
            # Scaled before it is rounded: a scaler of f16 gradients keeps what f16 alone would lose.
            scaled = (None if g is None else g if float(outer) == 1.0 else g.mul_(outer.to(g.dtype)) for g in grads)
            return (None, *(None if g is None else g.to(t.dtype) for g, t in zip(scaled, run.source.tensors)))
        if not ctx.needs[0]:
            return (None, None)
        grad = torch.zeros_like(run.source.logits)
        replace(run, coefficients=run.coefficients * outer.to(run.dtype)).backward([grad])
        return (None, grad)


def _with_gradients(run: Run, needs: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Loss and gradients of hidden states, head and bias, in one pass, in the compute type."""
    grads = [torch.zeros_like(t, dtype=run.dtype) if need else None for t, need in zip(run.source.tensors, needs)]
    loss = run.forward(grads)
    if grads[0] is not None:
        grads[0] = run.shard.all_sum(grads[0])
    return loss, grads


def active_positions(behavior: Behavior, mask: Any) -> Any:
    """Positions that count."""
    return np.arange(len(behavior)) if mask is None else np.flatnonzero(np.asarray(mask))
