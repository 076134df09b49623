//! The tokenizer adds nothing and guesses nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use lockstep_engine::Tokenizer;
use serde_json::json;

fn write(dir: &std::path::Path) -> std::path::PathBuf {
    let path = dir.join("tokenizer.json");
    let json = json!({
        "version": "1.0",
        "added_tokens": [{ "id": 3, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": "<end>", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": { "<end>": { "id": "<end>", "ids": [3], "tokens": ["<end>"] } } },
        "decoder": null,
        "truncation": null,
        "padding": null,
        "model": { "type": "WordLevel", "vocab": { "one": 0, "two": 1, "?": 2 }, "unk_token": "?" }
    });
    std::fs::write(&path, json.to_string()).unwrap();
    path
}

#[test]
fn encodes_without_additions_and_decodes_for_showing() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::load(&write(dir.path())).unwrap();
    assert_eq!(tokenizer.encode("one two <end>").unwrap(), [0, 1, 3]);
    assert_eq!(tokenizer.encode("one two").unwrap(), [0, 1], "the template's end token is not added");
    assert_eq!(tokenizer.decode(&[0, 1, 3]).as_deref(), Some("one two <end>"));
    assert_eq!(tokenizer.decode(&[0, 4]), None, "an id outside the table");
    assert_eq!(tokenizer.vocab(), 4);
}

#[test]
fn a_damaged_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    assert!(Tokenizer::load(&path).unwrap_err().to_string().contains("tokenizer.json"));
    std::fs::write(&path, "{}").unwrap();
    assert!(Tokenizer::load(&path).unwrap_err().to_string().contains("tokenizer.json"));
}
