//! Rules that weigh or mask the drawn tokens, without centring.

use super::{
    compare::Golden,
    problem::{Row, batch, log_softmax, read, rows},
};
use lockstep_core::{
    TokenId,
    dlc::PpoClip,
    rivals::{
        Band, Batch, Cap, Level, Ratio, Selection, Weights,
        cispo::cispo,
        importance::{importance, masked, policy_gradient, truncated},
        rejection::{Criterion, reject},
        replay::keep_sampling_mask,
        sequence_ratio::{mean_log_ratio, off_policy_mask},
    },
};
use serde_json::Value;

/// The full ratio: `p / q`, as the vectors of these rules state it.
const FULL: Ratio = Ratio::Full;

/// Weights, mask, losses and gradients of a rule; returns the batch for what else a vector gives.
fn check(golden: &Golden, of: impl Fn(&Batch) -> (Weights, Selection)) -> Batch {
    let rows = rows(golden);
    let batch = batch(golden, &rows);
    let (weights, selection) = of(&batch);
    golden.check("weights", weights.w.concat());
    let mask: Vec<u8> = selection.keep().concat().into_iter().map(u8::from).collect();
    golden.check("effective_mask", mask);
    check_losses(golden, &rows, &weights.within(&selection).w.concat());
    batch
}

/// `-A w log p` and its gradients.
fn check_losses(golden: &Golden, rows: &[Row], w: &[f64]) {
    let corrected: Vec<_> = rows.iter().zip(w).map(|(row, w)| row.weighted(*w)).collect();
    golden.check("per_token_loss", corrected.iter().map(|row| row.loss).collect::<Vec<f64>>());
    golden.check("loss_sum", corrected.iter().map(|row| row.loss).sum::<f64>());
    golden.check("grad_logits_of_loss_sum", corrected.into_iter().map(|row| row.gradient).collect::<Vec<_>>());
}

fn cap(golden: &Golden) -> Cap {
    Cap::new(read(&golden.inputs["C"])).unwrap()
}

fn ratios(batch: &Batch) -> Vec<f64> {
    batch.tokens().map(|token| FULL.log(token).exp()).collect()
}

pub fn pg(golden: &Golden) {
    check(golden, |batch| (policy_gradient(batch), Selection::everything(batch)));
}

pub fn is(golden: &Golden) {
    check(golden, |batch| (importance(batch, FULL, Level::Token), Selection::everything(batch)));
}

pub fn tis(golden: &Golden) {
    let cap = cap(golden);
    let batch = check(golden, |batch| (truncated(batch, FULL, (Level::Token, cap)), Selection::everything(batch)));
    golden.check("clipped", ratios(&batch).iter().map(|r| *r > cap.value()).collect::<Vec<bool>>());
    golden.check("raw_ratio", ratios(&batch));
}

pub fn tis_sequence(golden: &Golden) {
    let cap = cap(golden);
    let batch = check(golden, |batch| (truncated(batch, FULL, (Level::Sequence, cap)), Selection::everything(batch)));
    let sums = batch.per_sequence(|tokens| tokens.iter().map(|token| FULL.log(token)).sum::<f64>());
    golden.check("raw_seq_ratio", sums.iter().map(|sum| sum.exp()).collect::<Vec<f64>>());
    golden.check("seq_log_ratio", sums);
}

pub fn icepop(golden: &Golden) {
    let band = Band::new(read(&golden.inputs["lo"]), read(&golden.inputs["hi"])).unwrap();
    let batch = check(golden, |batch| (masked(batch, FULL, band), Selection::everything(batch)));
    golden.check("inside", ratios(&batch).iter().map(|r| band.contains(*r)).collect::<Vec<bool>>());
}

fn criterion(golden: &Golden) -> Criterion {
    let text = |key: &str| golden.inputs[key].as_str().unwrap();
    Criterion::parse(text("rs"), text("rs_threshold")).unwrap()
}

fn statistic(batch: &Batch, criterion: &Criterion) -> Vec<f64> {
    batch.per_sequence(|tokens| criterion.of_sequence(tokens, FULL).unwrap())
}

pub fn mis_sequence(golden: &Golden) {
    let (cap, criterion) = (cap(golden), criterion(golden));
    let of = |batch: &Batch| (truncated(batch, FULL, (Level::Sequence, cap)), reject(batch, FULL, &[criterion]));
    golden.check("seq_k1", statistic(&check(golden, of), &criterion));
}

