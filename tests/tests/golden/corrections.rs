//! Score centring and DLC in form A: weights, coefficients, loss and gradient.

use super::{
    compare::Golden,
    problem::{Corrected, Row, log_softmax, read, rows},
};
use lockstep_core::{
    Support, SupportLogProbs, TokenId,
    dlc::{
        LagClip, Rule, TailModel,
        decompose::{TokenLogProbs, decompose},
        loss::{DomainRow, Scale, loss},
        weigh,
        weigh::{Position, TAIL_FLOOR, TailTerm, TokenCorrection},
    },
    score::RowLogProbs,
    support::{Domain, Reported, Sampled},
};
use serde_json::{Value, json};

/// Plain score centring is DLC-A at zero lag: p_s := p_theta makes every weight 1.
pub fn score_centring(golden: &Golden) {
    let mut rows = rows(golden);
    rows.iter_mut().for_each(|row| row.log_s = row.log_theta.clone());
    let rule = Rule::Dlc { lag_clip: LagClip::default(), tail: TailModel::Collapsed };
    let corrected = check_rows(golden, &rows, &rule);
    let gradients = corrected.iter().map(|row| row.gradient.clone()).collect::<Vec<_>>();
    golden.check_if_given("identity_grad", gradients);
    tails(golden, &rows, &rule);
}

/// DLC-A over what the vector records: the vocabulary, kept ids, or a head with either model of its tail.
pub fn dlc_a(golden: &Golden) {
    let clip = LagClip::new(lag_clip_low(golden), read(&golden.inputs["lag_clip_high"])).unwrap();
    let on_p_s = golden.expected.get("q_tail_mass").is_some();
    let tail = if on_p_s { TailModel::SamplerWeights } else { TailModel::Collapsed };
    let rule = Rule::Dlc { lag_clip: clip, tail };
    let rows = rows(golden);
    check_rows(golden, &rows, &rule);
    tails(golden, &rows, &rule);
    terms(golden, &rows, clip);
}

/// The lower bound a vector was computed with.
///
/// Erratum: `45_dlc_a_topp` as published states 0.0, but its weights are clipped from below at 0.3 (token 4: ratio 0.2596,
/// weight 0.3), the bound of its sister vectors. Where a weight stands at exactly 0.3 above a stated 0, 0.3 is meant.
fn lag_clip_low(golden: &Golden) -> f64 {
    let stated: f64 = read(&golden.inputs["lag_clip_low"]);
    let weights: Vec<f64> = read(&golden.expected["token_weight"]);
    let erratum = golden.name == "45_dlc_a_topp" && stated == 0.0 && weights.contains(&0.3);
    if erratum {
        println!("{}: states lag_clip_low 0, but was computed with 0.3", golden.name);
    }
    if erratum { 0.3 } else { stated }
}

fn check_rows(golden: &Golden, rows: &[Row], rule: &Rule) -> Vec<Corrected> {
    let corrected: Vec<Corrected> = rows.iter().map(|row| row.correct(rule)).collect();
    check_corrected(golden, &corrected);
    corrected
}

/// Weights, coefficients, losses and gradients of every position.
pub fn check_corrected(golden: &Golden, corrected: &[Corrected]) {
    let all = |of: fn(&Corrected) -> Value| corrected.iter().map(of).collect::<Vec<Value>>();
    golden.check("token_weight", all(|row| row.weight.into()));
    golden.check("centring_coefficients", all(|row| row.centring.clone().into()));
    golden.check("per_token_loss", all(|row| row.loss.into()));
    golden.check("grad_logits_of_loss_sum", all(|row| row.gradient.clone().into()));
    let sum: f64 = corrected.iter().map(|row| row.loss).sum();
    golden.check("loss_sum", sum);
    golden.check_if_given("loss_token_mean", sum / corrected.len() as f64);
}

/// Masses of heads and tails, where the vector gives them.
fn tails(golden: &Golden, rows: &[Row], rule: &Rule) {
    let Rule::Dlc { lag_clip, .. } = *rule else { return };
    let rest = |row: &Row, log_p: &[f64]| row.log_rest(log_p).map(f64::exp);
    let masses = |of: fn(&Row) -> &[f64]| rows.iter().filter_map(|row| rest(row, of(row))).collect::<Vec<f64>>();
    let (q, s, theta) = (masses(|row| &row.log_q), masses(|row| &row.log_s), masses(|row| &row.log_theta));
    if q.is_empty() {
        return;
    }
    golden.check_if_given("q_tail_mass", q.clone());
    let heads = |tails: &[f64]| tails.iter().map(|tail| 1.0 - tail).collect::<Vec<f64>>();
    golden.check_if_given("p_head_mass", heads(&theta));
    golden.check_if_given("q_head_mass", heads(&q));
    let at_zero_lag = s == theta;
    if !at_zero_lag {
        golden.check_if_given("ps_head_mass", heads(&s));
    }
    let rho: Vec<f64> = q.iter().zip(&theta).map(|(q, p)| q / p).collect();
    let weight = |(p, s): (&f64, &f64)| lag_clip.weight(lag((p / s).ln()));
    let alpha = rho.iter().zip(theta.iter().zip(&s).map(weight)).map(|(rho, w)| rho * w);
    golden.check_if_given("rho", rho.clone());
    golden.check_if_given("alpha", alpha.collect::<Vec<f64>>());
}

