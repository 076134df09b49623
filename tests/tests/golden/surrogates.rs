//! Rules with a surrogate of their own: PPO and what builds on it.

use super::{
    compare::Golden,
    problem::{Row, batch, read, rows},
};
use lockstep_core::{
    dlc::PpoClip,
    rivals::{
        Batch, Cap, Ratio, Reduction, Selection, Sequence,
        decoupled::{Proximal, Versions, behaviour_weight, decoupled},
        importance::importance,
        m2po,
        ppo::{DualClip, Ppo, Surrogate},
        sequence_ratio::{GSPO_REDUCTION, gspo, mean_log_ratio},
    },
};

fn clip(golden: &Golden) -> PpoClip {
    PpoClip::new(read(&golden.inputs["eps_low"]), read(&golden.inputs["eps_high"])).unwrap()
}

fn gradients(rows: &[Row], w: &[f64]) -> Vec<Vec<f64>> {
    rows.iter().zip(w).map(|(row, w)| row.weighted(*w).gradient).collect()
}

fn check(golden: &Golden, batch: &Batch, surrogate: &Surrogate) {
    golden.check("clipped", surrogate.clipped.concat());
    golden.check("dual_clipped", surrogate.dual_clipped.concat());
    golden.check("per_token_loss", surrogate.loss.concat());
    golden.check("loss_sum", surrogate.loss.iter().flatten().sum::<f64>());
    golden.check("clipfrac", surrogate.clip_fraction(batch).unwrap());
    golden.check("grad_logits_of_loss_sum", gradients(&rows(golden), &surrogate.w.concat()));
}

fn ppo(golden: &Golden, batch: &Batch, ratio: Ratio, dual: Option<DualClip>) {
    golden.check("ratio", batch.map(|token| ratio.log(token).exp()).concat());
    check(golden, batch, &Ppo { clip: clip(golden), dual }.surrogate(batch, ratio));
}

pub fn ppo_lag(golden: &Golden) {
    ppo(golden, &batch(golden, &rows(golden)), Ratio::Lag, None);
}

pub fn ppo_full(golden: &Golden) {
    ppo(golden, &batch(golden, &rows(golden)), Ratio::Full, None);
}

pub fn ppo_dual(golden: &Golden) {
    let denominators: Vec<f64> = read(&golden.inputs["log_denominator"]);
    let batch = with_log_s(&batch(golden, &rows(golden)), &denominators);
    ppo(golden, &batch, Ratio::Lag, Some(DualClip::new(read(&golden.inputs["c"])).unwrap()));
}

fn with_log_s(batch: &Batch, values: &[f64]) -> Batch {
    let mut values = values.iter().copied();
    let rows = batch.sequences().iter().map(|row| values.by_ref().take(row.len()).collect()).collect::<Vec<_>>();
    batch.with_log_s(&rows).unwrap()
}

pub fn decoupled_recomputed(golden: &Golden) {
    check_decoupled(golden, Proximal::Recomputed);
}

pub fn decoupled_loglinear(golden: &Golden) {
    check_decoupled(golden, Proximal::LogLinear);
}

pub fn decoupled_linear(golden: &Golden) {
    check_decoupled(golden, Proximal::Linear);
}

fn check_decoupled(golden: &Golden, proximal: Proximal) {
    let batch = batch(golden, &rows(golden));
    let theta = read(&golden.inputs["current_version"]);
    let mut sampled = read::<Vec<i64>>(&golden.inputs["versions"]).into_iter();
    let versions: Vec<Vec<Versions>> = batch
        .sequences()
        .iter()
        .map(|row| sampled.by_ref().take(row.len()).map(|sampled| Versions { sampled, theta }).collect())
        .collect();
    let log_p = proximal.of(&batch, &versions);
    let batch = batch.with_log_s(&log_p).unwrap();
    let cap = Cap::new(read(&golden.inputs["behav_cap"])).unwrap();
    let stated = |key: &str, found: Vec<f64>| {
        let difference = golden.differs(&golden.inputs[key], &found.into());
        assert_eq!(difference, None, "{}: {key}", golden.name);
    };
    stated("alpha", versions.concat().iter().map(|versions| versions.alpha()).collect());
    stated("prox_logp", log_p.concat());
    stated("behave_weight", behaviour_weight(&batch, cap).concat());
    golden.check("ratio", batch.map(|token| Ratio::Lag.log(token).exp()).concat());
    check(golden, &batch, &decoupled(&batch, &Ppo { clip: clip(golden), dual: None }, cap));
}

const FULL: Ratio = Ratio::Full;

