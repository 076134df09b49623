//! Config and weights on disk: what is written is read back, and what is damaged is refused by name.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use common::{config, model};
use lockstep_engine::{Config, Error, Weights};
use serde_json::{Value, json};
use std::path::Path;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/testdata/qwen3").join(name)
}

#[test]
fn both_spellings_of_the_rotary_base_are_read_and_written() {
    let old = Config::load(&fixture("tied")).unwrap();
    assert_eq!((old.rope_theta, old.tied, old.eos.as_slice()), (1e6, true, &[5, 7][..]));
    let new = Config::load(&fixture("untied")).unwrap();
    assert_eq!((new.rope_theta, new.tied, new.eos.as_slice()), (1e4, false, &[5][..]));
    assert_eq!(Config::from_json(&new.to_json()).unwrap(), new);
    let mut disagreeing = new.to_json();
    disagreeing["rope_theta"] = json!(1e6);
    let error = Config::from_json(&disagreeing).unwrap_err().to_string();
    assert_eq!(error, "config is inconsistent: rope_theta is 1000000 and rope_parameters.rope_theta is 10000");
}

#[test]
fn end_ids_come_from_the_generation_config_where_it_has_any() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, json: Value| std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    write("config.json", config(true).to_json());
    assert_eq!(Config::load(dir.path()).unwrap().eos, [3]);
    write("generation_config.json", json!({ "eos_token_id": [8, 9] }));
    assert_eq!(Config::load(dir.path()).unwrap().eos, [8, 9]);
}

#[test]
fn other_models_are_refused_by_name() {
    let refused = |key: &str, value: Value| {
        let mut json = config(true).to_json();
        json[key] = value;
        Config::from_json(&json).unwrap_err().to_string()
    };
    let yarn = json!({ "rope_type": "yarn", "rope_theta": 1e6 });
    let cases = [
        ("model_type", json!("llama"), "model_type is \"llama\", this engine implements only qwen3"),
        ("architectures", json!(["Qwen3MoeForCausalLM"]), "Qwen3MoeForCausalLM"),
        ("rope_parameters", yarn, "rope_type is \"yarn\", this engine implements only default"),
        ("rope_scaling", json!({ "type": "linear", "factor": 2 }), "rope_type is \"linear\""),
        ("use_sliding_window", json!(true), "use_sliding_window is true, this engine implements only false"),
        ("attention_bias", json!(true), "attention_bias is true"),
        ("hidden_act", json!("gelu"), "hidden_act is \"gelu\", this engine implements only silu"),
        ("head_dim", Value::Null, "config has no usable head_dim: found null"),
        ("head_dim", json!(15), "head_dim 15 is odd"),
        ("num_key_value_heads", json!(3), "4 query heads do not divide over 3 key heads"),
        ("vocab_size", json!(0), "config has no usable vocab_size: found 0"),
    ];
    for (key, value, want) in cases {
        let message = refused(key, value);
        assert!(message.contains(want), "{message}");
    }
}

#[test]
fn weights_survive_a_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let weights = model(false, 7).weights().clone();
    weights.save(&dir.path().join("model.safetensors")).unwrap();
    let read = Weights::load(dir.path(), &config(false)).unwrap();
    assert_eq!(read.digest().unwrap(), weights.digest().unwrap());
    assert_ne!(model(false, 8).weights().digest().unwrap(), weights.digest().unwrap());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the temporary file is gone");
}

#[test]
fn a_saved_folder_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let saved = model(false, 9);
    saved.save(dir.path()).unwrap();
    let read = lockstep_engine::Qwen3::load(dir.path()).unwrap();
    assert_eq!(read.config(), saved.config());
    assert_eq!(read.weights().digest().unwrap(), saved.weights().digest().unwrap());
}

/// A head equal to the embedding is a copy of it; another head would be a different model.
#[test]
fn a_tied_model_may_carry_a_copy_of_its_head() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let untied = model(false, 7).weights().clone();
    untied.save(&path).unwrap();
    let error = Weights::load(dir.path(), &config(true)).unwrap_err().to_string();
    assert_eq!(error, "1 unexpected tensors, the first is lm_head.weight");
    let embed = untied.get("model.embed_tokens.weight").unwrap().as_detached_tensor();
    untied.get("lm_head.weight").unwrap().set(&embed).unwrap();
    untied.save(&path).unwrap();
    assert!(Weights::load(dir.path(), &config(true)).is_ok());
}

#[test]
fn half_precision_is_widened() {
    let dir = tempfile::tempdir().unwrap();
    let weights = model(true, 7).weights().clone();
    for dtype in [candle_core::DType::F16, candle_core::DType::BF16] {
        let narrow = weights.iter().map(|(name, var)| (name, var.as_detached_tensor().to_dtype(dtype).unwrap()));
        let narrow: std::collections::HashMap<_, _> = narrow.collect();
        candle_core::safetensors::save(&narrow, dir.path().join("model.safetensors")).unwrap();
        let read = Weights::load(dir.path(), &config(true)).unwrap();
        let (name, var) = read.iter().nth(3).unwrap();
        let want = narrow[name].to_dtype(candle_core::DType::F32).unwrap();
        assert_eq!(common::floats(var), common::floats(&want));
    }
}

#[test]
fn damage_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let load = || Weights::load(dir.path(), &config(true)).unwrap_err();
    assert!(matches!(load(), Error::File { path: missing, .. } if missing == path));
    model(true, 7).weights().save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for len in [0, 5, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let message = load().to_string();
        assert!(message.contains("model.safetensors") && message.contains(&format!("{len} bytes")), "{message}");
    }
    std::fs::write(&path, &whole).unwrap();
    let mut wider = config(true);
    wider.inter = 65;
    let message = Weights::load(dir.path(), &wider).unwrap_err().to_string();
    assert_eq!(message, "tensor model.layers.0.mlp.down_proj.weight has shape [32, 64], the config wants [32, 65]");
    let message = Weights::load(dir.path(), &config(false)).unwrap_err().to_string();
    assert_eq!(message, "tensor lm_head.weight of shape [40, 32] is missing");
}

#[test]
fn an_index_must_not_lead_out_of_its_folder_nor_promise_too_much() {
    let dir = tempfile::tempdir().unwrap();
    let index = |map: Value| {
        let json = json!({ "weight_map": map }).to_string();
        std::fs::write(dir.path().join("model.safetensors.index.json"), json).unwrap();
        Weights::load(dir.path(), &config(true)).unwrap_err().to_string()
    };
    assert!(index(json!({ "a": "../other.safetensors" })).contains("is not the name of a file in this folder"));
    model(true, 7).weights().save(&dir.path().join("part.safetensors")).unwrap();
    assert!(index(json!({ "a": "part.safetensors" })).contains("a is listed but none of the files holds it"));
}