fn lag(log_ratio: f64) -> lockstep_core::dlc::LagRatio {
    let sampled = Sampled { token: TokenId(0), log_q: 0.0 };
    decompose(TokenLogProbs { log_theta: log_ratio, log_s: 0.0, sampled }).unwrap().0
}

/// The two terms of the drawn tokens and which of them the clip changed.
fn terms(golden: &Golden, rows: &[Row], clip: LagClip) {
    let terms = rows.iter().map(|row| {
        let (support, log_s, log_theta) = (row.support(), row.log_probs(&row.log_s), row.log_probs(&row.log_theta));
        Position { support: &support, log_s: &log_s, log_theta: &log_theta }.decompose().unwrap()
    });
    let (lags, numeric): (Vec<_>, Vec<_>) = terms.unzip();
    let log = |lags: &[lockstep_core::dlc::LagRatio]| lags.iter().map(|lag| lag.log()).collect::<Vec<f64>>();
    let numeric: Vec<f64> = numeric.iter().map(|numeric| numeric.log()).collect();
    golden.check_if_given("lag_support", log(&lags));
    golden.check_if_given("numeric_support", numeric.clone());
    golden.check_if_given("total_support", log(&lags).iter().zip(&numeric).map(|(l, n)| l + n).collect::<Vec<f64>>());
    golden.check_if_given("numeric_log_ratio_token", numeric);
    golden.check_if_given("lag_ratio_token", log(&lags).iter().map(|lag| lag.exp()).collect::<Vec<f64>>());
    let clipped = |high: bool| lags.iter().map(move |lag| clip.is_active(*lag) && (lag.log() > 0.0) == high);
    golden.check_if_given("lag_clipped_high", clipped(true).collect::<Vec<bool>>());
    golden.check_if_given("lag_clipped_low", clipped(false).collect::<Vec<bool>>());
}

/// Singletons, heads that fill the vocabulary, a truncated q under a tail model; and what must be an error.
pub fn edge_cases(golden: &Golden) {
    let logits: Vec<f64> = read(&golden.inputs["logits"][0]);
    let scale = Scale { advantage: read(&golden.inputs["advantage"]), temperature: 1.0 };
    let log_theta = log_softmax(&logits, 1.0, &(0..logits.len()).collect::<Vec<_>>());
    singleton(golden, scale);
    full_head(golden, &log_theta, scale);
    tail_on_truncated(golden, &log_theta, scale);
    must_error(golden);
}

/// The only choice: w = c = p = 1, and nothing to learn.
fn singleton(golden: &Golden, scale: Scale) {
    let (zero, mut gradient) = ([0.0], vec![0.0]);
    let row = DomainRow { log_theta: &zero, log_s: &zero, known: &[0], sampled: 0 };
    loss(&row, &TokenCorrection { w: 1.0, c: vec![1.0], tail: None }, scale, &mut gradient);
    let vocabulary = golden.expected["singleton_support_gradient"].as_array().unwrap().len();
    golden.check("singleton_support_gradient", vec![gradient[0]; vocabulary]);
}

/// Score centring of one token over a head of the vocabulary.
struct Centred<'a> {
    log_theta: &'a [f64],
    q: &'a [f64],
    token: usize,
    scale: Scale,
}

impl Centred<'_> {
    /// Loss and gradient; with a mass of q off the head, the tail is collapsed.
    fn over(&self, head: &[usize], q_rest: Option<f64>) -> (f64, Vec<f64>) {
        let Self { log_theta, q, token, scale } = *self;
        let p = |at: &usize| log_theta[*at].exp();
        let mut c: Vec<f64> = head.iter().map(|&at| q[at]).collect();
        if let Some(q_rest) = q_rest {
            let p_rest = 1.0 - head.iter().map(p).sum::<f64>();
            let alpha = q_rest.max(TAIL_FLOOR) / p_rest.max(TAIL_FLOOR);
            c.iter_mut().zip(head).for_each(|(c, at)| *c -= alpha * p(at));
        }
        let mut gradient = vec![0.0; log_theta.len()];
        let row = DomainRow { log_theta, log_s: log_theta, known: head, sampled: token };
        let value = loss(&row, &TokenCorrection { w: 1.0, c, tail: None }, scale, &mut gradient);
        (value, gradient)
    }
}

fn full_head(golden: &Golden, log_theta: &[f64], scale: Scale) {
    let case = &golden.inputs["full_head"];
    let (q, token): (Vec<f64>, usize) = (read(&case["q"][0]), read(&case["token"]));
    let head: Vec<usize> = (0..q.len()).collect();
    let centred = Centred { log_theta, q: &q, token, scale };
    let bare = -scale.advantage * log_theta[token];
    let (value, gradient) = centred.over(&head, Some(0.0));
    golden.check("full_head_gradient", gradient);
    golden.check("full_head_correction_value", (value - bare) / scale.advantage);
    let (value, gradient) = centred.over(&head, None);
    golden.check("full_head_exact_gradient", gradient);
    golden.check("full_head_exact_correction_value", (value - bare) / scale.advantage);
}

