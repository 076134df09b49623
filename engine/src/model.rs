//! The Qwen3 forward pass. One set of weights, two readings of it: tracked for the trainer, detached for the sampler and
//! for scoring. Both run the same code on packed rows `[N, hidden]`; only attention knows where a sequence begins.
//!
//! Shapes: B rows of a batch, L tokens of a row, N tokens of a packed batch, V vocabulary.

use crate::fused::attention::{self, Heads};
use crate::fused::{Angles, rms_norm, rope, swiglu};
use crate::matrix::{Matrix, Q8};
use crate::{Cache, Config, Error, Result, Weights, plain};
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
    q_proj: Matrix,
    k_proj: Matrix,
    v_proj: Matrix,
    o_proj: Matrix,
    q_norm: Tensor,
    k_norm: Tensor,
    gate_proj: Matrix,
    up_proj: Matrix,
    down_proj: Matrix,
    input_norm: Tensor,
    post_norm: Tensor,
}

/// The tensors of the model in the places where they are used.
#[derive(Debug, Clone)]
struct Net {
    embed: Matrix,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Matrix,
}

impl Net {
    fn new(
        config: &Config,
        matrix: impl Fn(&str) -> Result<Matrix>,
        vector: impl Fn(&str) -> Result<Tensor>,
    ) -> Result<Self> {
        let layer = |index: usize| {
            let name = |part: &str| format!("model.layers.{index}.{part}.weight");
            let (matrix, vector) = (|part: &str| matrix(&name(part)), |part: &str| vector(&name(part)));
            Ok(Layer {
                q_proj: matrix("self_attn.q_proj")?,
                k_proj: matrix("self_attn.k_proj")?,
                v_proj: matrix("self_attn.v_proj")?,
                o_proj: matrix("self_attn.o_proj")?,
                q_norm: vector("self_attn.q_norm")?,
                k_norm: vector("self_attn.k_norm")?,
                gate_proj: matrix("mlp.gate_proj")?,
                up_proj: matrix("mlp.up_proj")?,
                down_proj: matrix("mlp.down_proj")?,
                input_norm: vector("input_layernorm")?,
                post_norm: vector("post_attention_layernorm")?,
            })
        };
        let embed = matrix("model.embed_tokens.weight")?;
        let head = if config.tied { embed.clone() } else { matrix("lm_head.weight")? };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { embed, layers, norm: vector("model.norm.weight")?, head })
    }
}

/// What turns queries and keys to the positions of a batch, and how everything is computed.
struct Turn<'a> {
    config: &'a Config,
    angles: &'a Arc<Angles>,
    positions: &'a Arc<[u32]>,
    plain: Option<Plain>,
}

/// Candle's own operations, with activations in `dtype`.
struct Plain {
    dtype: DType,
    cos: Tensor,
    sin: Tensor,
}

impl Turn<'_> {
    /// `rope(norm(x W^T))`, head by head.
    fn project(&self, x: &Tensor, proj: &Matrix, norm: &Tensor) -> Result<Tensor> {
        let x = proj.product(x)?;
        match &self.plain {
            None => Ok(rope(&rms_norm(&x, norm, self.config.rms_eps)?, self.angles, self.positions)?),
            Some(Plain { dtype, cos, sin }) => {
                Ok(plain::rope(&plain::rms_norm(&x, norm, self.config.rms_eps)?, cos, sin)?.to_dtype(*dtype)?)
            }
        }
    }

    fn norm(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        match &self.plain {
            None => Ok(rms_norm(x, w, self.config.rms_eps)?),
            Some(Plain { dtype, .. }) => Ok(plain::rms_norm(x, w, self.config.rms_eps)?.to_dtype(*dtype)?),
        }
    }

    fn gate(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        Ok(if self.plain.is_some() { plain::swiglu(gate, up)? } else { swiglu(gate, up)? })
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
        let a = turn.norm(&x, &self.input_norm)?;
        let q = turn.project(&a, &self.q_proj, &self.q_norm)?;
        let k = turn.project(&a, &self.k_proj, &self.k_norm)?;
        let mixed = attend([&q, &k, &self.v_proj.product(&a)?])?;
        let x = (x + self.o_proj.product(&mixed)?)?;
        let b = turn.norm(&x, &self.post_norm)?;
        let gated = turn.gate(&self.gate_proj.product(&b)?, &self.up_proj.product(&b)?)?;
        Ok((x + self.down_proj.product(&gated)?)?)
    }
}

