//! Weights from a Hugging Face directory into candle's own models, and one row of logits out of them.

use super::CandleModel;
use candle_core::{
    DType, Device, Tensor,
    quantized::{GgmlDType, QTensor, gguf_file},
};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    quantized_qwen3::ModelWeights,
    qwen3::{Config, ModelForCausalLM},
};
use lockstep_core::ports::PortError;
use std::{collections::HashMap, io::Cursor, path::Path};

/// Tensors by name.
type Tensors = HashMap<String, Tensor>;

/// A model with its caches.
#[derive(Debug, Clone)]
pub(super) enum Model {
    /// `qwen3`.
    Plain(Box<ModelForCausalLM>),
    /// `quantized_qwen3`.
    Gguf(Box<ModelWeights>),
}

/// Something candle does not do.
pub(super) fn failed(error: candle_core::Error) -> PortError {
    PortError::Failed(format!("candle: {error}"))
}

/// `config.json` as candle reads it.
///
/// # Errors
/// A file that is not there or is none of its configurations.
pub(super) fn config(directory: &Path) -> Result<Config, PortError> {
    let path = directory.join("config.json");
    let refused = |error: &dyn std::fmt::Display| PortError::Refused(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| refused(&error))?;
    serde_json::from_str(&text).map_err(|error| refused(&error))
}

impl Model {
    /// Reads the weights of a directory, or of one file, with empty caches.
    ///
    /// # Errors
    /// Weights that are not there or do not fit the configuration.
    pub(super) fn load(kind: CandleModel, config: &Config, path: &Path) -> Result<Self, PortError> {
        let tensors = tensors(path)?;
        let model = match kind {
            CandleModel::Qwen3 => plain(config, tensors),
            CandleModel::QuantizedQwen3 => gguf(config, &tensors),
        };
        model.map_err(|error| PortError::Refused(format!("{}: {error}", path.display())))
    }

    /// Logits `[V]` after the last of `ids`, which begin at position `offset`; they go into the caches.
    pub(super) fn forward(&mut self, ids: &[u32], offset: usize) -> candle_core::Result<Vec<f32>> {
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Self::Plain(model) => model.forward(&input, offset)?,
            Self::Gguf(model) => model.forward(&input, offset)?,
        };
        logits.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
    }
}

/// Every tensor of a safetensors file, or of all those of a directory, as f32.
fn tensors(path: &Path) -> Result<Tensors, PortError> {
    let refused = |error: &dyn std::fmt::Display| PortError::Refused(format!("{}: {error}", path.display()));
    let files = if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|error| refused(&error))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        files.filter(|file| file.extension().is_some_and(|kind| kind == "safetensors")).collect()
    } else {
        vec![path.to_owned()]
    };
    let mut all = Tensors::new();
    for file in files {
        for (name, tensor) in candle_core::safetensors::load(&file, &Device::Cpu).map_err(|error| refused(&error))? {
            all.insert(name, tensor.to_dtype(DType::F32).map_err(|error| refused(&error))?);
        }
    }
    Ok(all)
}

fn plain(config: &Config, tensors: Tensors) -> candle_core::Result<Model> {
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    Ok(Model::Plain(Box::new(ModelForCausalLM::new(config, weights)?)))
}

/// Through a GGUF file in memory: candle has no other way into this model.
fn gguf(config: &Config, tensors: &Tensors) -> candle_core::Result<Model> {
    let mut named = Vec::new();
    for (name, tensor) in tensors {
        if let Some(name) = gguf_name(name) {
            named.push((name, QTensor::quantize(tensor, GgmlDType::F32)?));
        }
    }
    let metadata = metadata(config);
    let metadata: Vec<(&str, &gguf_file::Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let named: Vec<(&str, &QTensor)> = named.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &named)?;
    file.set_position(0);
    let content = gguf_file::Content::read(&mut file)?;
    Ok(Model::Gguf(Box::new(ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?)))
}

/// The keys of llama.cpp's converter; it writes no `general.dtype`.
fn metadata(config: &Config) -> Vec<(&'static str, gguf_file::Value)> {
    use gguf_file::Value::{F32, String as Text, U32};
    vec![
        ("general.architecture", Text("qwen3".into())),
        ("qwen3.attention.head_count", U32(config.num_attention_heads as u32)),
        ("qwen3.attention.head_count_kv", U32(config.num_key_value_heads as u32)),
        ("qwen3.attention.key_length", U32(config.head_dim as u32)),
        ("qwen3.attention.layer_norm_rms_epsilon", F32(config.rms_norm_eps as f32)),
        ("qwen3.block_count", U32(config.num_hidden_layers as u32)),
        ("qwen3.context_length", U32(config.max_position_embeddings as u32)),
        ("qwen3.embedding_length", U32(config.hidden_size as u32)),
        ("qwen3.rope.freq_base", F32(config.rope_theta as f32)),
    ]
}

/// llama.cpp's name of a tensor; `None` for one it has no name for.
fn gguf_name(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match part.strip_suffix(".weight")? {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}