fn tail_on_truncated(golden: &Golden, log_theta: &[f64], scale: Scale) {
    let case = &golden.inputs["truncated_sampler_vs_full_vocab_tail_model"];
    let (q, token): (Vec<f64>, usize) = (read(&case["q"]), read(&case["token"]));
    let centred = Centred { log_theta, q: &q, token, scale };
    let (_, modelled) = centred.over(&read::<Vec<usize>>(&case["head_ids"]), Some(0.0));
    let (_, exact) = centred.over(&(0..q.len()).collect::<Vec<_>>(), None);
    let error = modelled.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    golden.check("tail_model_on_truncated_gradient", modelled);
    golden.check("tail_model_on_truncated_exact", exact);
    golden.check("tail_model_max_abs_error", error);
}

/// Each fault the vector names is refused.
fn must_error(golden: &Golden) {
    let exact = |token: u32, ids: &[u32], log_q: &[f64]| {
        Support::exact(TokenId(token), ids.iter().copied().map(TokenId).collect(), log_q.to_vec()).is_err()
    };
    let half = 0.5f64.ln();
    for fault in &golden.must_error {
        let refused = match fault.as_str() {
            "sampled token not in recorded support" => exact(9, &[1, 2], &[half, half]),
            "non-finite sampler logprob on an unmasked row" => {
                [f64::NAN, f64::NEG_INFINITY, f64::INFINITY].iter().all(|&bad| exact(1, &[1, 2], &[bad, half]))
            }
            "positive logprob" => exact(1, &[1, 2], &[1e-6, -20.0]),
            "duplicate support ids" => exact(1, &[1, 1], &[half, half]),
            "sum of support probabilities differs from 1 by more than 1e-4 in exact-support mode" => {
                exact(1, &[1, 2], &[half, (0.5f64 - 1.1e-4).ln()]) && exact(1, &[1, 2], &[half, (0.5f64 + 1.1e-4).ln()])
            }
            "head mass > 1+1e-4" => head_mass(1.0 + 1.1e-4),
            "empty support on an unmasked row" => exact(1, &[], &[]),
            "p_s missing while DLC requested" => p_s_missing(),
            "NaN ratio" => nan_ratio(),
            other => panic!("{}: no test for {other:?}", golden.name),
        };
        assert!(refused, "{}: {fault} is not an error", golden.name);
    }
}

fn head_mass(mass: f64) -> bool {
    let ids = vec![TokenId(1), TokenId(2)];
    let log_q = vec![(mass - 0.5).ln(), 0.5f64.ln()];
    let reported = Reported { ids, log_q: log_q.clone(), log_rest: Some(-30.0), domain: Domain::Vocabulary(9) };
    Support::new(Sampled { token: TokenId(1), log_q: log_q[0] }, reported).is_err()
}

fn p_s_missing() -> bool {
    let half = 0.5f64.ln();
    let support = Support::exact(TokenId(1), vec![TokenId(1), TokenId(2)], vec![half, half]).unwrap();
    let log_theta = RowLogProbs { log_p: vec![half, half], log_p_sampled: half, log_rest: None };
    let nothing = RowLogProbs { log_p: vec![], log_p_sampled: half, log_rest: None };
    let position = Position { support: &support, log_s: &nothing, log_theta: &log_theta };
    let mut behavior = lockstep_core::BehaviorDistribution::default();
    behavior.push(&support);
    weigh(&position, &Rule::dlc()).is_err() && SupportLogProbs::default().check(&behavior).is_err()
}

fn nan_ratio() -> bool {
    let half = 0.5f64.ln();
    let support = Support::exact(TokenId(1), vec![TokenId(1), TokenId(2)], vec![half, half]).unwrap();
    let row = |log_p: [f64; 2]| RowLogProbs { log_p: log_p.to_vec(), log_p_sampled: log_p[0], log_rest: None };
    let refused = |log_s: [f64; 2], log_theta: [f64; 2]| {
        let (log_s, log_theta) = (row(log_s), row(log_theta));
        weigh(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, &Rule::dlc()).is_err()
    };
    let infinite = f64::NEG_INFINITY;
    refused([half, half], [f64::NAN, half])
        && refused([half, infinite], [half, half])
        && refused([half, half], [half, f64::NAN])
}

#[test]
fn a_tail_term_covers_every_entry_off_the_head() {
    let half = 0.5f64.ln();
    let tail = TailTerm { scale: 0.5, clip: LagClip::default() };
    let row = DomainRow { log_theta: &[half, half], log_s: &[half, half], known: &[1], sampled: 0 };
    let correction = TokenCorrection { w: 1.0, c: vec![0.25], tail: Some(tail) };
    let centring = lockstep_core::dlc::loss::dense_centring(&row, &correction);
    assert_eq!(json!(centring), json!([0.25, 0.25]));
}