/// New tokens of a batch, one row behind the other, with the position of each.
struct Packed {
    ids: Vec<u32>,
    positions: Arc<[u32]>,
    lens: Arc<[usize]>,
}

/// A Qwen3 model. Updates of its weights, in place, are seen by every clone.
#[derive(Debug, Clone)]
pub struct Qwen3 {
    config: Config,
    weights: Weights,
    /// What a backward reaches; none in Q8_0.
    tracked: Option<Net>,
    detached: Net,
    angles: Arc<Angles>,
    /// Logits are rounded to bf16.
    bf16_head: bool,
    /// The type of the activations where candle's own operations run: on a card.
    plain: Option<DType>,
}

impl Qwen3 {
    /// Builds the model on `weights` without copying them.
    pub fn new(config: Config, weights: Weights) -> Result<Self> {
        let shapes = config.tensors();
        let var = |name: &str| {
            let missing = || Error::Missing { name: name.into(), shape: shapes.get(name).cloned().unwrap_or_default() };
            weights.get(name).ok_or_else(missing)
        };
        let tracked = |name: &str| Ok(var(name)?.as_tensor().clone());
        let detached = |name: &str| Ok(var(name)?.as_detached_tensor());
        let tracked = Net::new(&config, |name| Ok(Matrix::Floats(tracked(name)?)), tracked)?;
        let detached = Net::new(&config, |name| Ok(Matrix::Floats(detached(name)?)), detached)?;
        Ok(Self::of(config, weights, Some(tracked), detached))
    }

    /// The model on a copy of `weights` in Q8_0, to sample with: nothing is recorded, and of the floats only the vectors are
    /// kept. On a card embedding and head are f32, of the same rounded values.
    ///
    /// # Errors
    /// Matrices that Q8_0 cannot hold.
    pub fn in_q8(config: Config, weights: &Weights, device: &Device) -> Result<Self> {
        let vectors = weights.vectors(device)?;
        let var = |name: &str, of: &Weights| {
            let missing = || Error::Missing { name: name.into(), shape: Vec::new() };
            Ok::<_, Error>(of.get(name).ok_or_else(missing)?.as_detached_tensor())
        };
        let matrix = |name: &str| {
            let w = var(name, weights)?;
            if device.is_cpu() || name.starts_with("model.layers.") {
                return Ok(Matrix::Q8(Q8::new(&w, device)?));
            }
            Ok(Matrix::Floats(Q8::new(&w, &Device::Cpu)?.floats()?.to_device(device)?))
        };
        let net = Net::new(&config, matrix, |name| var(name, &vectors))?;
        Ok(Self::of(config, vectors, None, net))
    }

    fn of(config: Config, weights: Weights, tracked: Option<Net>, detached: Net) -> Self {
        let angles = Arc::new(Angles::new(config.rope_theta, config.head_dim, config.max_positions));
        let plain = (!weights.device().is_cpu()).then_some(DType::BF16);
        Self { config, weights, tracked, detached, angles, bf16_head: false, plain }
    }

    fn recorded(&self) -> Result<&Net> {
        let refused = || Error::Inconsistent("a model in Q8_0 is to sample with: it has no backward".into());
        self.tracked.as_ref().ok_or_else(refused)
    }

    /// The same with candle's own operations and activations in `dtype`. On the CPU, bf16 is what a card computes; on a card,
    /// f32 is nearest to the CPU.
    #[must_use]
    pub fn with_plain_operations(self, dtype: DType) -> Self {
        Self { plain: Some(dtype), ..self }
    }

