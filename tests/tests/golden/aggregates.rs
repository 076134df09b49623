//! Advantages, reductions, learning-rate scales, KL estimators, metrics.

use super::{
    compare::Golden,
    problem::{Row, batch, read, rows},
};
use lockstep_core::{
    dlc::statistics::exact_kl,
    rivals::{
        Cap, Ratio, Reduction,
        advantage::{Deviation, leave_one_out, relative},
        kl::{Penalty, k1, k2, k3, unbiased_k3},
        metrics::off_policy,
        vcpo::{RateRule, Scaling, Trajectory, advantages, baseline, ess},
    },
};
use serde_json::Value;

pub fn group_advantages(golden: &Golden) {
    let (rewards, groups): (Vec<f64>, Vec<usize>) = (read(&golden.inputs["rewards"]), read(&golden.inputs["group"]));
    let of = |deviation| relative(&rewards, &groups, deviation).unwrap();
    golden.check("verl_std", of(Deviation::VERL));
    golden.check("dr_grpo", of(Deviation::None));
    golden.check("population_std_eps1e6", of(Deviation::Population { epsilon: 1e-6 }));
    golden.check("rloo", leave_one_out(&rewards, &groups).unwrap());
}

pub fn reductions(golden: &Golden) {
    let tokens: Vec<f64> = read(&golden.inputs["per_token_loss"]);
    let of: Vec<usize> = read(&golden.inputs["sequence_of_token"]);
    let rows: usize = read(&golden.inputs["n_sequences_including_empty"]);
    let mut loss: Vec<Vec<f64>> = vec![vec![]; rows];
    tokens.iter().zip(of).for_each(|(token, sequence)| loss[sequence].push(*token));
    let mut mask: Vec<Vec<bool>> = loss.iter().map(|row| vec![true; row.len()]).collect();
    loss[rows - 1].push(9.0);
    mask[rows - 1].push(false);
    let length = read(&golden.inputs["L_max"]);
    for (key, reduction) in [
        ("token_mean", Reduction::TokenMean),
        ("seq_mean_token_mean", Reduction::SeqMeanTokenMean),
        ("seq_mean_token_sum", Reduction::SeqMeanTokenSum),
        ("verl_seq_mean_token_sum_norm", Reduction::SeqMeanTokenSumNorm { length }),
        ("trl_dr_grpo", Reduction::DrGrpo { max_length: length }),
    ] {
        golden.check(key, reduction.reduce(&loss, &mask));
    }
}

/// The vector was computed without the published code's guards of 1e-8.
pub fn vcpo(golden: &Golden) {
    let inputs = &golden.inputs;
    let read_all = |key: &str| read::<Vec<f64>>(&inputs[key]);
    let (log_weights, norms, rewards) = (read_all("seq_log_weights"), read_all("grad_norms"), read_all("rewards"));
    let n = log_weights.len() as f64;
    let found = ess(&log_weights, 0.0).unwrap();
    golden.check("ess", found);
    golden.check("ess_ratio", found / n);
    let scale = |rule: RateRule| rule.scale(found / n, read(&inputs["base_ess_ratio"]));
    golden.check("lr_scale_sqrt", scale(RateRule::Sqrt));
    golden.check("lr_scale_linear", scale(RateRule::Linear));
    golden.check("lr_sqrt", read::<f64>(&inputs["lr0"]) * scale(RateRule::Sqrt));
    let capped: Vec<f64> = log_weights.iter().map(|l| Cap::new(2.0).unwrap().truncate(l.exp()).ln()).collect();
    golden.check("ess_ratio_clipped_at_2", ess(&capped, 0.0).unwrap() / n);
    let group = |log_weight: &dyn Fn(usize) -> f64| -> Vec<Trajectory> {
        let one = |i: usize| Trajectory { log_weight: log_weight(i), gradient_norm: norms[i], reward: rewards[i] };
        (0..rewards.len()).map(one).collect()
    };
    let weighted = baseline(&group(&|i| log_weights[i]), 0.0).unwrap();
    golden.check("opob_baseline", weighted);
    golden.check("advantages", advantages(&rewards, weighted, Scaling::None));
    let unweighted = baseline(&group(&|_| 0.0), 0.0).unwrap();
    golden.check("opob_no_is", unweighted);
    let equal = baseline(&group(&|_| 0.7), 0.0).unwrap();
    golden.check("limit_equal_weights_baseline_is_gradnorm_weighted_mean", (equal - unweighted).abs() < 1e-12);
}

pub fn kl_estimators(golden: &Golden) {
    let rows = rows(golden);
    let each = |of: &dyn Fn(&Row, usize) -> f64| rows.iter().map(|row| of(row, row.sampled)).collect::<Vec<f64>>();
    let under_q = |of: &dyn Fn(&Row, usize) -> f64| -> Vec<f64> {
        let expected = |row: &Row| (0..row.vocabulary).map(|v| row.log_q[v].exp() * of(row, v)).sum();
        rows.iter().map(expected).collect()
    };
    let x = |row: &Row, v: usize| row.log_theta[v] - row.log_q[v];
    for (name, k) in [("k1", k1 as fn(f64) -> f64), ("k2", k2), ("k3", k3)] {
        golden.check(name, each(&|row, v| k(x(row, v))));
        golden.check(&format!("expect_{name}_under_q"), under_q(&|row, v| k(x(row, v))));
    }
    let penalty = |kind: Penalty| each(&|row, v| kind.of(row.log_theta[v], row.log_s[v]).unwrap().value);
    golden.check("ref_k1", penalty(Penalty::K1));
    golden.check("ref_k3", penalty(Penalty::K3));
    let weighted = |row: &Row, v: usize| unbiased_k3(row.log_theta[v], row.log_q[v], row.log_s[v]).unwrap();
    golden.check("ref_k3_is_weighted", each(&weighted));
    golden.check("expect_is_weighted_ref_k3_under_q", under_q(&weighted));
    let kl = |a: fn(&Row) -> &[f64], b: fn(&Row) -> &[f64]| -> Vec<f64> {
        rows.iter().map(|row| exact_kl((a(row), None), (b(row), None))).collect()
    };
    golden.check("exact_kl_q_p", kl(|row| &row.log_q, |row| &row.log_theta));
    golden.check("exact_kl_p_ref", kl(|row| &row.log_theta, |row| &row.log_s));
}

pub fn metrics(golden: &Golden) {
    let metrics = off_policy(&batch(golden, &rows(golden)), Ratio::Full).unwrap();
    let expected = golden.expected.as_object().unwrap();
    assert_eq!(metrics.len(), expected.len(), "{}: a metric is missing", golden.name);
    for (name, value) in metrics {
        golden.check(name.strip_prefix("rollout_corr/").unwrap(), Value::from(value));
    }
}
