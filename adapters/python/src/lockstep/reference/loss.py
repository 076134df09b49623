"""Value and analytic gradient of the one loss that every ``(w, c)`` gives. Everything but log p is held fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..behavior import Behavior, SupportLogProbs
from ..errors import LengthMismatch, MissingScores
from ..rules.rows import Correction, Rows, Rule, Terms, finite
from .score import check_logits, check_temperature, domain_log_probs, gather


@dataclass(frozen=True)
class Loss:
    """What a rule makes of T positions."""

    per_token: Any
    """``[T]``."""
    gradient: Any
    """Of the sum with respect to the raw logits, ``[T, V]``."""
    correction: Correction
    centring: Any
    """c over the vocabulary, ``[T, V]``."""
    rows: Rows

    @property
    def total(self) -> float:
        """Sum over the positions."""
        return float(self.per_token.sum())


def decompose(log_theta: SupportLogProbs, log_s: SupportLogProbs, behavior: Behavior) -> tuple[Any, Any]:
    """``(log p - log p_s, log p_s - log q)`` of the drawn tokens; their sum is ``log p - log q``.

    Raises:
        NotANumber: a term that is not finite.
    """
    lag = finite(np.asarray(log_theta.log_p_sampled, np.float64) - np.asarray(log_s.log_p_sampled, np.float64), "lag")
    numeric = np.asarray(log_s.log_p_sampled, np.float64) - behavior.log_q_drawn
    return lag, finite(numeric, "numeric discrepancy")


def _terms(scores: SupportLogProbs, behavior: Behavior) -> Terms:
    known = behavior.known
    rest = None if scores.log_rest is None else np.asarray(scores.log_rest, np.float64)
    return Terms(np.asarray(scores.log_p, np.float64)[known], np.asarray(scores.log_p_sampled, np.float64), rest)


def rows_of(
    behavior: Behavior,
    log_theta: SupportLogProbs,
    log_s: SupportLogProbs | None,
    advantages: Any,
    sequence: Any = None,
    versions: Any = None,
) -> Rows:
    """The columns a rule looks at."""
    count = len(behavior)
    sequence = np.zeros(count, np.int64) if sequence is None else np.asarray(sequence)
    for name, column in (("advantages", advantages), ("sequence", sequence), ("versions", versions)):
        if column is not None and len(column) != count:
            raise LengthMismatch(name, len(column), count)
    rest = None if behavior.rest is None else behavior.rest.log_rest.astype(np.float64)
    q = Terms(behavior.log_q[behavior.known].astype(np.float64), behavior.log_q_drawn, rest)
    scores = None if log_s is None else _terms(log_s.check(behavior), behavior)
    return Rows(
        behavior.row[behavior.known],
        q,
        _terms(log_theta.check(behavior), behavior),
        scores,
        finite(np.asarray(advantages, np.float64), "advantage"),
        sequence,
        None if versions is None else np.asarray(versions),
    )


def loss(
    logits: Any,
    behavior: Behavior,
    advantages: Any,
    rule: Rule,
    *,
    temperature: float,
    sampler_logits: Any = None,
    sequence: Any = None,
    versions: Any = None,
    coefficients: Any = None,
) -> Loss:
    """Loss and gradient of every position.

    ``sampler_logits`` are the trainer's at the sampler's weights, ``[T, V]``. The sum is that of ``per_token``, each
    multiplied with its coefficient where they are given.

    Raises:
        MissingScores: a rule that needs p_s, without ``sampler_logits``.
    """
    check_temperature(behavior, temperature)
    logits = np.asarray(logits, np.float64)
    check_logits(logits.shape, behavior, logits.shape[1])
    log_p = domain_log_probs(finite(logits, "logit") / temperature, behavior)
    if sampler_logits is None and rule.needs_scores:
        raise MissingScores(f"{type(rule).__name__} needs log p_s of {len(behavior)} positions and was given none")
    log_ps = None
    if sampler_logits is not None:
        log_ps = domain_log_probs(
            finite(np.asarray(sampler_logits, np.float64), "sampler logit") / temperature, behavior
        )
    log_s = None if log_ps is None else gather(log_ps, behavior)
    rows = rows_of(behavior, gather(log_p, behavior), log_s, advantages, sequence, versions)
    correction = rule.weigh(rows)
    c = _dense(correction, behavior, log_p, log_ps)
    k = np.ones(len(behavior)) if coefficients is None else np.asarray(coefficients, np.float64)
    a = rows.advantages
    inside = np.isfinite(log_p)
    centring = (c * np.where(inside, log_p, 0)).sum(1)
    value = -a * correction.w * rows.theta.drawn if correction.value is None else correction.value
    tokens = behavior.tokens.astype(np.int64)
    beta = correction.w - c.sum(1)
    direction = -c - beta[:, None] * np.where(inside, np.exp(log_p), 0)
    direction[np.arange(len(tokens)), tokens] += correction.w
    gradient = -(k * a / temperature)[:, None] * direction
    return Loss(k * (value + a * centring), gradient, correction, c, rows)


def _dense(correction: Correction, behavior: Behavior, log_p: Any, log_ps: Any) -> Any:
    """c over the vocabulary, ``[T, V]``."""
    c = np.zeros_like(log_p)
    known = behavior.known
    row, ids = behavior.row[known], behavior.ids[known].astype(np.int64)
    if correction.tail is not None:
        inside = np.isfinite(log_p) & np.isfinite(log_ps)
        ratio = correction.tail.clip.of_log(np.where(inside, log_p, 0) - np.where(inside, log_ps, 0))
        c = np.where(inside, correction.tail.scale[:, None] * np.exp(np.where(inside, log_ps, 0)) * ratio, 0.0)
        c[row, ids] = 0.0
    if correction.c is not None:
        c[row, ids] = correction.c
    return c
