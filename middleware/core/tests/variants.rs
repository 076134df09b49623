//! Identities of every form of DLC on random problems: exact for one prefix, by enumeration over the vocabulary, in f64.

#![expect(clippy::unwrap_used, reason = "a problem that cannot be stated ends its test")]

use lockstep_core::{
    Support, TokenId,
    dlc::{
        Centring, LagBound, LagClip, NumericWeight, PpoClip, TailModel, TokenCorrection, Variant, VariantError,
        loss::{DomainRow, Scale, dense_centring, loss},
        weigh::Position,
        wrong_on_purpose::{centring_with_the_drawn_tokens_weight, centring_without_the_weight},
    },
    score::RowLogProbs,
    support::{Domain, Reported, Sampled},
};
use proptest::prelude::*;

const V: usize = 12;
const T: f64 = 0.8;

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normaliser = max + logits.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    logits.iter().map(|z| (z - normaliser).min(0.0)).collect()
}

fn distribution(spread: f64) -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(-spread..spread, V).prop_map(|logits| log_softmax(&logits))
}

/// q, p_s and p_theta that differ by little or by a lot.
fn problem() -> impl Strategy<Value = [Vec<f64>; 3]> {
    let three = |spread| [distribution(spread), distribution(spread), distribution(spread)];
    prop_oneof![three(4.0), three(0.05)]
}

/// p_s and p_theta apart, q anywhere.
fn clip() -> impl Strategy<Value = LagClip> {
    (0.0..1.0f64, 1.0..4.0f64).prop_map(|(low, high)| LagClip::new(low, high).unwrap())
}

fn ppo() -> impl Strategy<Value = PpoClip> {
    (0.0..1.0f64, 0.0..2.0f64).prop_map(|(low, high)| PpoClip::new(low, high).unwrap())
}

fn open() -> LagClip {
    LagClip::new(0.0, f64::MAX).unwrap()
}

/// A form that draws `a` with advantage A.
type Form<'a> = &'a dyn Fn(&Position<'_>, f64) -> TokenCorrection;

struct Exact<'a>([&'a [f64]; 3]);

impl Exact<'_> {
    /// `(w, c)` when token `a` is drawn and every entry is known.
    fn correction(&self, a: usize, advantage: f64, form: Form<'_>) -> TokenCorrection {
        let [log_q, log_s, log_theta] = self.0;
        let ids = (0..V as u32).map(TokenId).collect();
        let support = Support::exact(TokenId(a as u32), ids, log_q.to_vec()).unwrap();
        let row = |log_p: &[f64]| RowLogProbs { log_p: log_p.to_vec(), log_p_sampled: log_p[a], log_rest: None };
        let (log_s, log_theta) = (row(log_s), row(log_theta));
        form(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, advantage)
    }

    /// `E_q[-dloss/dz]` with advantage `A_a` for each token.
    fn ascent(&self, advantages: &[f64], form: Form<'_>) -> Vec<f64> {
        let known: Vec<usize> = (0..V).collect();
        let [log_q, log_s, log_theta] = self.0;
        let mut sum = vec![0.0; V];
        for (a, &advantage) in advantages.iter().enumerate() {
            let mut gradient = vec![0.0; V];
            let row = DomainRow { log_theta, log_s, known: &known, sampled: a };
            let correction = self.correction(a, advantage, form);
            loss(&row, &correction, Scale { advantage, temperature: T }, &mut gradient);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum -= log_q[a].exp() * g);
        }
        sum
    }

    /// `g* = E_p[A s]`.
    fn on_policy(&self, advantages: &[f64]) -> Vec<f64> {
        self.scores(|v| self.0[2][v].exp() * advantages[v])
    }

    /// `sum_v m_v s_v`, `s_v = (e_v - p) / T`.
    fn scores(&self, mass: impl Fn(usize) -> f64) -> Vec<f64> {
        let sum: f64 = (0..V).map(&mass).sum();
        (0..V).map(|u| (mass(u) - sum * self.0[2][u].exp()) / T).collect()
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).fold(0.0, f64::max)
}

/// Largest difference, in units of the larger of the two where that is above 1.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest(a).max(largest(b)).max(1.0)
}

