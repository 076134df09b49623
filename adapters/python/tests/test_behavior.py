"""Behaviours: slices, joins, and what is refused."""

import numpy as np
import pytest
from mixed import RULE_NAMES, mixed, rules

from lockstep import Behavior, Rest, errors
from lockstep import reference as ref


def test_selecting_and_joining_are_inverse():
    _, _, behavior = mixed(12, 30)
    parts = [behavior.select(range(a, a + 3)) for a in range(0, 12, 3)]
    joined = Behavior.concatenate([part.check() for part in parts])
    for name in ("tokens", "offsets", "ids", "log_q"):
        assert np.array_equal(getattr(joined, name), getattr(behavior, name))
    assert np.array_equal(joined.rest.log_rest, behavior.rest.log_rest)


def change(**columns):
    _, _, b = mixed(8, 30)
    base = {"tokens": b.tokens, "offsets": b.offsets, "ids": b.ids, "log_q": b.log_q, "rest": b.rest}
    return Behavior(**{**base, **columns})


def with_value(array, at, value):
    array = array.copy()
    array[at] = value
    return array


WRONG = {
    "offsets": (errors.LengthMismatch, lambda b: change(offsets=b.offsets[:-1])),
    "log_q": (errors.LengthMismatch, lambda b: change(log_q=b.log_q[:-1])),
    "dtype": (errors.WrongDtype, lambda b: change(ids=b.ids.astype(float))),
    "duplicate": (errors.DuplicateId, lambda b: change(ids=with_value(b.ids, 1, b.ids[0]))),
    "mass": (errors.SupportMass, lambda b: change(log_q=with_value(b.log_q, 0, b.log_q[0] + 0.01))),
    "positive": (errors.NotALogProb, lambda b: change(log_q=with_value(b.log_q, 0, 0.5))),
    "nan": (errors.NotALogProb, lambda b: change(log_q=with_value(b.log_q, 0, np.nan))),
    "outside": (
        errors.SampledOutside,
        lambda b: change(tokens=with_value(b.tokens, 0, 29 if 29 not in b.ids[:6] else 28)),
    ),
    "vocabulary": (
        errors.OutsideVocabulary,
        lambda b: change(rest=Rest(with_value(b.rest.vocabulary, 3, 2), b.rest.log_q_sampled, b.rest.log_rest)),
    ),
    "disagrees": (
        errors.SupportError,
        lambda b: change(rest=Rest(b.rest.vocabulary, b.rest.log_q_sampled - 1.0, b.rest.log_rest)),
    ),
    "rest": (
        errors.NotALogProb,
        lambda b: change(rest=Rest(b.rest.vocabulary, b.rest.log_q_sampled, with_value(b.rest.log_rest, 2, np.nan))),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_itself_is_refused(name):
    error, of = WRONG[name]
    _, _, behavior = mixed(8, 30)
    with pytest.raises(error):
        of(behavior).check()


@pytest.mark.parametrize("name", RULE_NAMES)
def test_the_gradient_is_that_of_the_value_with_frozen_coefficients(name):
    theta, s, behavior = mixed(8, 12)
    advantages, sequence = np.linspace(-1, 1, 8), np.repeat([0, 1], 4)
    options = {"temperature": 0.7, "sampler_logits": s, "sequence": sequence}
    first = ref.loss(theta, behavior, advantages, rules(ref)[name], **options)
    frozen = ref.Fixed(first.correction.w, first.correction.c, first.correction.tail)
    step, at = 1e-5, (5, 3)
    moved = [
        ref.loss(
            with_value(theta, at, theta[at] + d), behavior, advantages, ref.Fixed(frozen.w, frozen.c), **options
        ).total
        for d in (step, -step)
    ]
    plain = ref.loss(theta, behavior, advantages, ref.Fixed(frozen.w, frozen.c), **options)
    assert abs((moved[0] - moved[1]) / (2 * step) - plain.gradient[at]) < 1e-8


def test_form_a_has_no_drift_that_reward_did_not_ask_for():
    """E_q of the gradient at a constant advantage is 0 for any q, p_s, p and clip; form C's is not."""
    theta, s, behavior = mixed(4, 9, kinds="e")
    drift = lambda rule: sum(  # noqa: E731
        np.exp(behavior.log_q[behavior.row == t][i])
        * ref.loss(theta, drawn(behavior, t, i), np.ones(4), rule, temperature=0.7, sampler_logits=s).gradient[t]
        for t in [1]
        for i in range(6)
    )
    assert np.abs(drift(ref.form_a(ref.LagClip(0.9, 1.1)))).max() < 1e-14
    assert np.abs(drift(ref.WrongOnPurpose(ref.LagClip(0.9, 1.1), weighted=False))).max() > 1e-3


def drawn(behavior, t, i):
    return Behavior(
        with_value(behavior.tokens, t, behavior.support(t)[0][i]),
        behavior.offsets,
        behavior.ids,
        behavior.log_q,
        None,
        0.7,
    )


@pytest.mark.parametrize("preset", ref.VERL_PRESETS)
def test_verl_presets_say_what_they_select_by(preset):
    rule = ref.verl(preset)
    selects = {criterion.selects for criterion in rule.criteria}
    assert selects == (
        {"by_length"} if preset == "decoupled_seq_is_rs" else {"by_sequence"} if "rs" in preset else set()
    )
    theta, s, behavior = mixed(8, 12, kinds="e")
    out = ref.loss(theta, behavior, np.ones(8), rule, temperature=0.7, sampler_logits=s, sequence=np.repeat([0, 1], 4))
    assert np.isfinite(out.gradient).all()


def test_unknown_presets_and_criteria_are_refused():
    for of in (
        lambda: ref.verl("tis"),
        lambda: ref.Criterion.parse("seq_max_k1", "1"),
        lambda: ref.Criterion.parse("token_k2", "x"),
        lambda: ref.Dlc(ref.LagMask(0.5, 2)),
    ):
        with pytest.raises(errors.InvalidRule):
            of()
