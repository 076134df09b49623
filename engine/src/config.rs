//! `config.json` of a Qwen3 model, in both spellings of the rotary base. A field without which the numbers would be a guess
//! has no default; a property this engine does not implement is refused by name.

use crate::weights::replace;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The shape of a Qwen3 model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `vocab_size`: rows of the embedding.
    pub vocab: usize,
    /// `hidden_size`: width of the residual stream.
    pub hidden: usize,
    /// `intermediate_size`: width of the feed-forward layer.
    pub inter: usize,
    /// `num_hidden_layers`.
    pub layers: usize,
    /// `num_attention_heads`: query heads.
    pub heads: usize,
    /// `num_key_value_heads`: divides `heads`.
    pub kv_heads: usize,
    /// `head_dim`: even.
    pub head_dim: usize,
    /// `max_position_embeddings`: the longest sequence.
    pub max_positions: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square before the root.
    pub rms_eps: f64,
    /// `tie_word_embeddings`: the head is the embedding.
    pub tied: bool,
    /// Ids that end an answer, as the model's files state them; may be empty.
    pub eos: Vec<u32>,
}

impl Config {
    /// Reads `config.json` of a model folder, and the end ids of `generation_config.json` where it has any.
    pub fn load(dir: &Path) -> Result<Self> {
        let mut config = Self::from_json(&read_json(&dir.join("config.json"))?)?;
        let generation = dir.join("generation_config.json");
        if generation.exists() {
            let eos = eos_ids(&read_json(&generation)?)?;
            if !eos.is_empty() {
                config.eos = eos;
            }
        }
        Ok(config)
    }

    /// Reads a parsed `config.json`.
    pub fn from_json(json: &Value) -> Result<Self> {
        refuse_other_models(json)?;
        let config = Self {
            vocab: size(json, "vocab_size")?,
            hidden: size(json, "hidden_size")?,
            inter: size(json, "intermediate_size")?,
            layers: size(json, "num_hidden_layers")?,
            heads: size(json, "num_attention_heads")?,
            kv_heads: size(json, "num_key_value_heads")?,
            head_dim: size(json, "head_dim")?,
            max_positions: size(json, "max_position_embeddings")?,
            rope_theta: rope_theta(json)?,
            rms_eps: json["rms_norm_eps"].as_f64().ok_or_else(|| field(json, "rms_norm_eps"))?,
            tied: json["tie_word_embeddings"].as_bool().ok_or_else(|| field(json, "tie_word_embeddings"))?,
            eos: eos_ids(json)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let (heads, kv, dim) = (self.heads, self.kv_heads, self.head_dim);
        if heads % kv != 0 {
            return Err(Error::Inconsistent(format!("{heads} query heads do not divide over {kv} key heads")));
        }
        if dim % 2 != 0 {
            return Err(Error::Inconsistent(format!("head_dim {dim} is odd, rotary pairs need an even one")));
        }
        for (name, value) in [("rope_theta", self.rope_theta), ("rms_norm_eps", self.rms_eps)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::Inconsistent(format!("{name} is {value}, wanted a positive number")));
            }
        }
        Ok(())
    }

    /// The same config as JSON that transformers 4 and 5 both read: the rotary base stands in both places.
    pub fn to_json(&self) -> Value {
        let eos = match self.eos.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        };
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inter,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rope_parameters": { "rope_theta": self.rope_theta, "rope_type": "default" },
            "rms_norm_eps": self.rms_eps,
            "tie_word_embeddings": self.tied,
            "eos_token_id": eos,
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "use_sliding_window": false,
            "sliding_window": null,
            "max_window_layers": self.layers,
            "initializer_range": 0.02,
            "torch_dtype": "float32",
            "use_cache": true,
        })
    }

    /// Writes `config.json` into a folder: the old file or the whole new one.
    pub fn save(&self, dir: &Path) -> Result<()> {
        replace(&dir.join("config.json"), format!("{:#}\n", self.to_json()).as_bytes())
    }

    /// Every tensor of the model with its shape, in name order.
    pub fn tensors(&self) -> BTreeMap<String, Vec<usize>> {
        let (h, d, i) = (self.hidden, self.head_dim, self.inter);
        let (q, kv) = (self.heads * d, self.kv_heads * d);
        let per_layer = [
            ("self_attn.q_proj", vec![q, h]),
            ("self_attn.k_proj", vec![kv, h]),
            ("self_attn.v_proj", vec![kv, h]),
            ("self_attn.o_proj", vec![h, q]),
            ("self_attn.q_norm", vec![d]),
            ("self_attn.k_norm", vec![d]),
            ("mlp.gate_proj", vec![i, h]),
            ("mlp.up_proj", vec![i, h]),
            ("mlp.down_proj", vec![h, i]),
            ("input_layernorm", vec![h]),
            ("post_attention_layernorm", vec![h]),
        ];
        let name = |layer, part: &str| format!("model.layers.{layer}.{part}.weight");
        let layers = (0..self.layers).flat_map(|l| per_layer.iter().map(move |(part, s)| (name(l, part), s.clone())));
        let mut all: BTreeMap<_, _> = layers.collect();
        all.insert("model.embed_tokens.weight".into(), vec![self.vocab, h]);
        all.insert("model.norm.weight".into(), vec![h]);
        if !self.tied {
            all.insert("lm_head.weight".into(), vec![self.vocab, h]);
        }
        all
    }
}