    /// The same model with a copy of its weights on `device`, to be trained there.
    ///
    /// # Errors
    /// A device without room for them.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        Self::new(self.config.clone(), self.weights.to_device(device)?)
    }

    /// The same model on other weights, which are not copied: with the same operations where they are on the same device.
    ///
    /// # Errors
    /// Weights of another model.
    pub fn with_weights(&self, weights: Weights) -> Result<Self> {
        let same = weights.device().same_device(&self.weights.device());
        let model = Self::new(self.config.clone(), weights)?;
        Ok(if same { Self { plain: self.plain, ..model } } else { model })
    }

    /// The type of its activations: f32 on the CPU and bf16 on a card, unless it was told another.
    pub fn activations(&self) -> DType {
        self.plain.unwrap_or(DType::F32)
    }

    /// `rows` empty sequences.
    pub fn cache(&self, rows: usize) -> Cache {
        let Config { layers, kv_heads, head_dim, .. } = self.config;
        match self.plain {
            None => Cache::new(layers, rows),
            Some(dtype) => Cache::padded(layers, rows, (kv_heads, head_dim), (dtype, self.weights.device())),
        }
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
            Pass::Train => self.recorded()?,
            Pass::Score => &self.detached,
        };
        let (heads, lens) = (self.heads(), &batch.lens);
        if self.plain.is_none() {
            let x = self.run(net, &batch, |_, qkv| Ok(attention::packed(heads, lens, qkv)?))?;
            return self.last_norm(net, &x);
        }
        let device = self.weights.device();
        let padding = plain::Padding::new(lens, &device)?;
        let mask = plain::causal(padding.longest(), &device)?;
        let x = self.run(net, &batch, |_, [q, k, v]| {
            let (k, v) = (padding.spread(k, heads.key)?, padding.spread(v, heads.key)?);
            Ok(plain::attention(heads, &padding, &mask, [q, &k, &v])?)
        })?;
        self.last_norm(net, &x)
    }

    /// f32, whatever the activations are.
    fn last_norm(&self, net: &Net, x: &Tensor) -> Result<Tensor> {
        let eps = self.config.rms_eps;
        Ok(if self.plain.is_some() { plain::rms_norm(x, &net.norm, eps)? } else { rms_norm(x, &net.norm, eps)? })
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
        let append = cache.prepare(lens)?;
        let x = self.run(net, &batch, |layer, qkv| match (&append, cache.on_card()) {
            (Some(append), Some(card)) => Ok(card.attend(layer, (append, heads), qkv)?),
            _ => Ok(attention::cached(heads, lens, qkv, (&mut *cache, layer))?),
        })?;
        cache.advance(lens);
        let ends = lens.iter().scan(0u32, |end, len| {
            *end += *len as u32;
            Some(*end - 1)
        });
        let ends = Tensor::from_iter(ends, x.device())?;
        self.last_norm(net, &x.index_select(&ends, 0)?)
    }

    /// Logits of hidden states: `[.., hidden]` to `[.., V]`, recorded if `hidden` is.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let net = if hidden.track_op() { self.recorded()? } else { &self.detached };
        let mut shape = hidden.dims().to_vec();
        let width = shape.pop().unwrap_or_default();
        shape.push(self.config.vocab);
        let hidden = hidden.reshape(((), width))?;
        let round = |x: &Tensor| x.to_dtype(DType::BF16)?.to_dtype(DType::F32);
        let logits = match self.bf16_head {
            true => round(&net.head.product(&round(&hidden)?)?)?,
            false => net.head.product(&hidden)?,
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
        let device = self.weights.device();
        let mut x = net.embed.select(&batch.ids, &device)?;
        let plain = self.plain.map(|dtype| {
            let (cos, sin) = self.angles.at(&batch.positions, &device)?;
            Ok::<_, Error>(Plain { dtype, cos, sin })
        });
        let plain = plain.transpose()?;
        if let Some(Plain { dtype, .. }) = &plain {
            x = x.to_dtype(*dtype)?;
        }
        let turn = Turn { config: &self.config, angles: &self.angles, positions: &batch.positions, plain };
        for (index, layer) in net.layers.iter().enumerate() {
            x = layer.forward(x, &turn, |qkv| attend(index, qkv))?;
        }
        Ok(x)
    }
}
