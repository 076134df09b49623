//! Truncation against golden cases, against a full sort, and against its own corner cases.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use lockstep_kernels::{Chain, Error, Filter, Kept, head, truncate};
use proptest::prelude::*;
use serde_json::Value;

fn filter(name: &str, case: &Value) -> Option<Filter> {
    let params = &case["params"];
    match name {
        "temperature" => case["temperature"].as_f64().map(Filter::Temperature),
        "top_k" => params["top_k"].as_u64().map(|k| Filter::TopK(k as usize)),
        "top_p" => params["top_p"].as_f64().map(Filter::TopP),
        "min_p" => params["min_p"].as_f64().map(Filter::MinP),
        other => panic!("golden case names an unknown filter {other}"),
    }
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The golden numbers are printed with 12 significant digits, so 1e-11 relative is what they can say.
fn close(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-12 + 1e-10 * want.abs(), "got {got}, want {want}");
}

#[test]
fn golden_cases() {
    let golden: Value = serde_json::from_str(include_str!("../../tests/testdata/golden/02_truncation.json")).unwrap();
    let inputs = golden["inputs"]["cases"].as_array().unwrap();
    let expected = golden["expected"]["cases"].as_array().unwrap();
    assert_eq!(inputs.len(), expected.len());
    for (case, want) in inputs.iter().zip(expected) {
        let order = case["order"].as_array().unwrap();
        let filters: Vec<_> = order.iter().filter_map(|name| filter(name.as_str().unwrap(), case)).collect();
        let kept = truncate(&floats(&case["logits"]), &Chain::new(filters).unwrap()).unwrap();
        let ids: Vec<f64> = kept.ids.iter().map(|id| f64::from(*id)).collect();
        assert_eq!(ids, floats(&want["kept_ids"]), "{case}");
        for (got, want) in kept.log_q.iter().zip(floats(&want["kept_logprobs"])) {
            close(*got, want);
        }
        close(kept.kept_mass, want["kept_mass_before_renorm"].as_f64().unwrap());
    }
}

/// Nearer than this to a boundary, f64 sums and integer masses (2^-44 an entry, 600 entries) may disagree.
const TOO_CLOSE: f64 = 600.0 / (1u64 << 44) as f64;

/// The definition, with a full sort at every step. `None` when a boundary is too close to call.
fn by_sorting(logits: &[f64], chain: &Chain) -> Option<Kept> {
    let mut order: Vec<usize> = (0..logits.len()).filter(|i| logits[*i].is_finite()).collect();
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap());
    let max = logits[order[0]];
    let mut t = 1.0;
    for filter in chain.filters() {
        let p: Vec<f64> = order.iter().map(|i| ((logits[*i] - max) / t).exp()).collect();
        let total: f64 = p.iter().sum();
        match *filter {
            Filter::Temperature(x) => t = x,
            Filter::TopK(0) | Filter::TopP(1.0) | Filter::MinP(0.0) => {}
            Filter::TopK(k) => order.truncate(k),
            Filter::MinP(x) if p.iter().any(|p| (p - x).abs() < TOO_CLOSE) => return None,
            Filter::MinP(x) => order.truncate(p.iter().filter(|p| **p >= x).count()),
            Filter::TopP(x) => {
                let before = p.iter().scan(0.0, |sum, p| Some(std::mem::replace(sum, *sum + p) / total));
                let before: Vec<f64> = before.collect();
                if before.iter().any(|c| (c - x).abs() < TOO_CLOSE) {
                    return None;
                }
                order.truncate(before.iter().filter(|c| **c < x).count());
            }
        }
    }
    order.sort_unstable();
    let p: Vec<f64> = order.iter().map(|i| ((logits[*i] - max) / t).exp()).collect();
    let total: f64 = p.iter().sum();
    let whole: f64 = logits.iter().map(|x| ((x - max) / t).exp()).sum();
    let ids = order.iter().map(|i| *i as u32).collect();
    Some(Kept { ids, log_q: p.iter().map(|p| (p / total).ln()).collect(), kept_mass: total / whole })
}

/// Rows with many ties, and now and then a banned token; wide enough for several blocks of the search.
fn rows() -> impl Strategy<Value = Vec<f64>> {
    let logit = prop_oneof![
        8 => (-40i32..40).prop_map(|x| f64::from(x) / 8.0),
        4 => -6.0..6.0f64,
        1 => Just(f64::NEG_INFINITY)
    ];
    prop::collection::vec(logit, 1..600).prop_filter("a finite logit", |row| row.iter().any(|x| x.is_finite()))
}