/// Reads and parses a JSON file; the error names it.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
    serde_json::from_slice(&text).map_err(|e| Error::Contents { path: path.into(), reason: e.to_string() })
}

fn field(json: &Value, field: &'static str) -> Error {
    Error::Field { field, found: json.get(field).map_or("nothing".into(), Value::to_string) }
}

fn size(json: &Value, name: &'static str) -> Result<usize> {
    let n = json[name].as_u64().filter(|n| (1..=u64::from(u32::MAX)).contains(n));
    n.map(|n| n as usize).ok_or_else(|| field(json, name))
}

fn refuse_other_models(json: &Value) -> Result<()> {
    let refuse = |what, found: &Value, wanted| Err(Error::Unsupported { what, found: found.to_string(), wanted });
    if json["model_type"] != "qwen3" {
        let known = json.get("model_type").map_or(json["architectures"].clone(), Value::clone);
        return refuse("model_type", &known, "qwen3");
    }
    let named = json["architectures"].as_array();
    if named.is_some_and(|names| !names.iter().any(|name| name == "Qwen3ForCausalLM")) {
        return refuse("architectures", &json["architectures"], "Qwen3ForCausalLM");
    }
    for (what, wanted) in [("use_sliding_window", "false"), ("attention_bias", "false")] {
        if !matches!(json[what], Value::Null | Value::Bool(false)) {
            return refuse(what, &json[what], wanted);
        }
    }
    match &json["hidden_act"] {
        Value::Null => Err(field(json, "hidden_act")),
        Value::String(act) if act == "silu" => Ok(()),
        act => refuse("hidden_act", act, "silu"),
    }
}

/// `rope_theta` at the top level (transformers 4) or inside `rope_parameters` (transformers 5); both only if they agree.
fn rope_theta(json: &Value) -> Result<f64> {
    for key in ["rope_scaling", "rope_parameters"] {
        if let Value::Object(rope) = &json[key] {
            refuse_scaling(rope)?;
        }
    }
    let (top, inner) = (json["rope_theta"].as_f64(), json["rope_parameters"]["rope_theta"].as_f64());
    match (top, inner) {
        (Some(a), Some(b)) if a != b => {
            Err(Error::Inconsistent(format!("rope_theta is {a} and rope_parameters.rope_theta is {b}")))
        }
        (Some(theta), _) | (None, Some(theta)) => Ok(theta),
        (None, None) => Err(field(json, "rope_theta")),
    }
}

fn refuse_scaling(rope: &Map<String, Value>) -> Result<()> {
    let kind = rope.get("rope_type").or(rope.get("type")).unwrap_or(&Value::Null);
    if kind == "default" {
        return Ok(());
    }
    Err(Error::Unsupported { what: "rope_type", found: kind.to_string(), wanted: "default" })
}

/// `eos_token_id`: nothing, one id, or a list.
fn eos_ids(json: &Value) -> Result<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match &json["eos_token_id"] {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect::<Option<_>>().ok_or_else(|| field(json, "eos_token_id")),
        one => id(one).map(|id| vec![id]).ok_or_else(|| field(json, "eos_token_id")),
    }
}