fn form(variant: Variant) -> impl Fn(&Position<'_>, f64) -> TokenCorrection {
    move |position, advantage| variant.weigh(position, advantage).unwrap()
}

proptest! {
    /// A, E and F: `E_q[g] = 0` at constant advantage, whatever q, p_s, p_theta, the bounds and the sign.
    #[test]
    fn what_centres_the_weighted_token_has_no_drift(
        [q, s, theta] in problem(), clip in clip(), ppo in ppo(), cap in 1.0..4.0f64, advantage in -2.0..2.0f64,
    ) {
        let tail = TailModel::Collapsed;
        let weighted = |lag, numeric| Variant::new(Centring::LagWeighted, lag, numeric, tail).unwrap();
        let numeric = NumericWeight::Truncated(cap);
        let exact = Exact([&q, &s, &theta]);
        for variant in [
            Variant::a(clip, tail),
            Variant::e(ppo),
            Variant::f(clip, cap, tail).unwrap(),
            weighted(LagBound::Mask(clip), NumericWeight::None),
            weighted(LagBound::Mask(clip), numeric),
            weighted(LagBound::Ppo(ppo), numeric),
        ] {
            let drift = exact.ascent(&[advantage; V], &form(variant));
            prop_assert!(largest(&drift) < 1e-9, "{variant:?}: {drift:?}");
        }
    }

    /// B centres nothing where the sampler is exact, even under a clip.
    #[test]
    fn b_centres_nothing_where_q_is_p_s([s, _, theta] in problem(), clip in clip(), a in 0..V) {
        for bound in [LagBound::Clip(clip), LagBound::Mask(clip)] {
            let tail = TailModel::Collapsed;
            let b = Variant::new(Centring::NumericOnly, bound, NumericWeight::None, tail).unwrap();
            let correction = Exact([&s, &s, &theta]).correction(a, 1.0, &form(b));
            prop_assert_eq!(correction.c, vec![0.0; V]);
        }
    }

    /// B is A in expectation while no clip is active; an active one leaves it `A sum_v p_s,v (w_v - r_v) s_v`.
    #[test]
    fn b_drifts_by_its_clip_alone([q, s, theta] in problem(), clip in clip(), advantages in proptest::collection::vec(-2.0..2.0f64, V)) {
        let exact = Exact([&q, &s, &theta]);
        let of = |variant: fn(LagClip, TailModel) -> Variant, clip| form(variant(clip, TailModel::default()));
        let (a, b) = (exact.ascent(&advantages, &of(Variant::a, open())), exact.ascent(&advantages, &of(Variant::b, open())));
        prop_assert!(distance(&a, &b) < 1e-9, "{a:?} {b:?}");
        let drift = exact.ascent(&[1.5; V], &of(Variant::b, clip));
        let ratio = |v: usize| (theta[v] - s[v]).exp();
        let expected = exact.scores(|v| 1.5 * s[v].exp() * (ratio(v).clamp(clip.low(), clip.high()) - ratio(v)));
        prop_assert!(distance(&drift, &expected) < 1e-9, "{drift:?} {expected:?}");
    }

    /// `E_q[g] - g* = sum_v (q_v - p_s,v) w_v (A_v - E_q A) s_v + sum_v p_s,v (w_v - r_v) (A_v - E_q A) s_v` for A.
    #[test]
    fn the_bias_of_a_is_what_its_formula_says(
        [q, s, theta] in problem(), clip in clip(), advantages in proptest::collection::vec(-2.0..2.0f64, V),
    ) {
        let exact = Exact([&q, &s, &theta]);
        let found = exact.ascent(&advantages, &form(Variant::a(clip, TailModel::default())));
        let mean: f64 = q.iter().zip(&advantages).map(|(q, a)| q.exp() * a).sum();
        let bias = exact.scores(|v| {
            let ratio = (theta[v] - s[v]).exp();
            let w = ratio.clamp(clip.low(), clip.high());
            ((q[v].exp() - s[v].exp()) * w + s[v].exp() * (w - ratio)) * (advantages[v] - mean)
        });
        let expected: Vec<f64> = exact.on_policy(&advantages).iter().zip(bias).map(|(g, bias)| g + bias).collect();
        prop_assert!(distance(&found, &expected) < 1e-9, "{found:?} {expected:?}");
    }

    /// F is the on-policy gradient, whatever q and p_s, where nothing is truncated.
    #[test]
    fn f_is_unbiased_where_nothing_is_truncated(
        [q, s, theta] in problem(), advantages in proptest::collection::vec(-2.0..2.0f64, V),
    ) {
        let f = form(Variant::f(open(), f64::MAX, TailModel::default()).unwrap());
        let exact = Exact([&q, &s, &theta]);
        let (found, expected) = (exact.ascent(&advantages, &f), exact.on_policy(&advantages));
        prop_assert!(distance(&found, &expected) < 1e-9, "{found:?} {expected:?}");
    }

    /// At zero lag A, B and E are score centring, `-dloss/dz = (A/T)(e_a - q)` in expectation for the first and the last.
    #[test]
    fn without_lag_a_b_and_e_are_one([q, _, theta] in problem(), clip in clip(), ppo in ppo(), a in 0..V) {
        let exact = Exact([&q, &theta, &theta]);
        let of = |variant| exact.correction(a, -1.0, &form(variant));
        let expected: Vec<f64> = q.iter().map(|q| q.exp()).collect();
        for variant in [Variant::a(clip, TailModel::Collapsed), Variant::e(ppo)] {
            prop_assert_eq!((of(variant).w, of(variant).c), (1.0, expected.clone()));
        }
        let b = of(Variant::b(clip, TailModel::Collapsed));
        let differences: Vec<f64> = q.iter().zip(&theta).map(|(q, p)| q.exp() - p.exp()).collect();
        prop_assert_eq!((b.w, b.c), (1.0, differences));
    }

    /// C and D push under pure lag by `-A E_q[s]` and `-E_q[w A] E_q[s]`, though no reward asks for it; A and B do not.
    #[test]
    fn c_and_d_drift_under_pure_lag([s, _, theta] in problem()) {
        let exact = Exact([&s, &s, &theta]);
        let expected = exact.scores(|v| -s[v].exp());
        prop_assume!(largest(&expected) > 1e-3);
        let c: Form<'_> = &|position, _| centring_without_the_weight(position, open()).unwrap();
        let d: Form<'_> = &|position, _| centring_with_the_drawn_tokens_weight(position, open()).unwrap();
        for wrong in [c, d] {
            let drift = exact.ascent(&[1.0; V], wrong);
            prop_assert!(distance(&drift, &expected) < 1e-9, "{drift:?} {expected:?}");
        }
        for right in [Variant::a(open(), TailModel::default()), Variant::b(open(), TailModel::default())] {
            prop_assert!(largest(&exact.ascent(&[1.0; V], &form(right))) < 1e-9);
        }
    }

    /// Tails of A, B and F on p_s are exact where q is proportional to p_s there; collapsed ones have the exact gradient
    /// where q and p_s are proportional to p_theta.
    #[test]
    fn a_tail_is_exact_where_its_model_holds(
        [q, s, theta] in problem(), clip in clip(), ppo in ppo(), head in 1..V - 1, sign in prop::bool::ANY,
    ) {
        let advantage = if sign { 1.0 } else { -1.0 };
        let rest = |log_p: &[f64]| log_p[head..].iter().map(|l| l.exp()).sum::<f64>();
        prop_assume!([&q, &s, &theta].into_iter().all(|log_p| rest(log_p) > 1e-3));
        let after = |log_p: &[f64], model: &[f64]| -> Vec<f64> {
            let shift = (rest(log_p) / rest(model)).ln();
            log_p[..head].iter().copied().chain(model[head..].iter().map(|l| l + shift)).collect()
        };
        let of = |tail| [Variant::a(clip, tail), Variant::b(clip, tail), Variant::f(clip, 1.5, tail).unwrap()];
        let on_p_s = after(&q, &s);
        for variant in of(TailModel::SamplerWeights) {
            let found = gradient_of_head([&on_p_s, &s, &theta], head, (variant, advantage));
            let expected = gradient([&on_p_s, &s, &theta], (variant, advantage));
            prop_assert!(distance(&found, &expected) < 1e-9, "{variant:?} {found:?} {expected:?}");
        }
        let (q, s) = (after(&q, &theta), after(&s, &theta));
        for variant in of(TailModel::Collapsed).into_iter().chain([Variant::e(ppo)]) {
            let found = gradient_of_head([&q, &s, &theta], head, (variant, advantage));
            let expected = gradient([&q, &s, &theta], (variant, advantage));
            prop_assert!(distance(&found, &expected) < 1e-9, "{variant:?} {found:?} {expected:?}");
        }
    }
}

