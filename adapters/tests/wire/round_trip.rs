//! What an engine could say comes back as it was said, in pieces of any size; what it could not say is an error, no panic.

use crate::replies::*;
use lockstep_adapters::{Chunk, End, WireError, sglang, vllm};
use lockstep_core::{Support, TokenId};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A position: kept ids, ascending, with their probabilities, and which of them was drawn.
type Position = (Vec<(u32, f64)>, usize);

fn position() -> impl Strategy<Value = Position> {
    let ids = proptest::collection::btree_set(4u32..1000, 1..9);
    (ids, proptest::collection::vec(0.05f64..1.0, 9), any::<prop::sample::Index>()).prop_map(|(ids, weights, drawn)| {
        let total: f64 = weights[..ids.len()].iter().sum();
        let drawn = drawn.index(ids.len());
        (ids.into_iter().zip(weights).map(|(id, weight)| (id, weight / total)).collect(), drawn)
    })
}

fn answer() -> impl Strategy<Value = (Vec<Position>, usize)> {
    (proptest::collection::vec(position(), 1..12), 1usize..5)
}

fn vllm_piece(positions: &[Position], last: Option<usize>) -> Value {
    let entry = |&(id, q): &(u32, f64)| json!({ "token_id": id, "logprob": q.ln(), "rank": 1 });
    let row = |(kept, drawn): &Position| {
        let mut top: Vec<Value> = vec![entry(&kept[*drawn])];
        top.extend(kept.iter().enumerate().filter(|(at, _)| at != drawn).map(|(_, kept)| entry(kept)));
        json!({ "token_id": kept[*drawn].0, "logprob": kept[*drawn].1.ln(), "top_logprobs": top })
    };
    let mask = |(kept, _): &Position| kept.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let ids: Vec<u32> = positions.iter().map(|(kept, drawn)| kept[*drawn].0).collect();
    let spans = last.map(|tokens| json!([{ "version": "e0.s1", "start": 0, "end": tokens }]));
    json!({ "choices": [{
        "index": 0, "token_ids": ids, "finish_reason": last.map(|_| "length"), "weight_versions": spans,
        "sampling_mask": positions.iter().map(mask).collect::<Vec<_>>(),
        "logprobs": { "content": positions.iter().map(row).collect::<Vec<_>>() },
    }] })
}

fn sglang_piece(all: &[Position], new: usize, (cumulative, last): (bool, bool)) -> Value {
    let positions = if cumulative { all } else { &all[all.len() - new..] };
    let drawn = |(kept, drawn): &Position| kept[*drawn];
    let ids: Vec<u32> = positions.iter().map(|position| drawn(position).0).collect();
    let own: Vec<Value> = all.iter().map(|position| json!([drawn(position).1.ln(), drawn(position).0, null])).collect();
    let masks: Vec<Vec<u32>> = all.iter().map(|(kept, _)| kept.iter().map(|(id, _)| *id).collect()).collect();
    let values: Vec<Vec<f64>> = all.iter().map(|(kept, _)| kept.iter().map(|(_, q)| q.ln()).collect()).collect();
    json!({ "output_ids": ids, "meta_info": {
        "finish_reason": last.then(|| json!({ "type": "length", "length": all.len() })),
        "completion_tokens": all.len(), "weight_version": "e0.s1", "output_token_logprobs": own,
        "output_token_sampling_mask": masks, "output_token_sampling_logprobs": values,
    } })
}

fn same(rows: &[Support], positions: &[Position]) {
    assert_eq!(rows.len(), positions.len());
    for (row, (kept, drawn)) in rows.iter().zip(positions) {
        let mut found: Vec<(TokenId, f64)> = row.ids().iter().copied().zip(row.log_q().iter().copied()).collect();
        found.sort_by_key(|(id, _)| *id);
        assert_eq!(found.len(), kept.len());
        for ((id, log_q), (kept, q)) in found.iter().zip(kept) {
            // A decimal number is read back within one unit of its last place.
            assert!(id.0 == *kept && (log_q - q.ln()).abs() < 1e-14, "{id} {log_q} {kept} {}", q.ln());
        }
        assert_eq!(row.sampled().token.0, kept[*drawn].0);
    }
}