pub fn geometric(golden: &Golden) {
    let criterion = criterion(golden);
    let batch = check(golden, |batch| (policy_gradient(batch), reject(batch, FULL, &[criterion])));
    golden.check("seq_mean_k1", statistic(&batch, &criterion));
    golden.check("geo_mean_ratio", batch.per_sequence(|tokens| mean_log_ratio(tokens, FULL).exp()));
}

pub fn rejection_statistics(golden: &Golden) {
    let batch = batch(golden, &rows(golden));
    golden.check("log_ratio", batch.map(|token| FULL.log(token)).concat());
    for (key, value) in golden.expected.as_object().unwrap() {
        let Ok(criterion) = Criterion::parse(key, "1") else { continue };
        let per_token = batch.map(|token| criterion.statistic.of_log(FULL.log(token))).concat();
        let of_token = value.as_array().unwrap().len() == per_token.len();
        golden.check(key, if of_token { per_token } else { statistic(&batch, &criterion) });
    }
}

pub fn cispo_weights(golden: &Golden) {
    let clip = PpoClip::new(read(&golden.inputs["eps_low"]), read(&golden.inputs["eps_high"])).unwrap();
    let batch = check(golden, |batch| (cispo(batch, FULL, clip), Selection::everything(batch)));
    let clipped: Vec<bool> = ratios(&batch).iter().map(|r| clip.clip(*r) != *r).collect();
    golden.check("clipped", clipped);
}

pub fn off_policy_sequences(golden: &Golden) {
    let batch = batch(golden, &rows(golden));
    golden.check("mean_log_q_over_p", batch.per_sequence(|tokens| -mean_log_ratio(tokens, FULL)));
    let keep = golden.expected["keep"].as_object().unwrap();
    let deltas: Vec<f64> = read(&golden.inputs["delta"]);
    assert_eq!(keep.len(), deltas.len(), "{}: a delta is missing", golden.name);
    for (delta, expected) in keep {
        let selection = off_policy_mask(&batch, FULL, delta.parse().unwrap());
        let found: Vec<bool> = selection.keep().iter().map(|row| row[0]).collect();
        assert_eq!(golden.differs(expected, &found.into()), None, "{}: delta {delta}", golden.name);
    }
}

/// p over the recorded support, and the drift that the vocabulary's p would leave.
pub fn replay(golden: &Golden) {
    let inputs = &golden.inputs;
    let logits: Vec<Vec<f64>> = read(&inputs["trainer_logits"]);
    let (supports, log_q): (Vec<Vec<usize>>, Vec<Vec<f64>>) =
        (read(&inputs["support_ids"]), read(&inputs["support_sampler_logprobs"]));
    let (tokens, temperature): (Vec<usize>, f64) = (read(&inputs["tokens"]), read(&inputs["temperature"]));
    let mut columns: [Vec<Value>; 7] = Default::default();
    for (t, support) in supports.iter().enumerate() {
        let full = log_softmax(&logits[t], temperature, &(0..logits[t].len()).collect::<Vec<_>>());
        let kept: Vec<TokenId> = support.iter().map(|&id| TokenId(id as u32)).collect();
        let replayed = keep_sampling_mask(&full, &kept, TokenId(tokens[t] as u32)).unwrap();
        let own_log_q = log_q[t][support.iter().position(|&id| id == tokens[t]).unwrap()];
        let mut of_support = vec![0.0; full.len()];
        support.iter().zip(&replayed.log_p).for_each(|(&id, log_p)| of_support[id] = log_p.exp());
        let drift = |p: &[f64]| of_support.iter().zip(p).map(|(q, p)| (q - p) / temperature).collect::<Vec<f64>>();
        let vocabulary: Vec<f64> = full.iter().map(|log_p| log_p.exp()).collect();
        let row: [Value; 7] = [
            full[tokens[t]].into(),
            replayed.log_mass.into(),
            replayed.log_p_sampled.into(),
            (full[tokens[t]] - own_log_q).exp().into(),
            (replayed.log_p_sampled - own_log_q).exp().into(),
            drift(&vocabulary).into(),
            drift(&of_support).into(),
        ];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    let keys = [
        "logp_full_token",
        "logP_S",
        "logp_support_token",
        "ratio_full",
        "ratio_replayed",
        "drift_no_replay_if_q_equals_pS",
        "drift_with_replay_if_q_equals_pS",
    ];
    keys.into_iter().zip(columns).for_each(|(key, column)| golden.check(key, column));
}