/// Gradient of token 0 with every entry known.
fn gradient(problem: [&[f64]; 3], (variant, advantage): (Variant, f64)) -> Vec<f64> {
    let correction = Exact(problem).correction(0, advantage, &form(variant));
    apply(problem, V, (&correction, advantage))
}

/// Gradient of token 0 with a head known.
fn gradient_of_head(problem: [&[f64]; 3], head: usize, (variant, advantage): (Variant, f64)) -> Vec<f64> {
    let log_rest = |log_p: &[f64]| Some(log_p[head..].iter().map(|l| l.exp()).sum::<f64>().ln());
    let [log_q, log_s, log_theta] = problem;
    let reported = Reported {
        ids: (0..head as u32).map(TokenId).collect(),
        log_q: log_q[..head].to_vec(),
        log_rest: log_rest(log_q),
        domain: Domain::Vocabulary(V as u32),
    };
    let support = Support::new(Sampled { token: TokenId(0), log_q: log_q[0] }, reported).unwrap();
    let row = |p: &[f64]| RowLogProbs { log_p: p[..head].to_vec(), log_p_sampled: p[0], log_rest: log_rest(p) };
    let (log_s, log_theta) = (row(log_s), row(log_theta));
    let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
    let correction = variant.weigh(&position, advantage).unwrap();
    apply(problem, head, (&correction, advantage))
}