/// Feeds the positions in pieces of `size`; the rows of all, and the last end.
fn read(
    positions: &[Position],
    size: usize,
    mut parse: impl FnMut(usize, usize) -> Result<Chunk, WireError>,
) -> (Vec<Support>, Option<End>) {
    let (mut rows, mut end, mut from) = (vec![], None, 0);
    while from < positions.len() {
        let to = (from + size).min(positions.len());
        let chunk = parse(from, to).unwrap();
        rows.extend(chunk.rows);
        (end, from) = (chunk.end, to);
    }
    (rows, end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_vllm_answer_comes_back_as_it_was_said((positions, size) in answer()) {
        for form in [vllm::Form::Mask, vllm::Form::Processed] {
            let mut parser = vllm::Parser::new(asked(TOP_8, 64), vllm::Route::Generate, form);
            let (rows, end) = read(&positions, size, |from, to| {
                let last = (to == positions.len()).then_some(to);
                parser.parse(&bytes(&vllm_piece(&positions[from..to], last)))
            });
            same(&rows, &positions);
            assert_eq!(end, Some(End::Length));
        }
    }

    #[test]
    fn an_sglang_answer_comes_back_as_it_was_said((positions, size) in answer(), cumulative in any::<bool>()) {
        let mut parser = sglang::Parser::new(asked(TOP_8, 64), sglang::Form::Mask);
        let (rows, end) = read(&positions, size, |from, to| {
            let last = to == positions.len();
            parser.parse(&bytes(&sglang_piece(&positions[..to], to - from, (cumulative, last))))
        });
        same(&rows, &positions);
        assert_eq!(end, Some(End::Length));
    }

    #[test]
    fn no_reply_makes_a_parser_panic(at in any::<prop::sample::Index>(), junk in proptest::collection::vec(any::<u8>(), 0..6), cut in any::<prop::sample::Index>()) {
        for name in FILES {
            let mut text = bytes(&reply(name));
            let at = at.index(text.len());
            let end = (at + junk.len()).min(text.len());
            text.splice(at..end, junk.clone());
            text.truncate(cut.index(text.len() + 1).max(at));
            any_parser(&text);
        }
    }

    #[test]
    fn no_value_makes_a_parser_panic(at in any::<prop::sample::Index>(), which in 0usize..9) {
        let values = [json!(null), json!(-1), json!(1e300), json!("x"), json!([]), json!({}), json!(true), json!(0), json!(u64::MAX)];
        for name in FILES {
            let mut value = reply(name);
            let places = places(&value, String::new());
            let place = &places[at.index(places.len())];
            *value.pointer_mut(place).unwrap() = values[which].clone();
            any_parser(&bytes(&value));
        }
    }
}

const FILES: [&str; 4] = [
    "vllm_processed_logprobs_generate_tokens",
    "synthetic_vllm_sampling_mask",
    "synthetic_sglang_sampling_mask",
    "llamacpp_post_sampling_probs_temperature_first",
];

fn any_parser(text: &[u8]) {
    for form in [vllm::Form::Mask, vllm::Form::Processed, vllm::Form::Raw] {
        for route in [vllm::Route::Generate, vllm::Route::Completions] {
            vllm::Parser::new(asked(TOP_8, 3), route, form).parse(text).ok();
        }
    }
    for form in [sglang::Form::Mask, sglang::Form::Tempered] {
        sglang::Parser::new(asked(TOP_8, 3), form).parse(text).ok();
    }
    let parser = lockstep_adapters::llama_cpp::Parser::new(&request(NUCLEUS, 64), &LEG, VOCABULARY);
    parser.parse(text).ok();
    parser.support_elsewhere(text, TokenId(5)).ok();
}

fn places(value: &Value, at: String) -> Vec<String> {
    let below: Vec<String> = match value {
        Value::Array(list) => {
            list.iter().enumerate().flat_map(|(n, value)| places(value, format!("{at}/{n}"))).collect()
        }
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| places(value, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"))))
            .collect(),
        _ => vec![],
    };
    if at.is_empty() { below } else { [vec![at], below].concat() }
}
