use super::*;
use crate::{
    dlc::{Rule, weigh},
    rivals::fixture::batch,
    score::RowLogProbs,
    support::Support,
    token::TokenId,
};

const Q: [f64; 3] = [0.5, 0.3, 0.2];
const S: [f64; 3] = [0.45, 0.35, 0.2];
const THETA: [f64; 3] = [0.2, 0.3, 0.5];

fn ln(p: [f64; 3]) -> Vec<f64> {
    p.iter().map(|p| p.ln()).collect()
}

fn row(p: [f64; 3], at: usize) -> RowLogProbs {
    RowLogProbs { log_p: ln(p), log_p_sampled: p[at].ln(), log_rest: None }
}

/// The correction of token `at` under a method, with q, p_s and p_theta as given.
fn correct(method: Method, [q, s, theta]: [[f64; 3]; 3], (at, advantage): (usize, f64)) -> TokenCorrection {
    let ids = (0..3).map(TokenId).collect();
    let support = Support::exact(TokenId(at as u32), ids, ln(q)).unwrap();
    let (log_s, log_theta) = (row(s, at), row(theta, at));
    let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
    method.weigh(&position, advantage, Some(1.0)).unwrap()
}

/// `E_q[g]` at a constant advantage of 1: `sum_a q_a (w_a e_a - c - (w_a - sum c) p)`.
fn drift(method: Method, [q, s, theta]: [[f64; 3]; 3]) -> f64 {
    let mut mean = [0.0; 3];
    for at in 0..3 {
        let TokenCorrection { w, c, .. } = correct(method, [q, s, theta], (at, 1.0));
        let beta = w - c.iter().sum::<f64>();
        for v in 0..3 {
            let drawn = if v == at { w } else { 0.0 };
            mean[v] += q[at] * (drawn - c[v] - beta * theta[v]);
        }
    }
    mean.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn names_are_distinct_and_read_back() {
    for method in Method::ALL {
        assert_eq!(method.name().parse(), Ok(method));
    }
    let error = "dlc_z".parse::<Method>().unwrap_err().to_string();
    assert!(error.starts_with("there is no correction \"dlc_z\"; there are dlc_b, dlc_e"), "{error}");
}

#[test]
fn the_wrong_ones_drift_under_pure_lag_and_the_right_ones_do_not() {
    let (s, theta) = ([0.4, 0.35, 0.25], [0.3, 0.4, 0.3]);
    let lag = [s, s, theta];
    for right in [Method::DlcB, Method::DlcE, Method::DlcF, Method::Is, Method::Tis] {
        let drift = drift(right, lag);
        assert!(drift < 1e-12 || right == Method::DlcE && drift < 1e-9, "{right}: {drift}");
    }
    for wrong in [Method::WrongUnweightedCentring, Method::WrongWeightedCentring, Method::WrongLagAgainstQ] {
        assert!(drift(wrong, lag) > 0.05, "{wrong}: {}", drift(wrong, lag));
    }
}

#[test]
fn the_anchors_of_ppo_part_under_numeric_discrepancy_alone() {
    let numeric = [Q, [0.9, 0.05, 0.05], [0.9, 0.05, 0.05]];
    assert_eq!(correct(Method::PpoLag, numeric, (0, 1.0)).w, 1.0);
    assert_eq!(correct(Method::PpoFull, numeric, (0, 1.0)).w, 0.0);
    assert!(correct(Method::PpoFull, numeric, (0, -1.0)).w > 1.7);
}

#[test]
fn at_equal_weights_and_numbers_every_right_method_weighs_1() {
    let same = [Q, Q, Q];
    for method in Method::ALL.into_iter().filter(|method| !method.needs_batch()) {
        let w = correct(method, same, (1, 1.0)).w;
        assert!((w - 1.0).abs() < 1e-15, "{method}: {w}");
    }
}

#[test]
fn the_weights_of_known_ratios() {
    let cases = [(Method::Is, 2.5), (Method::Tis, 2.0), (Method::IcePop, 0.0), (Method::Mis, 2.5)];
    for (method, expected) in cases.into_iter().chain([(Method::Cispo, 1.28), (Method::PpoFull, 0.0)]) {
        let w = correct(method, [Q, S, THETA], (2, 1.0)).w;
        assert!((w - expected).abs() < 1e-12, "{method}: {w}");
    }
}

#[test]
fn a_method_that_weighs_by_the_batch_wants_one() {
    let ids = (0..3).map(TokenId).collect();
    let support = Support::exact(TokenId(0), ids, ln(Q)).unwrap();
    let (log_s, log_theta) = (row(S, 0), row(THETA, 0));
    let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
    for method in Method::ALL.into_iter().filter(|method| method.needs_batch()) {
        assert_eq!(method.weigh(&position, 1.0, None), Err(MethodError::Unprepared(method)));
        assert_eq!(method.weigh(&position, 1.0, Some(0.5)).unwrap().w, 0.5);
        assert!(method.prepare(&batch(&[(&[0.1, 0.2], 1.0)])).unwrap().w.is_some(), "{method}");
    }
    assert!(weigh(&position, &Rule::Method(Method::Is)).is_err(), "the rule alone has no advantage");
}

#[test]
fn a_batch_gives_sequence_weights_coefficients_and_a_rate() {
    let two = batch(&[(&[1.0, 1.0], 1.0), (&[-0.5], -1.0)]);
    let prepared = Method::TisSequence.prepare(&two).unwrap();
    let w = prepared.w.unwrap();
    assert_eq!(w[0], [2.0, 2.0]);
    assert!((w[1][0] - (-0.5f64).exp()).abs() < 1e-12);
    assert_eq!(prepared.coefficients, [vec![1.0 / 3.0; 2], vec![1.0 / 3.0]]);
    let vcpo = Method::Vcpo.prepare(&two).unwrap();
    assert_eq!(vcpo.coefficients, [vec![0.25; 2], vec![0.5]]);
    assert!(vcpo.rate < 1.0 && vcpo.rate > 0.7);
    assert_eq!(Method::Is.prepare(&two).unwrap().rate, 1.0);
}

#[test]
fn nan_and_infinite_ratios_are_errors() {
    let ids: Vec<TokenId> = (0..3).map(TokenId).collect();
    let support = Support::exact(TokenId(0), ids, ln(Q)).unwrap();
    let log_s = row(S, 0);
    for bad in [f64::NAN, f64::NEG_INFINITY] {
        let log_theta = RowLogProbs { log_p: vec![bad, -1.0, -1.0], log_p_sampled: bad, log_rest: None };
        let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
        for method in Method::ALL.into_iter().filter(|method| !method.needs_batch() && *method != Method::Centring) {
            assert!(method.weigh(&position, 1.0, None).is_err(), "{method} at {bad}");
        }
    }
}
