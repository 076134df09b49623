//! The Qwen3 forward pass. One set of weights, two readings of it: tracked for the trainer, detached for the sampler and
//! for scoring. Both run the same code on packed rows `[N, hidden]`; only attention knows where a sequence begins.
//!
//! Shapes: B rows of a batch, L tokens of a row, N tokens of a packed batch, V vocabulary.

use crate::fused::attention::{self, Heads};
use crate::fused::{Angles, rms_norm, rope, swiglu};
use crate::{Cache, Config, Error, Result, Weights};
use candle_core::{DType, Device, Tensor};
use std::path::Path;
use std::sync::Arc;

/// Whether a forward pass records what its backward needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Recorded: `backward` reaches every parameter. candle walks the graph recursively, so a deep model wants a thread
    /// with a large stack for it.
    Train,
    /// Not recorded: for scoring.
    Score,
}

#[derive(Debug, Clone)]
struct Layer {
    q_proj: Tensor,
    k_proj: Tensor,
    v_proj: Tensor,
    o_proj: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    gate_proj: Tensor,
    up_proj: Tensor,
    down_proj: Tensor,
    input_norm: Tensor,
    post_norm: Tensor,
}

/// The tensors of the model in the places where they are used.
#[derive(Debug, Clone)]
struct Net {
    embed: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
}

impl Net {
    fn new(config: &Config, get: impl Fn(&str) -> Result<Tensor>) -> Result<Self> {
        let layer = |index: usize| {
            let part = |name: &str| get(&format!("model.layers.{index}.{name}.weight"));
            Ok(Layer {
                q_proj: part("self_attn.q_proj")?,
                k_proj: part("self_attn.k_proj")?,
                v_proj: part("self_attn.v_proj")?,
                o_proj: part("self_attn.o_proj")?,
                q_norm: part("self_attn.q_norm")?,
                k_norm: part("self_attn.k_norm")?,
                gate_proj: part("mlp.gate_proj")?,
                up_proj: part("mlp.up_proj")?,
                down_proj: part("mlp.down_proj")?,
                input_norm: part("input_layernorm")?,
                post_norm: part("post_attention_layernorm")?,
            })
        };
        let embed = get("model.embed_tokens.weight")?;
        let head = if config.tied { embed.clone() } else { get("lm_head.weight")? };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { embed, layers, norm: get("model.norm.weight")?, head })
    }
}

/// What turns queries and keys to the positions of a batch.
struct Turn<'a> {
    config: &'a Config,
    angles: &'a Arc<Angles>,
    positions: &'a Arc<[u32]>,
}

impl Turn<'_> {
    /// `rope(norm(x W^T))`, head by head.
    fn project(&self, x: &Tensor, proj: &Tensor, norm: &Tensor) -> Result<Tensor> {
        let normed = rms_norm(&linear(x, proj)?, norm, self.config.rms_eps)?;
        Ok(rope(&normed, self.angles, self.positions)?)
    }
}

impl Layer {
    /// ```text
    /// a = norm(x)     x <- x + W_o attention(rope(norm(W_q a)), rope(norm(W_k a)), W_v a)
    /// b = norm(x)     x <- x + W_down (silu(W_gate b) * W_up b)
    /// ```
    fn forward(
        &self,
        x: Tensor,
        turn: &Turn<'_>,
        attend: impl FnOnce([&Tensor; 3]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let eps = turn.config.rms_eps;
        let a = rms_norm(&x, &self.input_norm, eps)?;
        let q = turn.project(&a, &self.q_proj, &self.q_norm)?;
        let k = turn.project(&a, &self.k_proj, &self.k_norm)?;
        let mixed = attend([&q, &k, &linear(&a, &self.v_proj)?])?;
        let x = (x + linear(&mixed, &self.o_proj)?)?;
        let b = rms_norm(&x, &self.post_norm, eps)?;
        let gated = swiglu(&linear(&b, &self.gate_proj)?, &linear(&b, &self.up_proj)?)?;
        Ok((x + linear(&gated, &self.down_proj)?)?)
    }
}

/// New tokens of a batch, one row behind the other, with the position of each.
struct Packed {
    ids: Vec<u32>,
    positions: Arc<[u32]>,
    lens: Arc<[usize]>,
}

/// A Qwen3 model on the CPU. Updates of its weights, in place, are seen by every clone.
#[derive(Debug, Clone)]
pub struct Qwen3 {
    config: Config,
    weights: Weights,
    tracked: Net,
    detached: Net,
    angles: Arc<Angles>,
    /// Logits are rounded to bf16.
    bf16_head: bool,
}

/// `x [N, in] w [out, in]^T`.
fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    Ok(x.matmul(&w.t()?)?)
}

impl Qwen3 {
    /// Builds the model on `weights` without copying them.
    pub fn new(config: Config, weights: Weights) -> Result<Self> {
        let shapes = config.tensors();
        let var = |name: &str| {
            let missing = || Error::Missing { name: name.into(), shape: shapes.get(name).cloned().unwrap_or_default() };
            weights.get(name).ok_or_else(missing)
        };
        let tracked = Net::new(&config, |name| Ok(var(name)?.as_tensor().clone()))?;
        let detached = Net::new(&config, |name| Ok(var(name)?.as_detached_tensor()))?;
        let angles = Arc::new(Angles::new(config.rope_theta, config.head_dim, config.max_positions));
        Ok(Self { config, weights, tracked, detached, angles, bf16_head: false })
    }

