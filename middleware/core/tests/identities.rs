//! Identities of DLC in form A on random problems: exact for one prefix, by enumeration over the vocabulary, in f64.

#![expect(clippy::unwrap_used, reason = "a problem that cannot be stated ends its test")]

use lockstep_core::{
    Support, TokenId,
    dlc::{
        LagClip, Rule, TailModel, TokenCorrection,
        loss::{DomainRow, Scale, loss},
        weigh,
        weigh::Position,
    },
    score::RowLogProbs,
    support::{Domain, Reported, Sampled},
};
use proptest::prelude::*;

const V: usize = 12;

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normaliser = max + logits.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    logits.iter().map(|z| (z - normaliser).min(0.0)).collect()
}

fn distribution(spread: f64) -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(-spread..spread, V).prop_map(|logits| log_softmax(&logits))
}

/// Three distributions that differ by little or by a lot, with ties.
fn problem() -> impl Strategy<Value = [Vec<f64>; 3]> {
    let three = || [distribution(8.0), distribution(8.0), distribution(8.0)];
    prop_oneof![
        three(),
        [distribution(0.01), distribution(0.01), distribution(0.01)],
        Just([0, 1, 2].map(|_| log_softmax(&[1.0; V])))
    ]
}

fn clip() -> impl Strategy<Value = LagClip> {
    (0.0..1.0f64, 1.0..4.0f64).prop_map(|(low, high)| LagClip::new(low, high).unwrap())
}

struct Exact<'a>([&'a [f64]; 3]);

impl Exact<'_> {
    /// `(w, c)` when token `a` is drawn and every entry is known.
    fn correction(&self, a: usize, rule: &Rule) -> TokenCorrection {
        let [log_q, log_s, log_theta] = self.0;
        let ids = (0..V as u32).map(TokenId).collect();
        let support = Support::exact(TokenId(a as u32), ids, log_q.to_vec()).unwrap();
        let row = |log_p: &[f64]| RowLogProbs { log_p: log_p.to_vec(), log_p_sampled: log_p[a], log_rest: None };
        let (log_s, log_theta) = (row(log_s), row(log_theta));
        weigh(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, rule).unwrap()
    }

    /// Gradient with respect to the logits when token `a` is drawn with advantage `advantage`.
    fn gradient(&self, a: usize, advantage: f64, correction: &TokenCorrection) -> Vec<f64> {
        let known: Vec<usize> = (0..V).collect();
        let [_, log_s, log_theta] = self.0;
        let mut gradient = vec![0.0; V];
        let row = DomainRow { log_theta, log_s, known: &known, sampled: a };
        loss(&row, correction, Scale { advantage, temperature: 0.8 }, &mut gradient);
        gradient
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).fold(0.0, f64::max)
}

proptest! {
    /// `E_q[g] = 0` at constant advantage, for any q, p_s, p_theta and clip: no drift that reward did not ask for.
    #[test]
    fn there_is_no_drift([q, s, theta] in problem(), clip in clip()) {
        let rule = Rule::Dlc { lag_clip: clip, tail: TailModel::default() };
        let exact = Exact([&q, &s, &theta]);
        let mut drift = [0.0; V];
        for (a, log_q) in q.iter().enumerate() {
            let gradient = exact.gradient(a, 1.0, &exact.correction(a, &rule));
            drift.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += log_q.exp() * g);
        }
        prop_assert!(largest(&drift) < 1e-12, "{drift:?}");
    }

    /// At zero lag the centred gradient is `-(A/T)(e_a - q)`, whatever p is.
    #[test]
    fn unweighted_centring_does_not_see_p([q, _, theta] in problem(), a in 0..V, advantage in -3.0..3.0f64) {
        let exact = Exact([&q, &theta, &theta]);
        let correction = exact.correction(a, &Rule::dlc());
        prop_assert_eq!(correction.w, 1.0);
        let gradient = exact.gradient(a, advantage, &correction);
        let expected = (0..V).map(|v| -advantage / 0.8 * (f64::from(u8::from(v == a)) - q[v].exp()));
        let distance: Vec<f64> = gradient.iter().zip(expected).map(|(g, e)| g - e).collect();
        prop_assert!(largest(&distance) < 1e-12, "{distance:?}");
    }

    /// Without a numeric term and without a clip the centring vanishes: what is left is importance sampling of the lag.
    #[test]
    fn pure_unclipped_lag_needs_no_centring([s, _, theta] in problem(), a in 0..V) {
        let rule = Rule::Dlc { lag_clip: LagClip::new(0.0, f64::MAX).unwrap(), tail: TailModel::default() };
        let exact = Exact([&s, &s, &theta]);
        let correction = exact.correction(a, &rule);
        let bare = TokenCorrection { c: vec![0.0; V], ..correction.clone() };
        let (centred, uncentred) = (exact.gradient(a, 1.0, &correction), exact.gradient(a, 1.0, &bare));
        let scale = 1.0 + largest(&uncentred);
        let distance: Vec<f64> = centred.iter().zip(&uncentred).map(|(c, u)| (c - u) / scale).collect();
        prop_assert!(largest(&distance) < 1e-9, "{distance:?}");
    }

    /// A tail on p_s whose q really is proportional to p_s there gives the coefficients of the exact support.
    #[test]
    fn the_tail_on_p_s_is_exact_where_its_model_holds([q, s, theta] in problem(), clip in clip(), head in 1..V - 1) {
        let rest = |log_p: &[f64]| log_p[head..].iter().map(|l| l.exp()).sum::<f64>();
        prop_assume!(rest(&q) > 1e-3 && rest(&s) > 1e-3);
        let ratio = (rest(&q) / rest(&s)).ln();
        let mut modelled = q.clone();
        modelled[head..].iter_mut().zip(&s[head..]).for_each(|(q, s)| *q = s + ratio);
        let rule = Rule::Dlc { lag_clip: clip, tail: TailModel::SamplerWeights };
        let expected = Exact([&modelled, &s, &theta]).correction(0, &rule);
        let reported = Reported {
            ids: (0..head as u32).map(TokenId).collect(),
            log_q: modelled[..head].to_vec(),
            log_rest: Some(rest(&modelled).ln()),
            domain: Domain::Vocabulary(V as u32),
        };
        let support = Support::new(Sampled { token: TokenId(0), log_q: modelled[0] }, reported).unwrap();
        let row = |p: &[f64]| RowLogProbs { log_p: p[..head].to_vec(), log_p_sampled: p[0], log_rest: Some(rest(p).ln()) };
        let (log_s, log_theta) = (row(&s), row(&theta));
        let correction = weigh(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, &rule).unwrap();
        let known: Vec<usize> = (0..head).collect();
        let dense = DomainRow { log_theta: &theta, log_s: &s, known: &known, sampled: 0 };
        let found = lockstep_core::dlc::loss::dense_centring(&dense, &correction);
        let distance: Vec<f64> = found.iter().zip(&expected.c).map(|(f, e)| f - e).collect();
        prop_assert!(largest(&distance) < 1e-12, "{distance:?}");
    }
}
