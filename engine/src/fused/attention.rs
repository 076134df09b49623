//! Causal attention over a packed batch: sequences of different lengths lie one behind the other, so nothing is padded and
//! nothing is masked. Grouped-query: query head `h` reads key head `h / (heads / kv_heads)`. The weights are computed again
//! in the backward instead of being kept.
//!
//! ```text
//! p_ij = softmax_{j <= i} (q_i . k_j / sqrt(D))      o_i = sum_j p_ij v_j
//! ```

use super::{axpy, dot, floats, with_floats};
use crate::Cache;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// Sequences per parallel piece, at least.
const SEQUENCES: usize = 8;

/// Heads of one attention layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) dim: usize,
}

/// The rows `[n, heads * dim]` of one head, by token.
fn head(x: &[f32], width: usize, at: usize, dim: usize) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(width).map(move |token| &token[at..at + dim])
}

impl Heads {
    fn widths(&self) -> (usize, usize) {
        (self.query * self.dim, self.key * self.dim)
    }

    /// Where query head `h` and the key head it reads begin.
    fn offsets(&self, h: usize) -> (usize, usize) {
        (h * self.dim, h / (self.query / self.key) * self.dim)
    }

    /// `p_j` for the keys `j < p.len()`.
    fn weights<'a>(&self, q: &[f32], keys: impl Iterator<Item = &'a [f32]>, p: &mut [f32]) {
        let scale = 1.0 / (self.dim as f32).sqrt();
        let mut max = f32::NEG_INFINITY;
        for (p, k) in p.iter_mut().zip(keys) {
            *p = dot(q, k) * scale;
            max = max.max(*p);
        }
        let mut sum = 0.0;
        for p in p.iter_mut() {
            *p = (*p - max).exp();
            sum += *p;
        }
        let inverse = 1.0 / sum;
        p.iter_mut().for_each(|p| *p *= inverse);
    }

    /// One sequence. The queries are its last tokens: query `i` of `n` sees the first `m - n + i + 1` of `m` keys.
    fn forward(&self, [q, k, v]: [&[f32]; 3], out: &mut [f32]) {
        let (wide, narrow) = self.widths();
        let (n, m) = (q.len() / wide, k.len() / narrow);
        let mut p = vec![0f32; m];
        for (i, (q, out)) in q.chunks_exact(wide).zip(out.chunks_exact_mut(wide)).enumerate() {
            let p = &mut p[..m - n + i + 1];
            for h in 0..self.query {
                let (a, b) = self.offsets(h);
                self.weights(&q[a..a + self.dim], head(k, narrow, b, self.dim), p);
                for (p, v) in p.iter().zip(head(v, narrow, b, self.dim)) {
                    axpy(&mut out[a..a + self.dim], *p, v);
                }
            }
        }
    }

    /// One sequence without a past.
    ///
    /// ```text
    /// dv_j += p_ij g_i     d_ij = g_i . v_j     s_ij = p_ij (d_ij - sum_j p_ij d_ij) / sqrt(D)
    /// dq_i += s_ij k_j     dk_j += s_ij q_i
    /// ```
    fn backward(&self, [q, k, v, g]: [&[f32]; 4], [dq, dk, dv]: [&mut [f32]; 3]) {
        let ((wide, narrow), dim) = (self.widths(), self.dim);
        let n = q.len() / wide;
        let scale = 1.0 / (dim as f32).sqrt();
        let (mut p, mut d) = (vec![0f32; n], vec![0f32; n]);
        for i in 0..n {
            for h in 0..self.query {
                let (a, b) = self.offsets(h);
                let at = i * wide + a;
                let (q, g) = (&q[at..at + dim], &g[at..at + dim]);
                let (p, d) = (&mut p[..=i], &mut d[..=i]);
                self.weights(q, head(k, narrow, b, dim), p);
                for (d, v) in d.iter_mut().zip(head(v, narrow, b, dim)) {
                    *d = dot(g, v);
                }
                let mean = dot(p, d);
                for (j, (p, d)) in p.iter().zip(d).enumerate() {
                    let key = j * narrow + b..j * narrow + b + dim;
                    let s = p * (*d - mean) * scale;
                    axpy(&mut dv[key.clone()], *p, g);
                    axpy(&mut dq[at..at + dim], s, &k[key.clone()]);
                    axpy(&mut dk[key], s, q);
                }
            }
        }
    }
}

/// Cuts a packed array into its sequences; `width` floats a token.
fn cut<'a>(mut x: &'a [f32], lens: &'a [usize], width: usize) -> Vec<&'a [f32]> {
    let piece = |len: &usize| {
        let (first, rest) = x.split_at(len * width);
        x = rest;
        first
    };
    lens.iter().map(piece).collect()
}

