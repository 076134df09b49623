"""Worked values of every correction, and what compares with them. Knows neither numpy's nor torch's way to a gradient."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import Behavior, Rest
from lockstep import reference as ref

COMMITTED = Path(__file__).parents[3] / "tests/testdata/golden"
DIRECTORY = Path(os.environ.get("LOCKSTEP_GOLDEN", COMMITTED))


@dataclass
class Golden:
    name: str
    inputs: dict[str, Any]
    expected: dict[str, Any]
    must_error: list[str]
    description: str
    rel: float
    abs: float
    seen: set[str] = field(default_factory=set)

    @staticmethod
    def load(path: Path) -> Golden:
        data = json.loads(path.read_text())
        tolerance = data["tolerance"]
        return Golden(
            path.stem,
            data["inputs"],
            data["expected"],
            data.get("must_error") or [],
            data.get("description", ""),
            tolerance["f64_rel"],
            tolerance["f64_abs"],
        )

    def differs(self, expected: Any, found: Any, at: str = "") -> str | None:
        if expected is None:
            return None
        if isinstance(expected, list):
            found = list(found)
            if len(expected) != len(found):
                return f"{at}: {len(found)} values, not {len(expected)}"
            return next(
                (d for i, (e, f) in enumerate(zip(expected, found)) if (d := self.differs(e, f, f"{at}[{i}]"))), None
            )
        if isinstance(expected, bool):
            return None if bool(found) == expected else f"{at}: {found} is not {expected}"
        found = float(found)
        close = abs(expected - found) <= self.abs + self.rel * abs(expected)
        return None if close else f"{at}: {found!r} is not {expected!r}"

    def check(self, key: str, found: Any) -> None:
        self.seen.add(key)
        assert key in self.expected, f"{self.name}: {key} is not expected"
        difference = self.differs(self.expected[key], found)
        assert difference is None, f"{self.name}: {key}{difference}"

    def check_if_given(self, key: str, found: Any) -> None:
        if key in self.expected:
            self.check(key, found)

    def array(self, key: str) -> Any:
        return np.array(self.inputs[key])


@dataclass
class Problem:
    """A vector's positions, in the words of the package."""

    golden: Golden
    q_is: str = "sampler_logits"
    s_is: str = "trainer_at_sampler_weights_logits"

    @property
    def temperature(self) -> float:
        return float(self.golden.inputs["temperature"])

    def logits(self, key: str) -> Any:
        return self.golden.array(key)

    @property
    def theta(self) -> Any:
        return self.logits("trainer_logits")

    @property
    def s(self) -> Any:
        return self.logits(self.s_is)

    def domains(self) -> list[list[int]]:
        inputs = self.golden.inputs
        return inputs.get("support_ids") or [list(range(self.theta.shape[1]))] * len(inputs["tokens"])

    def behavior(self) -> Behavior:
        inputs, tokens = self.golden.inputs, self.golden.inputs["tokens"]
        z = self.logits(self.q_is) / self.temperature
        rows = []
        for t, domain in enumerate(self.domains()):
            rows.append((domain, ref.log_softmax(z[t][domain]).tolist()))
        if "head_ids" not in inputs:
            return Behavior.of_rows(tokens, rows, self.temperature)
        heads = inputs["head_ids"]
        log_q = ref.log_softmax(z)
        flat = np.concatenate([log_q[t][head] for t, head in enumerate(heads)])
        rest = np.array([np.log(np.delete(np.exp(log_q[t]), head).sum()) for t, head in enumerate(heads)])
        drawn = np.array([log_q[t][token] for t, token in enumerate(tokens)])
        offsets = np.concatenate([[0], np.cumsum([len(head) for head in heads])])
        vocabulary = np.full(len(tokens), z.shape[1])
        return Behavior(
            np.array(tokens), offsets, np.concatenate(heads), flat, Rest(vocabulary, drawn, rest), self.temperature
        ).check()


Run = Callable[..., Any]
"""(problem, rule, **options) -> an object with per_token, gradient, correction, centring, rows."""


def reference_run(
    problem: Problem,
    rule: Any,
    behavior: Behavior | None = None,
    advantages: Any = None,
    coefficients: Any = None,
    sampler: Any = None,
    tokens_versions: Any = None,
    theta: Any = None,
) -> Any:
    golden = problem.golden
    return ref.loss(
        problem.theta if theta is None else theta,
        behavior or problem.behavior(),
        golden.inputs["advantages"] if advantages is None else advantages,
        rule,
        temperature=problem.temperature,
        sampler_logits=problem.s if sampler is None else sampler,
        sequence=np.array(golden.inputs["sequence_of_token"]),
        versions=tokens_versions,
        coefficients=coefficients,
    )


def masses(problem: Problem, which: Any) -> Any:
    p = np.exp(ref.log_softmax(which / problem.temperature))
    return np.array([p[t][head].sum() for t, head in enumerate(problem.golden.inputs["head_ids"])])


def check_corrected(golden: Golden, result: Any) -> None:
    per_token = np.asarray(result.per_token)
    golden.check_if_given("token_weight", result.correction.w)
    if result.centring is not None:
        golden.check_if_given("centring_coefficients", result.centring)
    golden.seen.add("centring_coefficients")
    golden.check("per_token_loss", per_token)
    golden.check("loss_sum", per_token.sum())
    golden.check_if_given("loss_token_mean", per_token.mean())
    golden.check("grad_logits_of_loss_sum", result.gradient)


def heads(golden: Golden, problem: Problem) -> None:
    if "head_ids" not in golden.inputs:
        return
    q, s, p = (
        masses(problem, problem.logits("sampler_logits")),
        masses(problem, problem.s),
        masses(problem, problem.theta),
    )
    golden.check_if_given("p_head_mass", p)
    golden.check_if_given("q_head_mass", q)
    golden.check_if_given("ps_head_mass", s)
    golden.check_if_given("q_tail_mass", 1 - q)
    golden.check_if_given("head_ids", golden.inputs["head_ids"])
    rho = (1 - q) / (1 - p)
    golden.check_if_given("rho", rho)
    if "alpha" in golden.expected and "lag_clip_high" in golden.inputs:
        golden.check(
            "alpha", rho * np.clip((1 - p) / (1 - s), golden.inputs["lag_clip_low"], golden.inputs["lag_clip_high"])
        )


def check_masks(golden: Golden, result: Any, weights: Any = None) -> None:
    info = result.correction.info
    keep = info.get("keep", np.ones(len(result.per_token), bool))
    golden.check("weights", info.get("weight", result.correction.w) if weights is None else weights)
    golden.check("effective_mask", np.asarray(keep).astype(int))
    golden.check("per_token_loss", result.per_token)
    golden.check("loss_sum", np.asarray(result.per_token).sum())
    golden.check("grad_logits_of_loss_sum", result.gradient)