    /// The same, with a head as in bf16: its input and its output are rounded to it, sums stay f32. For sampling alone.
    #[must_use]
    pub fn with_bf16_head(self) -> Self {
        Self { bf16_head: true, ..self }
    }

    /// Reads a model folder: `config.json`, `generation_config.json` where there is one, and the safetensors.
    pub fn load(dir: &Path) -> Result<Self> {
        let config = Config::load(dir)?;
        let weights = Weights::load(dir, &config)?;
        Self::new(config, weights)
    }

    /// Writes `config.json` and `model.safetensors` into a folder that exists, each in one step.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.config.save(dir)?;
        self.weights.save(&dir.join("model.safetensors"))
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights it runs on.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Hidden states after the last norm of right-padded rows: `ids [B, L]` (u32) to `[B, L, hidden]`, recorded.
    ///
    /// Attention is causal, so the padding behind a row does not change what is before it.
    pub fn hidden(&self, ids: &Tensor) -> Result<Tensor> {
        let (b, l) = ids.dims2()?;
        let rows = ids.to_vec2::<u32>()?;
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        Ok(self.hidden_packed(&rows, Pass::Train)?.reshape((b, l, self.config.hidden))?)
    }

    /// Hidden states after the last norm of rows of any lengths, one row behind the other: `[N, hidden]` with
    /// `N = sum of the lengths`. No token is spent on padding.
    pub fn hidden_packed(&self, rows: &[&[u32]], pass: Pass) -> Result<Tensor> {
        let batch = self.pack(rows, |_| 0)?;
        let net = match pass {
            Pass::Train => &self.tracked,
            Pass::Score => &self.detached,
        };
        let (heads, lens) = (self.heads(), &batch.lens);
        let x = self.run(net, &batch, |_, qkv| Ok(attention::packed(heads, lens, qkv)?))?;
        Ok(rms_norm(&x, &net.norm, self.config.rms_eps)?)
    }

    /// Appends `new[row]` to every row of the cache; hidden states after the last norm of the last token of each row:
    /// `[rows, hidden]`, not recorded. Rows differ in length and in position as they like. After an error the cache is
    /// to be thrown away.
    pub fn hidden_cached(&self, new: &[&[u32]], cache: &mut Cache) -> Result<Tensor> {
        if new.len() != cache.rows() {
            return Err(Error::Rows { got: new.len(), want: cache.rows() });
        }
        if cache.layers() != self.config.layers {
            return Err(Error::Inconsistent(format!(
                "a cache of {} layers for {}",
                cache.layers(),
                self.config.layers
            )));
        }
        let batch = self.pack(new, |row| cache.len(row))?;
        let (heads, lens, net) = (self.heads(), &batch.lens, &self.detached);
        let x = self.run(net, &batch, |layer, qkv| Ok(attention::cached(heads, lens, qkv, (&mut *cache, layer))?))?;
        cache.advance(lens);
        let ends = lens.iter().scan(0u32, |end, len| {
            *end += *len as u32;
            Some(*end - 1)
        });
        let ends = Tensor::from_iter(ends, &Device::Cpu)?;
        Ok(rms_norm(&x.index_select(&ends, 0)?, &net.norm, self.config.rms_eps)?)
    }

    /// Logits of hidden states: `[.., hidden]` to `[.., V]`, recorded if `hidden` is.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let net = if hidden.track_op() { &self.tracked } else { &self.detached };
        let mut shape = hidden.dims().to_vec();
        let width = shape.pop().unwrap_or_default();
        shape.push(self.config.vocab);
        let hidden = hidden.reshape(((), width))?;
        let round = |x: &Tensor| x.to_dtype(DType::BF16)?.to_dtype(DType::F32);
        let logits = match self.bf16_head {
            true => round(&linear(&round(&hidden)?, &net.head)?)?,
            false => linear(&hidden, &net.head)?,
        };
        Ok(logits.reshape(shape)?)
    }

    fn heads(&self) -> Heads {
        Heads { query: self.config.heads, key: self.config.kv_heads, dim: self.config.head_dim }
    }

    /// Checks every id and every position before anything is computed.
    fn pack(&self, rows: &[&[u32]], start: impl Fn(usize) -> usize) -> Result<Packed> {
        let (vocab, max) = (self.config.vocab, self.config.max_positions);
        let mut positions = Vec::new();
        for (row, ids) in rows.iter().enumerate() {
            let (first, end) = (start(row), start(row) + ids.len());
            if ids.is_empty() {
                return Err(Error::EmptyRow { row });
            }
            if end > max {
                return Err(Error::Position { row, position: end - 1, max });
            }
            if let Some(place) = ids.iter().position(|id| *id as usize >= vocab) {
                return Err(Error::Token { id: ids[place], place, row, vocab });
            }
            positions.extend(first as u32..end as u32);
        }
        let lens = rows.iter().map(|row| row.len()).collect();
        Ok(Packed { ids: rows.concat(), positions: positions.into(), lens })
    }

    /// The residual stream after the last layer, before the last norm: `[N, hidden]`.
    fn run(
        &self,
        net: &Net,
        batch: &Packed,
        mut attend: impl FnMut(usize, [&Tensor; 3]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let ids = Tensor::from_slice(&batch.ids, batch.ids.len(), &Device::Cpu)?;
        let mut x = net.embed.index_select(&ids, 0)?;
        let turn = Turn { config: &self.config, angles: &self.angles, positions: &batch.positions };
        for (index, layer) in net.layers.iter().enumerate() {
            x = layer.forward(x, &turn, |qkv| attend(index, qkv))?;
        }
        Ok(x)
    }
}