/// `-M r A`, its value and its gradient.
fn m2po_loss(golden: &Golden, form: &str, selection: &Selection) {
    let rows = rows(golden);
    let batch = batch(golden, &rows);
    let w = importance(&batch, FULL, lockstep_core::rivals::Level::Token).within(selection).w.concat();
    let losses: Vec<f64> = rows.iter().zip(&w).map(|(row, w)| -w * row.scale.advantage).collect();
    golden.check_if_given(&format!("loss_sum_{form}"), losses.iter().sum::<f64>());
    golden.check(&format!("per_token_loss_{form}"), losses);
    golden.check(&format!("grad_logits_{form}"), gradients(&rows, &w));
}

fn mean_square(batch: &Batch, counts: impl Fn(usize) -> bool) -> f64 {
    let squares = batch.tokens().map(|token| FULL.log(token).powi(2)).enumerate();
    let counted: Vec<f64> = squares.filter(|(t, _)| counts(*t)).map(|(_, square)| square).collect();
    counted.iter().sum::<f64>() / counted.len() as f64
}

pub fn m2po(golden: &Golden) {
    let (batch, threshold) = (batch(golden, &rows(golden)), read(&golden.inputs["m2_threshold"]));
    let harmful = m2po_masks(golden, &batch, threshold);
    let areal = m2po::areal(&batch, FULL, threshold);
    golden.check("delta_sq", batch.map(|token| FULL.log(token).powi(2)).concat());
    golden.check("M2_all", mean_square(&batch, |_| true));
    golden.check("M2_harmful", mean_square(&batch, |t| harmful[t]));
    golden.check("M2_after_areal", mean_square(&batch, |t| areal.keep().concat()[t]));
    let harmful_only = m2po::harmful_only(&batch, FULL, threshold);
    golden.check("harmful_only_keep", harmful_only.keep().concat());
    m2po_loss(golden, "areal", &areal);
    m2po_loss(golden, "harmful", &harmful_only);
}

fn m2po_masks(golden: &Golden, batch: &Batch, threshold: f64) -> Vec<bool> {
    golden.check("areal_keep", m2po::areal(batch, FULL, threshold).keep().concat());
    let harmful = batch.map(|token| m2po::is_harmful(token, FULL)).concat();
    golden.check("harmful", harmful.clone());
    let official = |floor| m2po::official(batch, FULL, threshold, floor).unwrap();
    for (suffix, clip) in [("", official(m2po::MINICLIP)), ("_no_floor", official((0.0, 0.0)))] {
        golden.check_if_given(&format!("official_clip_low{suffix}"), 1.0 - clip.floor());
        golden.check_if_given(&format!("official_clip_high{suffix}"), clip.ceiling() - 1.0);
    }
    harmful
}

/// A sequence of given full log ratios.
fn of_ratios(log_ratios: &[f64], advantages: &[f64]) -> Batch {
    let log_q = vec![-2.0; log_ratios.len()];
    let log_theta: Vec<f64> = log_ratios.iter().map(|ratio| ratio - 2.0).collect();
    let mask = vec![true; log_ratios.len()];
    Batch::new(&[Sequence { log_theta: &log_theta, log_s: &log_q, log_q: &log_q, advantages, mask: &mask }]).unwrap()
}

pub fn m2po_of_ratios(golden: &Golden) {
    let threshold = read(&golden.inputs["m2_threshold"]);
    let (ratios, advantages): (Vec<f64>, Vec<f64>) =
        (read(&golden.inputs["log_ratio"]), read(&golden.inputs["advantages"]));
    m2po_masks(golden, &of_ratios(&ratios, &advantages), threshold);
    // The vector does not state the ratios behind this mask: any three beyond the threshold, the first the smallest.
    let beyond = m2po::areal(&of_ratios(&[0.5, 0.9, 0.7], &[1.0; 3]), FULL, threshold);
    golden.check("all_over_threshold_areal_keep", beyond.keep().concat());
}

pub fn sequence_ratios(golden: &Golden) {
    let rows = rows(golden);
    let batch = batch(golden, &rows);
    golden.check("seq_ratio", batch.per_sequence(|tokens| mean_log_ratio(tokens, Ratio::Lag).exp()));
    let surrogate = gspo(&batch, Ratio::Lag, &Ppo { clip: clip(golden), dual: None });
    golden.check("clipped", surrogate.clipped.iter().map(|row| row[0]).collect::<Vec<bool>>());
    golden.check("loss", GSPO_REDUCTION.reduce(&surrogate.loss, &batch.mask()));
    let counts = lockstep_core::rivals::reduction::Counts::of(&batch.mask());
    let coefficients = Reduction::coefficients(GSPO_REDUCTION, &batch.mask(), counts).concat();
    let w: Vec<f64> = surrogate.w.concat().iter().zip(coefficients).map(|(w, share)| w * share).collect();
    golden.check("grad_logits_of_loss", gradients(&rows, &w));
}
