//! The split into two terms, effective sample sizes, the trigger.

use super::{
    compare::Golden,
    problem::{Row, log_sum_exp, read, rows},
};
use lockstep_core::{
    TokenId,
    dlc::{
        Decision, EssLevel, EssReport, LagRatio, Trigger,
        decompose::{TokenLogProbs, decompose},
        ess::{clamped_effective_sample_size, effective_sample_size},
        resync::TriggerLevel,
        statistics::exact_kl,
        weigh::Position,
    },
    support::Sampled,
};

pub fn decomposition(golden: &Golden) {
    let rows = rows(golden);
    let all = |of: fn(&Row) -> Vec<f64>| rows.iter().map(of).collect::<Vec<Vec<f64>>>();
    golden.check("logp_theta", all(|row| row.log_theta.clone()));
    golden.check("logp_s", all(|row| row.log_s.clone()));
    golden.check("logq", all(|row| row.log_q.clone()));
    let (lag, numeric) = terms(&rows);
    let total = lag.iter().zip(&numeric).map(|(lag, numeric)| lag + numeric);
    golden.check("total", total.collect::<Vec<f64>>());
    golden.check("lag", lag);
    golden.check("numeric", numeric);
    let kl = |a: fn(&Row) -> &[f64], b: fn(&Row) -> &[f64]| {
        rows.iter().map(|row| exact_kl((a(row), None), (b(row), None))).collect::<Vec<f64>>()
    };
    golden.check("kl_q_ps", kl(|row| &row.log_q, |row| &row.log_s));
    golden.check("kl_q_ptheta", kl(|row| &row.log_q, |row| &row.log_theta));
    golden.check("kl_ps_ptheta", kl(|row| &row.log_s, |row| &row.log_theta));
    golden.check("kl_ptheta_ps", kl(|row| &row.log_theta, |row| &row.log_s));
}

fn terms(rows: &[Row]) -> (Vec<f64>, Vec<f64>) {
    let terms = rows.iter().map(|row| {
        let (support, log_s, log_theta) = (row.support(), row.log_probs(&row.log_s), row.log_probs(&row.log_theta));
        let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
        let (lag, numeric) = position.decompose().unwrap();
        (lag.log(), numeric.log())
    });
    terms.unzip()
}

fn lags(log_ratios: &[f64]) -> Vec<LagRatio> {
    let token =
        |&log_theta: &f64| TokenLogProbs { log_theta, log_s: 0.0, sampled: Sampled { token: TokenId(0), log_q: 0.0 } };
    log_ratios.iter().map(|ratio| decompose(token(ratio)).unwrap().0).collect()
}

/// Splits a run of tokens into its sequences.
fn sequences(golden: &Golden, tokens: &[f64]) -> Vec<Vec<LagRatio>> {
    let of: Vec<usize> = read(&golden.inputs["sequence_of_token"]);
    let count = of.iter().max().map_or(0, |last| last + 1);
    let sequence =
        |i: usize| tokens.iter().zip(&of).filter(|(_, of)| **of == i).map(|(token, _)| *token).collect::<Vec<f64>>();
    (0..count).map(|i| lags(&sequence(i))).collect()
}

pub fn ess(golden: &Golden) {
    let (lag, numeric) = terms(&rows(golden));
    let full: Vec<f64> = lag.iter().zip(&numeric).map(|(lag, numeric)| lag + numeric).collect();
    let at = |level: EssLevel, ratios: &[f64]| level.ess(&sequences(golden, ratios)).unwrap();
    golden.check("token_lag", at(EssLevel::Token, &lag));
    golden.check("token_full", at(EssLevel::Token, &full));
    golden.check("seq_lag", at(EssLevel::Sequence, &lag));
    golden.check("seq_full", at(EssLevel::Sequence, &full));
    let ess = |log_weights: &[f64]| effective_sample_size(log_weights).unwrap();
    golden.check("seq8", ess(&read::<Vec<f64>>(&golden.inputs["seq_log_weights_extra"])));
    golden.check("all_zero_weights", ess(&[f64::NEG_INFINITY; 3]));
    let huge = &golden.expected["huge_log_weights_example"];
    let difference = golden.differs(&huge["ess"], &ess(&read::<Vec<f64>>(&huge["log_w"])).into());
    assert_eq!(difference, None, "{}: huge weights", golden.name);
    // What clamping first makes of it, and why such an ESS cannot trigger: it never falls below 4 / (C + 1/C)^2.
    let clamped = clamped_effective_sample_size(&full, read(&golden.inputs["verl_C"]));
    golden.check("verl_clamped_token_full", clamped.unwrap());
    golden.check("verl_lower_bound_C2", ess(&worst_clamped(2.0)));
}

/// The clamped weights of smallest ESS: a share of them at C, the others at 1/C.
fn worst_clamped(c: f64) -> Vec<f64> {
    let of_ones = (1.0 / (1.0 + c * c) * 1000.0).round() as usize;
    (0..1000).map(|i| if i < of_ones { c.ln() } else { -c.ln() }).collect()
}

pub fn trigger(golden: &Golden) {
    let cases: Vec<Vec<f64>> = read(&golden.inputs["cases"]);
    let trigger =
        Trigger { level: TriggerLevel::Sequence, threshold: read(&golden.inputs["threshold"]), ..Trigger::default() };
    for (i, case) in cases.iter().enumerate() {
        let expected = &golden.expected["cases"][i];
        let answers: Vec<Vec<LagRatio>> = case.iter().map(|sum| lags(&[*sum])).collect();
        let report = EssReport::of(&answers, trigger.horizon).unwrap();
        assert_eq!(golden.differs(&expected["ess"], &report.sequence.into()), None, "{}: case {i}", golden.name);
        let resync = trigger.decide(&report, None) == Decision::Resync;
        assert_eq!(expected["resync"], resync, "{}: case {i}", golden.name);
    }
}

pub fn ess_levels(golden: &Golden) {
    let answers: Vec<Vec<f64>> = read(&golden.inputs["lag_log_ratio"]);
    let answers: Vec<Vec<LagRatio>> = answers.iter().map(|answer| lags(answer)).collect();
    let horizon: u32 = read(&golden.inputs["horizon"]);
    let report = EssReport::of(&answers, horizon).unwrap();
    golden.check("ess_token", report.token);
    golden.check("ess_sequence", report.sequence);
    golden.check("ess_horizon", report.horizon);
    golden.check("ess_length_normalised", EssLevel::LengthNormalised.ess(&answers).unwrap());
    let null: Vec<Vec<LagRatio>> = answers.iter().map(|answer| lags(&vec![0.0; answer.len()])).collect();
    golden.check("null_value", EssReport::of(&null, horizon).unwrap().horizon);
    let sum = log_sum_exp(answers.iter().flatten().map(|lag| lag.log()));
    assert!(sum.is_finite());
}
