//! Kinds of difference between the ids of a session and those of its text: verl-project/verl#2165 and #3477 could not tell
//! them apart.

use crate::{conversation::ids, qwen3};
use lockstep::session::{DriftKind, drifts};
use lockstep_core::TokenId;

fn turns(texts: &[&str]) -> Vec<TokenId> {
    let model = qwen3::qwen3();
    texts
        .iter()
        .flat_map(|text| [model.encode("<|im_start|>").unwrap(), model.encode(text).unwrap()].concat())
        .collect()
}

fn kinds(kept: &[TokenId], rendered: &[TokenId]) -> Vec<DriftKind> {
    drifts(&qwen3::qwen3(), kept, rendered).unwrap().iter().map(|drift| drift.kind).collect()
}

#[test]
fn every_difference_has_its_kind() {
    let good = "assistant\nI am good!<|im_end|>\n";
    let thinking = "assistant\n<think>\nHm.\n</think>\n\nI am good!<|im_end|>\n";
    let empty = "assistant\n<think>\n\n</think>\n\nI am good!<|im_end|>\n";
    let rows = [
        (good, good, None),
        (empty, good, Some(DriftKind::EmptyThink)),
        (thinking, good, Some(DriftKind::Thinking)),
        (thinking, empty, Some(DriftKind::Thinking)),
        ("assistant\nI am good!<|im_end|>", good, Some(DriftKind::WhiteSpace)),
        ("assistant\n{\"a\":1}<|im_end|>\n", "assistant\n{\"a\": 1}<|im_end|>\n", Some(DriftKind::JsonSpaces)),
        ("assistant\nI am bad!<|im_end|>\n", good, Some(DriftKind::Text)),
        ("assistant\nIam good!<|im_end|>\n", good, Some(DriftKind::Text)),
        (good, "", Some(DriftKind::Text)),
    ];
    for (kept, rendered, kind) in rows {
        assert_eq!(
            kinds(&turns(&["user\nHi<|im_end|>\n", kept]), &turns(&["user\nHi<|im_end|>\n", rendered]))
                .first()
                .copied(),
            kind,
            "{kept:?} {rendered:?}"
        );
    }
    let sampled = [turns(&["assistant\n"]), ids(&[53122, 316, 151645, 198])].concat();
    assert_eq!(kinds(&sampled, &turns(&["assistant\n Pantom<|im_end|>\n"])), [DriftKind::Tokens]);
}

#[test]
fn one_difference_does_not_hide_another() {
    let empty = "assistant\n<think>\n\n</think>\n\nGood<|im_end|>\n";
    let kept = turns(&[empty, "user\nHi<|im_end|>\n", "assistant\n{\"a\":1}<|im_end|>\n"]);
    let rendered = turns(&["assistant\nGood<|im_end|>\n", "user\nHi<|im_end|>\n", "assistant\n{\"a\": 1}<|im_end|>\n"]);
    assert_eq!(kinds(&kept, &rendered), [DriftKind::EmptyThink, DriftKind::JsonSpaces]);
    let drift = &drifts(&qwen3::qwen3(), &kept, &rendered).unwrap()[0];
    assert_eq!(drift.to_string(), "at 3: an empty think block, kept [151667 271 151668 271], rendered []");
}
