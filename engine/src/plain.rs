//! The operations of the model in candle's own, for a card: every one is differentiable and runs on any device, in f32 or with
//! bf16 between f32 sums. What the fused ones compute on the CPU is the definition; these agree with them in f32.
//!
//! Attention is over padded rows: B rows of a batch, L tokens of the longest, N tokens of all, T of the cache.

use crate::fused::attention::Heads;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::softmax;

/// `x [N, in] w [out, in]^T`, in the type of `x`.
pub(crate) fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.matmul(&w.to_dtype(x.dtype())?.t()?)
}

/// `y_i = w_i x_i / sqrt(mean x^2 + eps)` over pieces as long as `w`, f32 whatever `x` is.
pub(crate) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    let pieces = x.to_dtype(DType::F32)?.reshape(((), w.elem_count()))?;
    let root = (pieces.sqr()?.mean_keepdim(1)? + eps)?.sqrt()?;
    pieces.broadcast_div(&root)?.broadcast_mul(&w.to_dtype(DType::F32)?)?.reshape(x.shape())
}

/// `silu(gate) * up`.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.silu()? * up
}

/// Turns every head of `x [N, heads * D]`, f32, by `cos` and `sin [N, D / 2]`.
pub(crate) fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (n, half) = cos.dims2()?;
    let heads = x.reshape((n, (), 2 * half))?;
    let (a, b) = (heads.narrow(2, 0, half)?, heads.narrow(2, half, half)?);
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    Tensor::cat(&[first, second], 2)?.reshape(x.shape())
}

/// From packed rows to padded ones and back.
#[derive(Debug)]
pub(crate) struct Padding {
    rows: usize,
    longest: usize,
    /// `[B * L]`: the packed token at each place; behind the end of a row, its last.
    pad: Tensor,
    /// `[N]`: the place of each packed token.
    unpad: Tensor,
}

impl Padding {
    pub(crate) fn new(lens: &[usize], device: &Device) -> Result<Self> {
        let longest = lens.iter().copied().max().unwrap_or_default();
        let (mut pad, mut unpad, mut start) = (Vec::new(), Vec::new(), 0u32);
        for (row, &len) in lens.iter().enumerate() {
            pad.extend((0..longest).map(|place| start + place.min(len - 1) as u32));
            unpad.extend((0..len).map(|place| (row * longest + place) as u32));
            start += len as u32;
        }
        let tensor = |ids: Vec<u32>| Tensor::from_slice(&ids, ids.len(), device);
        Ok(Self { rows: lens.len(), longest, pad: tensor(pad)?, unpad: tensor(unpad)? })
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// `[N, heads * D]` to `[B, heads, L, D]`.
    pub(crate) fn spread(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let padded = x.index_select(&self.pad, 0)?.reshape((self.rows, self.longest, heads, ()))?;
        padded.transpose(1, 2)?.contiguous()
    }

    /// `[B, heads, L, D]` to `[N, heads * D]`.
    fn gather(&self, x: &Tensor) -> Result<Tensor> {
        let flat = x.transpose(1, 2)?.reshape((self.rows * self.longest, ()))?;
        flat.index_select(&self.unpad, 0)
    }
}

/// `[1, 1, L, L]`: 0 up to the diagonal, negative infinity above it.
pub(crate) fn causal(longest: usize, device: &Device) -> Result<Tensor> {
    mask(&[0], (longest, longest), device)
}

/// `[B, 1, L, T]`: token i of row b sees the keys up to `starts[b] + i`.
pub(crate) fn mask(starts: &[usize], (l, t): (usize, usize), device: &Device) -> Result<Tensor> {
    let sees = |start: usize, i: usize, j: usize| if j <= start + i { 0f32 } else { f32::NEG_INFINITY };
    let rows = starts.iter().flat_map(|&start| (0..l).flat_map(move |i| (0..t).map(move |j| sees(start, i, j))));
    Tensor::from_vec(rows.collect(), (starts.len(), 1, l, t), device)
}

/// Attention of `q [N, heads * D]` over `k, v [B, kv_heads, T, D]`: `[N, heads * D]`. Scores are normalised in f32.
pub(crate) fn attention(heads: Heads, padding: &Padding, mask: &Tensor, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
    let (b, l, t) = (padding.rows, padding.longest, k.dim(2)?);
    let group = heads.query / heads.key;
    let q = padding.spread(q, heads.query)?.reshape((b, heads.key, group * l, heads.dim))?;
    let scores = (q.matmul(&k.transpose(2, 3)?)?.to_dtype(DType::F32)? * (heads.dim as f64).powf(-0.5))?;
    let scores = scores.reshape((b, heads.query, l, t))?.broadcast_add(mask)?;
    let p = softmax(&scores, D::Minus1)?.to_dtype(v.dtype())?.reshape((b, heads.key, group * l, t))?;
    padding.gather(&p.matmul(v)?.reshape((b, heads.query, l, heads.dim))?)
}

/// Rows of a sum that [`add_product`] makes at a time: what it holds beside the sum.
#[cfg(any(test, feature = "cuda"))]
const ROWS: usize = 1 << 14;

/// `sum += G^T h` in place: `sum [V, H]`, `G [C, V]`, `h [C, H]`.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn add_product(sum: &Tensor, gradient: &Tensor, hidden: &Tensor) -> Result<()> {
    let vocab = sum.dim(0)?;
    for start in (0..vocab).step_by(ROWS) {
        let n = ROWS.min(vocab - start);
        let part = gradient.narrow(1, start, n)?.contiguous()?.t()?.matmul(hidden)?;
        sum.slice_set(&(sum.narrow(0, start, n)? + part)?, 0, start)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use lockstep_kernels::philox::normal;

    #[test]
    fn a_product_is_added_in_place_over_more_rows_than_a_block_has() {
        let noise = |rows: usize, columns: usize, seed| {
            let values = (0..(rows * columns) as u64).map(|i| normal(seed, 0, i) as f32);
            Tensor::from_iter(values, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
        };
        let (vocab, width) = (ROWS + 77, 3);
        let (flat, g, h) = (noise(vocab * width, 1, 1), noise(5, vocab, 2), noise(5, width, 3));
        let want = (flat.reshape((vocab, width)).unwrap() + g.t().unwrap().matmul(&h).unwrap()).unwrap();
        add_product(&flat.reshape((vocab, width)).unwrap(), &g, &h).unwrap();
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(values(&flat).iter().zip(values(&want)).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