/// Cuts a packed array into its sequences, to be written.
fn cut_mut<'a>(mut x: &'a mut [f32], lens: &[usize], width: usize) -> Vec<&'a mut [f32]> {
    let piece = |len: &usize| {
        let (first, rest) = std::mem::take(&mut x).split_at_mut(len * width);
        x = rest;
        first
    };
    lens.iter().map(piece).collect()
}

struct Packed {
    heads: Heads,
    lens: Arc<[usize]>,
}

impl Packed {
    fn backward(&self, [q, k, v, g]: [&[f32]; 4]) -> [Vec<f32>; 3] {
        let (wide, narrow) = self.heads.widths();
        let lens = &*self.lens;
        let (mut dq, mut dk, mut dv) = (vec![0f32; q.len()], vec![0f32; k.len()], vec![0f32; v.len()]);
        let given = cut(q, lens, wide).into_par_iter().zip(cut(k, lens, narrow));
        let given = given.zip(cut(v, lens, narrow)).zip(cut(g, lens, wide));
        let out = cut_mut(&mut dq, lens, wide).into_par_iter().zip(cut_mut(&mut dk, lens, narrow));
        let both = given.zip(out.zip(cut_mut(&mut dv, lens, narrow))).with_min_len(SEQUENCES);
        both.for_each(|((((q, k), v), g), ((dq, dk), dv))| self.heads.backward([q, k, v, g], [dq, dk, dv]));
        [dq, dk, dv]
    }
}

type Operand<'a> = (&'a CpuStorage, &'a Layout);

impl Packed {
    fn forward(&self, (q, ql): Operand<'_>, (k, kl): Operand<'_>, (v, vl): Operand<'_>) -> Result<(CpuStorage, Shape)> {
        let (wide, narrow) = self.heads.widths();
        let (q, k, v) = (floats(q, ql)?, floats(k, kl)?, floats(v, vl)?);
        let lens = &*self.lens;
        let mut out = vec![0f32; q.len()];
        let given = cut(q, lens, wide).into_par_iter().zip(cut(k, lens, narrow)).zip(cut(v, lens, narrow));
        let both = given.zip(cut_mut(&mut out, lens, wide)).with_min_len(SEQUENCES);
        both.for_each(|(((q, k), v), out)| self.heads.forward([q, k, v], out));
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }
}

impl CustomOp3 for Packed {
    fn name(&self) -> &'static str {
        "packed-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((q, ql), (k, kl), (v, vl))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let [dq, dk, dv] = with_floats([q, k, v, &g], |slices| Ok(self.backward(slices)))?;
        let like = |data, x: &Tensor| Tensor::from_vec(data, x.shape(), x.device()).map(Some);
        Ok((like(dq, q)?, like(dk, k)?, like(dv, v)?))
    }
}

/// Attention within each of the packed sequences of lengths `lens`: `q [N, heads * D]`, `k, v [N, kv_heads * D]`.
pub(crate) fn packed(heads: Heads, lens: &Arc<[usize]>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
    let op = Packed { heads, lens: lens.clone() };
    q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, op)
}

struct Cached<'a> {
    heads: Heads,
    lens: &'a [usize],
    cache: &'a Cache,
    layer: usize,
}

impl CustomOp1 for Cached<'_> {
    fn name(&self) -> &'static str {
        "cached-attention"
    }

    fn cpu_fwd(&self, q: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let q = floats(q, layout)?;
        let wide = self.heads.widths().0;
        let mut out = vec![0f32; q.len()];
        let both = cut(q, self.lens, wide).into_par_iter().zip(cut_mut(&mut out, self.lens, wide));
        both.enumerate().with_min_len(SEQUENCES).for_each(|(row, (q, out))| {
            let (k, v) = self.cache.row(self.layer, row);
            self.heads.forward([q, k, v], out);
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Appends `k` and `v` to `layer` of the cache, `lens[row]` tokens to each row, and attends to everything held. Without a
/// gradient: this is the sampler's path.
pub(crate) fn cached(heads: Heads, lens: &[usize], [q, k, v]: [&Tensor; 3], at: (&mut Cache, usize)) -> Result<Tensor> {
    let (cache, layer) = at;
    with_floats([&k.contiguous()?, &v.contiguous()?], |[k, v]| {
        cache.append(layer, lens, (k, v));
        Ok(())
    })?;
    q.contiguous()?.apply_op1_no_bwd(&Cached { heads, lens, cache, layer })
}
