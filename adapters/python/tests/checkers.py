"""What checks the vectors of each number. Every checker takes the vector and a way to loss and gradient."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from golden import Golden, Problem, Run, check_corrected, check_masks, heads

from lockstep import Behavior, Rest, SupportLogProbs
from lockstep import reference as ref
from lockstep.errors import (
    DuplicateId,
    EmptySupport,
    MissingScores,
    NotALogProb,
    NotANumber,
    SampledOutside,
    SupportMass,
)


def decomposition(golden: Golden, run: Run) -> None:
    problem = Problem(golden)
    behavior, t = problem.behavior(), problem.temperature
    full = {
        name: ref.log_softmax(problem.logits(key) / t)
        for name, key in [("logp_theta", "trainer_logits"), ("logp_s", problem.s_is), ("logq", problem.q_is)]
    }
    for name, values in full.items():
        golden.check(name, values)
    theta, s = (ref.support_logprobs(z, behavior, t) for z in (problem.theta, problem.s))
    lag, numeric = ref.decompose(theta, s, behavior)
    golden.check("lag", lag)
    golden.check("numeric", numeric)
    golden.check("total", lag + numeric)
    kl = lambda a, b: ref.exact_kl(full[a].ravel(), full[b].ravel(), behavior.row, len(behavior))  # noqa: E731
    for key, a, b in [
        ("kl_q_ps", "logq", "logp_s"),
        ("kl_q_ptheta", "logq", "logp_theta"),
        ("kl_ps_ptheta", "logp_s", "logp_theta"),
        ("kl_ptheta_ps", "logp_theta", "logp_s"),
    ]:
        golden.check(key, kl(a, b))


def truncation(golden: Golden, run: Run) -> None:
    for case, expected in zip(golden.inputs["cases"], golden.expected["cases"]):
        values = {**case["params"], "temperature": case["temperature"]}
        found = ref.truncate(case["logits"], [(name, values[name]) for name in case["order"] if name in values])
        for key, value in [
            ("kept_ids", found.ids),
            ("kept_logprobs", found.log_q),
            ("kept_mass_before_renorm", found.kept_mass),
        ]:
            difference = golden.differs(expected[key], value)
            assert difference is None, f"{case['case']}: {key}{difference}"
    golden.seen.add("cases")


def _weight(golden: Golden) -> ref.ScoreCentring:
    inputs = golden.inputs
    if "max_importance_ratio" in inputs:
        return ref.ScoreCentring("ipo", cap=inputs["max_importance_ratio"], eps=inputs["eps"])
    if "cap" in inputs:
        return ref.ScoreCentring("truncated", cap=inputs["cap"])
    text = inputs.get("weight", golden.description)
    if found := re.search(r"min\(r,([0-9.]+)\)", text):
        return ref.ScoreCentring("truncated", cap=float(found[1]))
    if found := re.search(r"([0-9.]+)<=r<=([0-9.]+)", text):
        return ref.ScoreCentring("masked", low=float(found[1]), high=float(found[2]))
    return ref.ScoreCentring("one")


def score_centring(golden: Golden, run: Run) -> None:
    problem = Problem(golden)
    result = run(problem, _weight(golden))
    check_corrected(golden, result)
    golden.check_if_given("identity_grad", result.gradient)
    golden.check_if_given("ratio_token", result.correction.info["ratio"])
    golden.check_if_given("token_masked", result.correction.info["masked"])
    golden.check_if_given("logp_support_token", result.rows.theta.drawn)
    heads(golden, problem)
    if "alpha" in golden.expected:
        q, p = (math.e**result.rows.q.rest, math.e**result.rows.theta.rest)
        rho = np.asarray(q) / np.asarray(p)
        rule = _weight(golden)
        f = np.ones_like(rho)
        if rule.weight == "truncated":
            f = np.minimum(1 / rho, rule.cap)
        if rule.weight == "masked":
            f = np.where((1 / rho >= rule.low) & (1 / rho <= rule.high), 1 / rho, 0)
        golden.check("alpha", rho * f)


def centring_at_zero_lag(golden: Golden, run: Run) -> None:
    """Plain score centring is DLC-A at zero lag, its unknown tail collapsed."""
    problem = Problem(golden)
    check_corrected(golden, run(problem, ref.form_a(tail="collapsed"), sampler=problem.theta))
    score_centring(golden, run)


def ppo_clip(golden: Golden) -> ref.PpoClip:
    inputs = golden.inputs
    low, high = ("eps_clip_low", "eps_clip_high") if "eps_clip_low" in inputs else ("eps_low", "eps_high")
    return ref.PpoClip(inputs[low], inputs[high])


def centred_ppo(golden: Golden, run: Run) -> None:
    result = run(Problem(golden), ref.centred_ppo(ppo_clip(golden), golden.inputs["tis_cap"]))
    check_corrected(golden, result)
    golden.check("active_token", np.asarray(result.correction.w) != 0)
    rows = result.rows
    golden.check("ppo_ratio_token", np.exp(np.asarray(rows.log_ratio("lag"))))
    golden.check(
        "behave_weight_token", np.minimum(np.exp(np.asarray(rows.log_ratio("numeric"))), golden.inputs["tis_cap"])
    )


def pg(golden: Golden, run: Run) -> None:
    check_masks(golden, run(Problem(golden), ref.Importance(None)))


def importance(golden: Golden, run: Run) -> None:
    cap = golden.inputs.get("C", math.inf)
    result = run(Problem(golden), ref.Importance("full", "token", cap))
    check_masks(golden, result)
    golden.check_if_given("clipped", result.correction.info["clipped"])
    golden.check_if_given("raw_ratio", result.correction.info["ratio"])


def tis_sequence(golden: Golden, run: Run) -> None:
    result = run(Problem(golden), ref.Importance("full", "sequence", golden.inputs["C"]))
    check_masks(golden, result)
    sums = np.asarray(result.rows.per_sequence(result.rows.log_ratio("full")))
    golden.check("seq_log_ratio", sums)
    golden.check("raw_seq_ratio", np.exp(sums))


def icepop(golden: Golden, run: Run) -> None:
    result = run(Problem(golden), ref.IcePop(golden.inputs["lo"], golden.inputs["hi"]))
    check_masks(golden, result)
    golden.check("inside", result.correction.info["inside"])


def rejection(golden: Golden, run: Run) -> None:
    inputs = golden.inputs
    criterion = ref.Criterion.parse(inputs["rs"], inputs["rs_threshold"])
    inner = ref.Importance("full", "sequence", inputs["C"]) if "C" in inputs else ref.Importance(None)
    result = run(Problem(golden), ref.Rejection(inner, (criterion,)))
    check_masks(golden, result)
    statistic = np.asarray(criterion.of_sequences(result.rows, "full"))
    golden.check_if_given("seq_k1", statistic)
    golden.check_if_given("seq_mean_k1", statistic)
    golden.check_if_given("geo_mean_ratio", np.exp(np.asarray(ref.mean_log_ratio(result.rows, "full"))))


def statistics(golden: Golden, run: Run) -> None:
    rows = run(Problem(golden), ref.Importance(None)).rows
    golden.check("log_ratio", rows.log_ratio("full"))
    for key in golden.expected:
        if key != "log_ratio":
            criterion = ref.Criterion.parse(key, "1")
            golden.check(
                key,
                criterion.of_log(rows.log_ratio("full"))
                if criterion.over == "token"
                else criterion.of_sequences(rows, "full"),
            )


def _surrogate(golden: Golden, result: Any) -> None:
    info = result.correction.info
    golden.check("ratio", info["ratio"])
    golden.check("clipped", info["clipped"])
    golden.check("dual_clipped", info["dual_clipped"])
    golden.check("clipfrac", np.asarray(info["clipped"]).mean())
    golden.check("per_token_loss", result.per_token)
    golden.check("loss_sum", np.asarray(result.per_token).sum())
    golden.check("grad_logits_of_loss_sum", result.gradient)


def ppo_lag(golden: Golden, run: Run) -> None:
    _surrogate(golden, run(Problem(golden), ref.Ppo(ppo_clip(golden), None, "lag")))


def ppo_full(golden: Golden, run: Run) -> None:
    _surrogate(golden, run(Problem(golden), ref.Ppo(ppo_clip(golden), None, "full")))


def ppo_dual(golden: Golden, run: Run) -> None:
    """The denominators are stated token by token: they stand in the place of q."""
    problem = Problem(golden)
    behavior = problem.behavior()
    log_q = golden.array("log_denominator")
    tokens, width = np.array(golden.inputs["tokens"]), problem.theta.shape[1]
    offsets = np.arange(len(tokens) + 1)
    rest = np.log1p(-np.exp(log_q))
    stated = Behavior(
        tokens, offsets, tokens, log_q, Rest(np.full(len(tokens), width), log_q, rest), behavior.temperature
    ).check()
    _surrogate(golden, run(problem, ref.Ppo(ppo_clip(golden), golden.inputs["c"], "full"), behavior=stated))


def advantages(golden: Golden, run: Run) -> None:
    rewards, groups = golden.array("rewards"), golden.array("group")
    golden.check("verl_std", ref.advantages(rewards, groups, ref.VERL))
    golden.check("dr_grpo", ref.advantages(rewards, groups))
    golden.check("population_std_eps1e6", ref.advantages(rewards, groups, ref.Deviation("population", 1e-6)))
    golden.check("rloo", ref.leave_one_out(rewards, groups))


def reductions(golden: Golden, run: Run) -> None:
    loss, sequence = golden.array("per_token_loss"), golden.array("sequence_of_token")
    length, rows = golden.inputs["L_max"], golden.inputs["n_sequences_including_empty"]
    for key, reduction in [
        ("token_mean", "token_mean"),
        ("seq_mean_token_mean", "seq_mean_token_mean"),
        ("seq_mean_token_sum", "seq_mean_token_sum"),
        ("verl_seq_mean_token_sum_norm", "seq_mean_token_sum_norm"),
        ("trl_dr_grpo", "dr_grpo"),
    ]:
        golden.check(key, (loss * ref.coefficients(reduction, sequence, rows=rows, length=length)).sum())  # type: ignore[arg-type]


def decoupled(proximal: Any) -> Any:
    def check(golden: Golden, run: Run) -> None:
        inputs = golden.inputs
        rule = ref.Decoupled(
            ppo_clip(golden), inputs["behav_cap"], proximal=proximal, version=inputs["current_version"]
        )
        versions = golden.array("versions")
        result = run(Problem(golden), rule, tokens_versions=versions)
        _surrogate(golden, result)
        for key, found in [
            ("alpha", rule.alpha(versions)),
            ("prox_logp", result.correction.info["prox_logp"]),
            ("behave_weight", result.correction.info["behave_weight"]),
        ]:
            assert golden.differs(inputs[key], found) is None, key

    return check


def m2po(golden: Golden, run: Run) -> None:
    threshold, problem = golden.inputs["m2_threshold"], Problem(golden)
    results = {form: run(problem, ref.M2po(form, threshold)) for form in ("areal", "harmful")}
    rows = results["areal"].rows
    squares = np.asarray(rows.log_ratio("full")) ** 2
    harmful = ref.harmful(rows)
    golden.check("delta_sq", squares)
    golden.check("harmful", harmful)
    golden.check("areal_keep", results["areal"].correction.info["keep"])
    golden.check("harmful_only_keep", results["harmful"].correction.info["keep"])
    golden.check("M2_all", squares.mean())
    golden.check("M2_harmful", squares[harmful].mean())
    golden.check("M2_after_areal", squares[np.asarray(results["areal"].correction.info["keep"])].mean())
    clip = ref.m2po_official(rows, "full", threshold)
    golden.check("official_clip_low", clip.low)
    golden.check("official_clip_high", clip.high)
    for form, result in results.items():
        golden.check(f"per_token_loss_{form}", result.per_token)
        golden.check_if_given(f"loss_sum_{form}", np.asarray(result.per_token).sum())
        golden.check(f"grad_logits_{form}", result.gradient)


def _of_ratios(log_ratio: Any, advantages: Any) -> ref.Rows:
    q = ref.Terms(np.zeros(0), np.full(len(log_ratio), -2.0))
    theta = ref.Terms(np.zeros(0), np.asarray(log_ratio) - 2.0)
    return ref.Rows(
        np.zeros(0, np.int64), q, theta, None, np.asarray(advantages, float), np.zeros(len(log_ratio), np.int64)
    )


def m2po_masks(golden: Golden, run: Run) -> None:
    threshold = golden.inputs["m2_threshold"]
    rows = _of_ratios(golden.inputs["log_ratio"], golden.inputs["advantages"])
    golden.check("areal_keep", ref.M2po("areal", threshold).keep(rows))
    golden.check("harmful", ref.harmful(rows))
    for suffix, floor in [("", (0.3, 0.5)), ("_no_floor", (0.0, 0.0))]:
        clip = ref.m2po_official(rows, "full", threshold, floor)
        golden.check(f"official_clip_low{suffix}", clip.low)
        golden.check(f"official_clip_high{suffix}", clip.high)
    golden.check(
        "all_over_threshold_areal_keep", ref.M2po("areal", threshold).keep(_of_ratios([0.5, 0.9, 0.7], [1.0] * 3))
    )


def vcpo(golden: Golden, run: Run) -> None:
    inputs, plain = golden.inputs, ref.Vcpo(guard=0.0)
    logs, norms, rewards = (golden.array(key) for key in ("seq_log_weights", "grad_norms", "rewards"))
    ess = plain.ess(logs)
    golden.check("ess", ess)
    golden.check("ess_ratio", ess / len(logs))
    golden.check("lr_scale_sqrt", ref.learning_rate_scale(ess / len(logs), inputs["base_ess_ratio"]))
    golden.check("lr_scale_linear", ref.learning_rate_scale(ess / len(logs), inputs["base_ess_ratio"], "linear"))
    golden.check("lr_sqrt", inputs["lr0"] * ref.learning_rate_scale(ess / len(logs), inputs["base_ess_ratio"]))
    golden.check("ess_ratio_clipped_at_2", plain.ess(np.minimum(logs, math.log(2))) / len(logs))
    baseline = plain.baseline(logs, norms, rewards)
    golden.check("opob_baseline", baseline)
    golden.check("advantages", rewards - baseline)
    bare = plain.baseline(logs * 0, norms, rewards)
    golden.check("opob_no_is", bare)
    golden.check(
        "limit_equal_weights_baseline_is_gradnorm_weighted_mean",
        abs(plain.baseline(logs * 0 + 0.7, norms, rewards) - bare) < 1e-12,
    )


def gspo(golden: Golden, run: Run) -> None:
    k = ref.coefficients("seq_mean_token_mean", golden.array("sequence_of_token"))
    result = run(Problem(golden), ref.Gspo(ppo_clip(golden)), coefficients=k)
    golden.check("seq_ratio", result.correction.info["sequence_ratio"])
    sequence = golden.array("sequence_of_token")
    golden.check("clipped", [bool(np.asarray(result.correction.info["clipped"])[sequence == i][0]) for i in range(2)])
    golden.check("loss", np.asarray(result.per_token).sum())
    golden.check("grad_logits_of_loss", result.gradient)


def cispo(golden: Golden, run: Run) -> None:
    result = run(Problem(golden), ref.Cispo(ppo_clip(golden)))
    check_masks(golden, result)
    golden.check("clipped", result.correction.info["clipped"])


def replay(golden: Golden, run: Run) -> None:
    problem = Problem(golden)
    t, z, behavior = problem.temperature, problem.theta, problem.behavior()
    tokens, rows = behavior.tokens, np.arange(len(behavior))
    full = ref.log_softmax(z / t)
    inside = np.zeros_like(z, bool)
    inside[behavior.row, behavior.ids] = True
    log_mass = np.log(np.where(inside, np.exp(full), 0).sum(1))
    replayed = ref.support_logprobs(z, behavior, t)
    own = golden.inputs["support_sampler_logprobs"]
    log_q = np.array([own[i][golden.inputs["support_ids"][i].index(token)] for i, token in enumerate(tokens)])
    of_support = np.where(inside, np.exp(full - log_mass[:, None]), 0)
    golden.check("logp_full_token", full[rows, tokens])
    golden.check("logP_S", log_mass)
    golden.check("logp_support_token", replayed.log_p_sampled)
    golden.check("ratio_full", np.exp(full[rows, tokens] - log_q))
    golden.check("ratio_replayed", np.exp(replayed.log_p_sampled - log_q))
    golden.check("drift_no_replay_if_q_equals_pS", (of_support - np.exp(full)) / t)
    again = np.zeros_like(z)
    again[behavior.row, behavior.ids] = np.exp(replayed.log_p)
    golden.check("drift_with_replay_if_q_equals_pS", (of_support - again) / t)


def ess(golden: Golden, run: Run) -> None:
    rows = run(Problem(golden), ref.Importance(None)).rows
    sequence = golden.array("sequence_of_token")
    for name in ("lag", "full"):
        ratios = np.asarray(rows.log_ratio(name))
        golden.check(f"token_{name}", ref.effective_sample_size(ratios))
        golden.check(f"seq_{name}", ref.effective_sample_size(ref.log_weights(ratios, sequence, "sequence")))
    golden.check("seq8", ref.effective_sample_size(golden.inputs["seq_log_weights_extra"]))
    golden.check("all_zero_weights", ref.effective_sample_size([-math.inf] * 3))
    huge = golden.expected["huge_log_weights_example"]
    assert golden.differs(huge["ess"], ref.effective_sample_size(huge["log_w"])) is None
    golden.seen.add("huge_log_weights_example")
    golden.check(
        "verl_clamped_token_full", ref.clamped_effective_sample_size(rows.log_ratio("full"), golden.inputs["verl_C"])
    )
    worst = [math.log(2.0) if i < 200 else -math.log(2.0) for i in range(1000)]
    golden.check("verl_lower_bound_C2", ref.effective_sample_size(worst))


def kl(golden: Golden, run: Run) -> None:
    problem = Problem(golden)
    t, behavior = problem.temperature, problem.behavior()
    p, s, q = (ref.log_softmax(z / t) for z in (problem.theta, problem.s, problem.logits("sampler_logits")))
    at = (np.arange(len(behavior)), behavior.tokens)
    for name, k in [("k1", ref.k1), ("k2", ref.k2), ("k3", ref.k3)]:
        golden.check(name, k((p - q)[at]))
        golden.check(f"expect_{name}_under_q", (np.exp(q) * k(p - q)).sum(1))
    golden.check("ref_k1", ref.k1((s - p)[at]))
    golden.check("ref_k3", ref.k3((s - p)[at]))
    weighted = ref.unbiased_k3(p, q, s)
    golden.check("ref_k3_is_weighted", weighted[at])
    golden.check("expect_is_weighted_ref_k3_under_q", (np.exp(q) * weighted).sum(1))
    rows = np.repeat(np.arange(len(p)), p.shape[1])
    golden.check("exact_kl_q_p", ref.exact_kl(q.ravel(), p.ravel(), rows, len(p)))
    golden.check("exact_kl_p_ref", ref.exact_kl(p.ravel(), s.ravel(), rows, len(p)))


def opsm(golden: Golden, run: Run) -> None:
    rows = run(Problem(golden), ref.Importance(None)).rows
    golden.check("mean_log_q_over_p", -np.asarray(ref.mean_log_ratio(rows, "full")))
    for delta, expected in golden.expected["keep"].items():
        assert golden.differs(expected, ref.Opsm(float(delta)).keep(rows)) is None, delta
    golden.seen.add("keep")


def verl_metrics(golden: Golden, run: Run) -> None:
    found = ref.off_policy(run(Problem(golden), ref.Importance(None)).rows)
    assert len(found) == len(golden.expected)
    for name, value in found.items():
        golden.check(name.removeprefix("rollout_corr/"), value)


def _clip(golden: Golden) -> ref.LagClip:
    """Erratum: `45_dlc_a_topp` states a lower bound of 0 and was computed with 0.3, the bound of its sister vectors."""
    low = golden.inputs["lag_clip_low"]
    if golden.name == "45_dlc_a_topp" and low == 0.0 and 0.3 in golden.expected["token_weight"]:
        low = 0.3
    return ref.LagClip(low, golden.inputs["lag_clip_high"])


def _terms(golden: Golden, result: Any) -> None:
    clip, rows = _clip(golden), result.rows
    lag, numeric = np.asarray(rows.log_ratio("lag")), np.asarray(rows.log_ratio("numeric"))
    for key in ("lag_support",):
        golden.check_if_given(key, lag)
    golden.check_if_given("numeric_support", numeric)
    golden.check_if_given("total_support", lag + numeric)
    golden.check_if_given("numeric_log_ratio_token", numeric)
    golden.check_if_given("lag_ratio_token", np.exp(lag))
    golden.check_if_given("lag_clipped_high", np.exp(lag) > clip.high)
    golden.check_if_given("lag_clipped_low", np.exp(lag) < clip.low)


def dlc(form: Any) -> Any:
    def check(golden: Golden, run: Run) -> None:
        problem = Problem(golden)
        result = run(problem, form(golden))
        check_corrected(golden, result)
        _terms(golden, result)
        heads(golden, problem)

    return check


def dlc_e(golden: Golden, run: Run) -> None:
    result = run(Problem(golden), ref.form_e(ppo_clip(golden)))
    check_corrected(golden, result)
    golden.check("active", np.asarray(result.correction.w) != 0)
    golden.check("ratio", np.exp(np.asarray(result.rows.log_ratio("lag"))))


def expected_gradient(golden: Golden, run: Run) -> None:
    problem, actions = Problem(golden), golden.inputs["action_values"]
    t, width = problem.temperature, problem.theta.shape[1]
    open_clip = ref.LagClip(0.0, math.inf)

    def expect(rule: Any, q: Any, s: Any) -> Any:
        log_q, total = ref.log_softmax(q / t), np.zeros_like(problem.theta)
        for v in range(width):
            rows = [(list(range(width)), row.tolist()) for row in log_q]
            drawn = Behavior.of_rows([v] * len(log_q), rows, t)
            gradient = np.asarray(
                run(problem, rule, behavior=drawn, advantages=[actions[v]] * len(log_q), sampler=s).gradient
            )
            total -= np.exp(log_q[:, v : v + 1]) * gradient
        return total

    q, s, p = problem.logits("sampler_logits"), problem.s, problem.theta
    rules = {
        "pg": ref.Importance(None),
        "is_full": ref.Importance("full"),
        "sc": ref.ScoreCentring(),
        "dlc_a": ref.form_a(open_clip),
        "dlc_b": ref.form_b(open_clip),
        "dlc_c": ref.WrongOnPurpose(open_clip, weighted=False),
    }
    found = {name: expect(rule, q, s) for name, rule in rules.items()}
    for name, value in found.items():
        golden.check(name, value)
    golden.check("on_policy", expect(rules["pg"], p, s))
    golden.check("dlc_a_minus_on_policy", found["dlc_a"] - expect(rules["pg"], p, s))
    golden.check("dlc_a_q_equals_ps", expect(rules["dlc_a"], s, s))
    golden.check("dlc_a_p_equals_ps", expect(rules["dlc_a"], q, p))


def trigger(golden: Golden, run: Run) -> None:
    watch = ref.Trigger("sequence", golden.inputs["threshold"])
    for case, expected in zip(golden.inputs["cases"], golden.expected["cases"]):
        report = ref.EssReport.of(case, range(len(case)))
        assert golden.differs(expected["ess"], report.sequence) is None
        assert watch.decide(report) is expected["resync"]
    golden.seen.add("cases")


def ess_levels(golden: Golden, run: Run) -> None:
    answers = golden.inputs["lag_log_ratio"]
    lags, sequence = np.concatenate(answers), ref.sequence_index([len(answer) for answer in answers])
    report = ref.EssReport.of(lags, sequence, golden.inputs["horizon"])
    golden.check("ess_token", report.token)
    golden.check("ess_sequence", report.sequence)
    golden.check("ess_horizon", report.horizon)
    golden.check(
        "ess_length_normalised", ref.effective_sample_size(ref.log_weights(lags, sequence, "length_normalised"))
    )
    golden.check("null_value", ref.EssReport.of(lags * 0, sequence).horizon)


def edge_cases(golden: Golden, run: Run) -> None:
    inputs = golden.inputs
    logits, a = golden.array("logits"), inputs["advantage"]
    one = Golden(
        golden.name, {"tokens": [0], "sequence_of_token": [0], "advantages": [a], "temperature": 1.0}, {}, [], "", 0, 0
    )
    problem = Problem(one)

    def centred(behavior: Behavior, rule: Any = ref.ScoreCentring()) -> tuple[float, Any]:
        result = run(problem, rule, behavior=behavior, theta=logits, sampler=logits)
        return float(np.asarray(result.per_token).sum()), np.asarray(result.gradient)[0]

    log_p = ref.log_softmax(logits)[0]
    _, gradient = centred(Behavior.of_rows([2], [([2], [0.0])]))
    golden.check("singleton_support_gradient", gradient)
    case = inputs["full_head"]
    log_q, token, width = np.log(case["q"][0]), case["token"], logits.shape[1]
    bare = -a * log_p[token]
    value, gradient = centred(Behavior.of_rows([token], [(list(range(width)), log_q.tolist())]))
    golden.check("full_head_exact_gradient", gradient)
    golden.check("full_head_exact_correction_value", (value - bare) / a)
    # A head of the whole vocabulary: both tails are floored, so that their ratio is 1.
    tail = Rest(np.array([width]), log_q[token : token + 1], np.array([math.log(1e-12)]))
    value, gradient = centred(Behavior(np.array([token]), np.array([0, width]), np.arange(width), log_q, tail).check())
    golden.check("full_head_gradient", gradient)
    golden.check("full_head_correction_value", (value - bare) / a)
    case = inputs["truncated_sampler_vs_full_vocab_tail_model"]
    q, token, head = np.array(case["q"]), case["token"], case["head_ids"]
    tail = Rest(np.array([width]), np.log(q[token : token + 1]), np.array([math.log(1e-12)]))
    _, modelled = centred(
        Behavior(np.array([token]), np.array([0, len(head)]), np.array(head), np.log(q[head]), tail).check()
    )
    golden.check("tail_model_on_truncated_gradient", modelled)
    # Centring over the vocabulary is what the vector calls exact here: q is 0 off the head, p is not.
    exact = -a * (np.eye(width)[token] - q - (1 - q.sum()) * np.exp(log_p))
    golden.check("tail_model_on_truncated_exact", exact)
    golden.check("tail_model_max_abs_error", np.abs(modelled - exact).max())
    must_error(golden, run)


HALF = math.log(0.5)


def _raises(error: Any, of: Any) -> bool:
    try:
        of()
    except error:
        return True
    return False


def must_error(golden: Golden, run: Run) -> None:
    support = lambda token, ids, log_q: lambda: Behavior.of_rows([token], [(ids, log_q)])  # noqa: E731
    good = Behavior.of_rows([1], [([1, 2], [HALF, HALF])])
    row = lambda a, b: SupportLogProbs(np.array([a, b]), np.array([a]), None)  # noqa: E731
    weigh = lambda theta, s: lambda: ref.form_a().weigh(ref.rows_of(good, theta, s, [1.0]))  # noqa: E731
    mass = 1 + 1.1e-4
    tail = Rest(np.array([9]), np.array([math.log(mass - 0.5)]), np.array([-30.0]))
    heavy = Behavior(np.array([1]), np.array([0, 2]), np.array([1, 2]), np.array([math.log(mass - 0.5), HALF]), tail)
    faults = {
        "sampled token not in recorded support": [(SampledOutside, support(9, [1, 2], [HALF, HALF]))],
        "non-finite sampler logprob on an unmasked row": [
            (NotALogProb, support(1, [1, 2], [bad, HALF])) for bad in (math.nan, -math.inf, math.inf)
        ],
        "positive logprob": [(NotALogProb, support(1, [1, 2], [1e-6, -20.0]))],
        "duplicate support ids": [(DuplicateId, support(1, [1, 1], [HALF, HALF]))],
        "sum of support probabilities differs from 1 by more than 1e-4 in exact-support mode": [
            (SupportMass, support(1, [1, 2], [HALF, math.log(0.5 + d)])) for d in (1.1e-4, -1.1e-4)
        ],
        "head mass > 1+1e-4": [(SupportMass, heavy.check)],
        "empty support on an unmasked row": [(EmptySupport, support(1, [], []))],
        "p_s missing while DLC requested": [(MissingScores, weigh(row(HALF, HALF), None))],
        "NaN ratio": [
            (NotANumber, weigh(row(math.nan, HALF), row(HALF, HALF))),
            (NotANumber, weigh(row(HALF, HALF), row(HALF, -math.inf))),
            (NotANumber, weigh(row(HALF, math.nan), row(HALF, HALF))),
        ],
    }
    for fault in golden.must_error:
        assert fault in faults, f"{golden.name}: no test for {fault!r}"
        assert all(_raises(error, of) for error, of in faults[fault]), f"{golden.name}: {fault} is not an error"


CHECKERS: dict[str, Any] = {
    "01": decomposition,
    "02": truncation,
    "03": centring_at_zero_lag,
    "04": score_centring,
    "05": score_centring,
    "06": centring_at_zero_lag,
    "07": score_centring,
    "08": score_centring,
    "09": score_centring,
    "10": score_centring,
    "11": score_centring,
    "12": centred_ppo,
    "13": pg,
    "14": importance,
    "15": importance,
    "16": tis_sequence,
    "17": icepop,
    "18": rejection,
    "19": rejection,
    "20": statistics,
    "21": ppo_lag,
    "22": ppo_full,
    "23": ppo_dual,
    "24": advantages,
    "25": reductions,
    "26": decoupled("recomputed"),
    "27": decoupled("loglinear"),
    "28": decoupled("linear"),
    "29": m2po,
    "29b": m2po_masks,
    "30": vcpo,
    "31": gspo,
    "31b": gspo,
    "32": cispo,
    "33": replay,
    "34": ess,
    "35": kl,
    "36": opsm,
    "37": verl_metrics,
    "38": dlc(lambda g: ref.form_a(_clip(g))),
    "39": dlc(lambda g: ref.form_b(_clip(g))),
    "40": dlc(lambda g: ref.WrongOnPurpose(_clip(g), weighted=False)),
    "41": dlc(lambda g: ref.WrongOnPurpose(_clip(g), weighted=True)),
    "42": dlc(lambda g: ref.form_f(_clip(g), g.inputs["numeric_cap"])),
    "43": dlc_e,
    "44": dlc(lambda g: ref.form_a(_clip(g), tail="collapsed")),
    "45": dlc(lambda g: ref.form_a(_clip(g))),
    "46": expected_gradient,
    "47": trigger,
    "48": edge_cases,
    "49": dlc(lambda g: ref.form_a(_clip(g), tail="p_s")),
    "50": ess_levels,
}
