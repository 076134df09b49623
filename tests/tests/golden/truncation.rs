//! Kept supports and their log-probs, for filters in any order.

use super::{compare::Golden, problem::read};
use lockstep_kernels::{Chain, Filter, truncate};
use serde_json::Value;

/// The chain a case states: the filters of its order that it has a parameter for.
fn chain(case: &Value) -> Chain {
    let parameter = |name: &str| case["params"].get(name).and_then(Value::as_f64);
    let order: Vec<String> = read(&case["order"]);
    let filters = order.iter().filter_map(|name| match name.as_str() {
        "temperature" => Some(Filter::Temperature(read(&case["temperature"]))),
        "top_k" => parameter("top_k").map(|k| Filter::TopK(k as usize)),
        "top_p" => parameter("top_p").map(Filter::TopP),
        "min_p" => parameter("min_p").map(Filter::MinP),
        other => panic!("unknown filter {other}"),
    });
    Chain::new(filters.collect::<Vec<_>>()).unwrap()
}

pub fn truncation(golden: &Golden) {
    let cases: Vec<Value> = read(&golden.inputs["cases"]);
    for (i, case) in cases.iter().enumerate() {
        let kept = truncate(&read::<Vec<f64>>(&case["logits"]), &chain(case)).unwrap();
        let expected = &golden.expected["cases"][i];
        for (key, found) in [
            ("kept_ids", kept.ids.clone().into()),
            ("kept_logprobs", kept.log_q.clone().into()),
            ("kept_mass_before_renorm", Value::from(kept.kept_mass)),
        ] {
            let difference = golden.differs(&expected[key], &found);
            assert_eq!(difference, None, "{}: case {i} ({}), {key}", golden.name, case["case"]);
        }
    }
}
