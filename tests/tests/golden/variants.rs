//! The other forms of DLC, what is wrong on purpose, and expected gradients by enumeration.

use super::{
    compare::Golden,
    corrections::check_corrected,
    problem::{Corrected, Row, read, rows},
};
use lockstep_core::{
    dlc::{
        LagClip, PpoClip, TailModel, TokenCorrection, Variant,
        weigh::Position,
        wrong_on_purpose::{centring_with_the_drawn_tokens_weight, centring_without_the_weight},
    },
    rivals::{
        Cap,
        centred::{CentredPpo, TokenWeight, centre},
        ppo::Ppo,
    },
};
use serde_json::{Value, json};

fn clip(golden: &Golden) -> LagClip {
    LagClip::new(read(&golden.inputs["lag_clip_low"]), read(&golden.inputs["lag_clip_high"])).unwrap()
}

fn log_ratios(row: &Row) -> (f64, f64) {
    let a = row.sampled;
    (row.log_theta[a] - row.log_s[a], row.log_s[a] - row.log_q[a])
}

fn check(golden: &Golden, of: impl Fn(&Position<'_>, f64) -> TokenCorrection) {
    let rows = rows(golden);
    let correct = |row: &Row| row.with_position(|position| of(position, row.scale.advantage));
    check_corrected(golden, &rows.iter().map(correct).collect::<Vec<_>>());
    let each = |of: &dyn Fn(f64, f64) -> Value| {
        rows.iter().map(log_ratios).map(|(lag, numeric)| of(lag, numeric)).collect::<Vec<Value>>()
    };
    let clip = clip(golden);
    golden.check_if_given("lag_ratio_token", each(&|lag, _| lag.exp().into()));
    golden.check_if_given("numeric_log_ratio_token", each(&|_, numeric| numeric.into()));
    golden.check_if_given("lag_clipped_high", each(&|lag, _| (lag.exp() > clip.high()).into()));
    golden.check_if_given("lag_clipped_low", each(&|lag, _| (lag.exp() < clip.low()).into()));
}

pub fn dlc_b(golden: &Golden) {
    let variant = Variant::b(clip(golden), TailModel::default());
    check(golden, |position, advantage| variant.weigh(position, advantage).unwrap());
}

pub fn dlc_f(golden: &Golden) {
    let variant = Variant::f(clip(golden), read(&golden.inputs["numeric_cap"]), TailModel::default()).unwrap();
    check(golden, |position, advantage| variant.weigh(position, advantage).unwrap());
}

pub fn wrong_c(golden: &Golden) {
    let clip = clip(golden);
    check(golden, |position, _| centring_without_the_weight(position, clip).unwrap());
}

pub fn wrong_d(golden: &Golden) {
    let clip = clip(golden);
    check(golden, |position, _| centring_with_the_drawn_tokens_weight(position, clip).unwrap());
}

fn ppo_clip(golden: &Golden) -> PpoClip {
    PpoClip::new(read(&golden.inputs["eps_clip_low"]), read(&golden.inputs["eps_clip_high"])).unwrap()
}

pub fn dlc_e(golden: &Golden) {
    let clip = ppo_clip(golden);
    let variant = Variant::e(clip);
    let active = surrogates(golden, clip, None, &|position, advantage| variant.weigh(position, advantage).unwrap());
    golden.check("active", active);
    let ratios = rows(golden).iter().map(|row| log_ratios(row).0.exp()).collect::<Vec<f64>>();
    golden.check("ratio", ratios);
}

pub fn centred_ppo(golden: &Golden) {
    let (clip, cap): (_, f64) = (ppo_clip(golden), read(&golden.inputs["tis_cap"]));
    let rule = CentredPpo::new(clip, cap).unwrap();
    let cap = Cap::new(cap).unwrap();
    let active = surrogates(golden, clip, Some(cap), &|position, advantage| rule.weigh(position, advantage).unwrap());
    golden.check("active_token", active);
    let ratios = rows(golden).iter().map(log_ratios).collect::<Vec<_>>();
    golden.check("ppo_ratio_token", ratios.iter().map(|(lag, _)| lag.exp()).collect::<Vec<f64>>());
    golden.check("behave_weight_token", ratios.iter().map(|(_, n)| cap.truncate(n.exp())).collect::<Vec<f64>>());
}

/// Gradients from `(w, c)`; values from PPO's surrogate, weighted by `min(o / q, C)` where there is a C, plus the
/// centring's. Returns which tokens are active.
fn surrogates(
    golden: &Golden,
    clip: PpoClip,
    cap: Option<Cap>,
    of: &dyn Fn(&Position<'_>, f64) -> TokenCorrection,
) -> Vec<bool> {
    let rows = rows(golden);
    let ppo = Ppo { clip, dual: None };
    let (mut centring, mut losses, mut gradients, mut active) = (vec![], vec![], vec![], vec![]);
    for row in &rows {
        let Corrected { weight, centring: c, gradient, .. } = row.with_position(|p| of(p, row.scale.advantage));
        let (lag, numeric) = log_ratios(row);
        let b = cap.map_or(1.0, |cap| cap.truncate(numeric.exp()));
        let token = ppo.token(lag.exp(), row.scale.advantage);
        assert!((weight - b * token.w).abs() <= 1e-12, "{}: {weight} is not {}", golden.name, b * token.w);
        let alone = row.with_position(|p| TokenCorrection { w: 0.0, ..of(p, row.scale.advantage) });
        active.push(weight != 0.0);
        centring.push(c);
        losses.push(b * token.loss + alone.loss);
        gradients.push(gradient);
    }
    golden.check("centring_coefficients", centring);
    golden.check("loss_sum", losses.iter().sum::<f64>());
    golden.check("per_token_loss", losses);
    golden.check("grad_logits_of_loss_sum", gradients);
    active
}

/// `E_q[-dloss/dz]` of a position whose advantage is `A_v` where v is drawn.
fn expected(row: &Row, actions: &[f64], of: &dyn Fn(&Position<'_>) -> TokenCorrection) -> Vec<f64> {
    let mut sum = vec![0.0; row.vocabulary];
    for (sampled, advantage) in actions.iter().enumerate() {
        let scale = lockstep_core::dlc::loss::Scale { advantage: *advantage, ..row.scale };
        let drawn = Row { sampled, scale, ..row.clone() };
        let gradient = drawn.with_position(of).gradient;
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum -= row.log_q[sampled].exp() * g);
    }
    sum
}

type Of<'a> = &'a dyn Fn(&Position<'_>) -> TokenCorrection;

pub fn expected_gradient(golden: &Golden) {
    let (rows, actions) = (rows(golden), read::<Vec<f64>>(&golden.inputs["action_values"]));
    let open = LagClip::new(0.0, f64::MAX).unwrap();
    let a: Of<'_> = &|p| Variant::a(open, TailModel::default()).weigh(p, 1.0).unwrap();
    let b: Of<'_> = &|p| Variant::b(open, TailModel::default()).weigh(p, 1.0).unwrap();
    let c: Of<'_> = &|p| centring_without_the_weight(p, open).unwrap();
    let weighted = |p: &Position<'_>, w| TokenCorrection { w, c: vec![0.0; p.support.known()], tail: None };
    let pg: Of<'_> = &|p| weighted(p, 1.0);
    let is: Of<'_> = &|p| weighted(p, (p.log_theta.log_p_sampled - p.support.sampled().log_q).exp());
    let sc: Of<'_> = &|p| centre(p.support, p.log_theta, &TokenWeight::One).unwrap();
    let all = |change: &dyn Fn(&Row) -> Row, of: Of<'_>| -> Vec<Vec<f64>> {
        rows.iter().map(|row| expected(&change(row), &actions, of)).collect()
    };
    let same = |row: &Row| row.clone();
    let on_policy = all(&|row| Row { log_q: row.log_theta.clone(), ..row.clone() }, pg);
    let of_a = all(&same, a);
    let minus = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>();
    golden.check("dlc_a_minus_on_policy", of_a.iter().zip(&on_policy).map(minus).collect::<Vec<_>>());
    let bias: Vec<Vec<f64>> = rows.iter().map(|row| bias(row, &actions)).collect();
    golden.check("dlc_a_minus_on_policy", json!(bias));
    for (key, of) in [("pg", pg), ("is_full", is), ("sc", sc), ("dlc_a", a), ("dlc_b", b), ("dlc_c", c)] {
        golden.check(key, all(&same, of));
    }
    golden.check("on_policy", on_policy);
    golden.check("dlc_a_q_equals_ps", all(&|row| Row { log_q: row.log_s.clone(), ..row.clone() }, a));
    golden.check("dlc_a_p_equals_ps", all(&|row| Row { log_s: row.log_theta.clone(), ..row.clone() }, a));
}

/// `sum_v (q_v - p_s,v) w_v (A_v - E_q A) s_v`, `s_v = (e_v - p) / T`.
fn bias(row: &Row, actions: &[f64]) -> Vec<f64> {
    let mean: f64 = row.log_q.iter().zip(actions).map(|(q, a)| q.exp() * a).sum();
    let weight = |v: usize| {
        let (q, s) = (row.log_q[v].exp(), row.log_s[v].exp());
        (q - s) * (row.log_theta[v] - row.log_s[v]).exp() * (actions[v] - mean) / row.scale.temperature
    };
    let sum: f64 = (0..actions.len()).map(weight).sum();
    (0..actions.len()).map(|u| weight(u) - sum * row.log_theta[u].exp()).collect()
}