fn chains() -> impl Strategy<Value = Vec<Filter>> {
    let filters = (0.3..3.0f64, prop_oneof![Just(0usize), 1..300usize], 0.02..=1.0f64, 0.0..0.5f64);
    let all = filters
        .prop_map(|(t, k, p, m)| vec![Filter::Temperature(t), Filter::TopK(k), Filter::TopP(p), Filter::MinP(m)]);
    (all.prop_shuffle(), 0..=4usize).prop_map(|(all, n)| all[..n].to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_a_full_sort(row in rows(), filters in chains()) {
        let chain = Chain::new(filters).unwrap();
        let Some(want) = by_sorting(&row, &chain) else { return Ok(()) };
        let got = truncate(&row, &chain).unwrap();
        prop_assert_eq!(&got.ids, &want.ids);
        prop_assert!((got.kept_mass - want.kept_mass).abs() < 1e-10);
        for (got, want) in got.log_q.iter().zip(&want.log_q) {
            prop_assert!((got - want).abs() < 1e-9, "{} {}", got, want);
        }
    }

    #[test]
    fn head_and_rest_are_the_whole(row in rows(), k in 0usize..700) {
        let kept = truncate(&row, &Chain::new([Filter::Temperature(0.8)]).unwrap()).unwrap();
        let head = head(&kept, k);
        prop_assert_eq!(head.ids.len(), k.min(kept.ids.len()));
        let mass: f64 = head.log_q.iter().map(|x| x.exp()).sum::<f64>() + head.log_rest.exp();
        prop_assert!((mass - 1.0).abs() < 1e-12, "{}", mass);
        let low = head.log_q.iter().copied().fold(0.0, f64::min);
        let listed: std::collections::BTreeSet<_> = head.ids.iter().collect();
        let others = kept.ids.iter().zip(&kept.log_q).filter(|(id, _)| !listed.contains(id));
        prop_assert!(k == 0 || others.into_iter().all(|(_, x)| *x <= low));
    }
}

#[test]
fn ties_go_to_the_lower_id() {
    let row = [0.5f32; 10];
    let ids = |filters: Vec<Filter>| truncate(&row, &Chain::new(filters).unwrap()).unwrap().ids;
    assert_eq!(ids(vec![Filter::TopK(3)]), [0, 1, 2]);
    assert_eq!(ids(vec![Filter::TopP(0.5)]), [0, 1, 2, 3, 4], "mass before the sixth is 0.5, which is not below 0.5");
    assert_eq!(ids(vec![Filter::MinP(0.99)]).len(), 10);
    assert_eq!(ids(vec![Filter::TopP(1e-9)]), [0]);
}

#[test]
fn the_tail_of_an_untruncated_row_is_not_one_minus_the_head() {
    let mut row = vec![-60.0f32; 1000];
    row[17] = 0.0;
    let kept = truncate(&row, &Chain::new([]).unwrap()).unwrap();
    let head = head(&kept, 1);
    assert_eq!(head.ids, [17]);
    assert!((head.log_rest - (999f64.ln() - 60.0)).abs() < 1e-9, "log_rest {}", head.log_rest);
}

#[test]
fn refusals_carry_the_numbers() {
    let chain = Chain::new([]).unwrap();
    assert_eq!(truncate::<f32>(&[], &chain), Err(Error::EmptyRow));
    assert_eq!(truncate(&[f32::NEG_INFINITY; 2], &chain), Err(Error::NoFiniteLogit { len: 2 }));
    assert_eq!(truncate(&[0.0, f32::NAN], &chain).unwrap_err().to_string(), "logit of id 1 is NaN");
    assert_eq!(truncate(&[0.0, f32::INFINITY], &chain).unwrap_err().to_string(), "logit of id 1 is inf");
    let refused = |filters: &[Filter]| Chain::new(filters).unwrap_err().to_string();
    assert_eq!(refused(&[Filter::Temperature(0.0)]), "temperature is 0, wanted a positive finite number");
    assert_eq!(refused(&[Filter::TopP(1.5)]), "top_p is 1.5, wanted a number in (0, 1]");
    assert_eq!(refused(&[Filter::MinP(1.0)]), "min_p is 1, wanted a number in [0, 1)");
    assert!(refused(&[Filter::TopK(1), Filter::TopP(0.5), Filter::TopK(2)]).contains("stated twice"));
}