fn apply(
    [_, log_s, log_theta]: [&[f64]; 3],
    known: usize,
    (correction, advantage): (&TokenCorrection, f64),
) -> Vec<f64> {
    let known: Vec<usize> = (0..known).collect();
    let row = DomainRow { log_theta, log_s, known: &known, sampled: 0 };
    let mut gradient = vec![0.0; V];
    loss(&row, correction, Scale { advantage, temperature: T }, &mut gradient);
    assert_eq!(dense_centring(&row, correction).len(), V);
    gradient
}

#[test]
fn what_is_no_number_is_an_error() {
    let half = 0.5f64.ln();
    let support = Support::exact(TokenId(0), vec![TokenId(0), TokenId(1)], vec![half, half]).unwrap();
    let row = |log_p: f64| RowLogProbs { log_p: vec![log_p, half], log_p_sampled: log_p, log_rest: None };
    let weigh = |log_s: f64, log_theta: f64, advantage: f64| {
        let variant = Variant::a(LagClip::default(), TailModel::default());
        let (log_s, log_theta) = (row(log_s), row(log_theta));
        variant.weigh(&Position { support: &support, log_s: &log_s, log_theta: &log_theta }, advantage)
    };
    assert!(weigh(half, half, 1.0).is_ok());
    for wrong in [f64::NAN, f64::NEG_INFINITY] {
        assert!(weigh(wrong, half, 1.0).is_err() && weigh(half, wrong, 1.0).is_err());
    }
    assert!(weigh(half, half, f64::NAN).unwrap_err().to_string().starts_with("advantage NaN"));
    let unbounded = Variant::e(PpoClip::new(0.2, 0.2).unwrap());
    let (log_s, log_theta) = (row(-800.0), row(half));
    let position = Position { support: &support, log_s: &log_s, log_theta: &log_theta };
    let error = unbounded.weigh(&position, -1.0).unwrap_err().to_string();
    assert_eq!(error, "weight inf of the drawn token is not finite");
    let error: VariantError = Variant::f(LagClip::default(), 0.0, TailModel::default()).unwrap_err();
    assert_eq!(error.to_string(), "numeric cap 0 is not a finite number >= 1");
}
