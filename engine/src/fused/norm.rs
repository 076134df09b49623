//! Root-mean-square norm, over the last axis or over each head of it.

use super::{dot, floats, with_floats};
use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

/// Rows per piece of the backward, whose weight gradients are added in order.
const ROWS: usize = 256;

struct RmsNorm {
    eps: f32,
}

impl RmsNorm {
    /// `1 / sqrt(mean x^2 + eps)`.
    fn inverse(&self, x: &[f32]) -> f32 {
        1.0 / (dot(x, x) / x.len() as f32 + self.eps).sqrt()
    }

    /// ```text
    /// r = 1 / sqrt(mean x^2 + eps)      y_i = r w_i x_i
    /// dx_i = r w_i g_i - x_i r^3 / n  sum_j g_j w_j x_j
    /// dw_i = sum over rows of r g_i x_i
    /// ```
    fn backward(&self, [x, w, g]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        let n = w.len();
        let mut dx = vec![0f32; x.len()];
        let pieces = dx.par_chunks_mut(ROWS * n).zip(x.par_chunks(ROWS * n)).zip(g.par_chunks(ROWS * n));
        let pieces = pieces.map(|((dx, x), g)| {
            let mut dw = vec![0f32; n];
            for ((dx, x), g) in dx.chunks_exact_mut(n).zip(x.chunks_exact(n)).zip(g.chunks_exact(n)) {
                let r = self.inverse(x);
                for i in 0..n {
                    dw[i] += r * g[i] * x[i];
                    dx[i] = w[i] * g[i];
                }
                let k = dot(dx, x) * r * r * r / n as f32;
                for i in 0..n {
                    dx[i] = r * dx[i] - k * x[i];
                }
            }
            dw
        });
        let pieces: Vec<Vec<f32>> = pieces.collect();
        let mut dw = vec![0f32; n];
        for piece in pieces {
            super::axpy(&mut dw, 1.0, &piece);
        }
        (dx, dw)
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (floats(x, xl)?, floats(w, wl)?);
        let n = w.len();
        let mut y = vec![0f32; x.len()];
        y.par_chunks_mut(ROWS * n).zip(x.par_chunks(ROWS * n)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(n).zip(x.chunks_exact(n)) {
                let r = self.inverse(x);
                for i in 0..n {
                    y[i] = x[i] * r * w[i];
                }
            }
        });
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (dx, dw) = with_floats([x, w, &g], |slices| Ok(self.backward(slices)))?;
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), Some(Tensor::from_vec(dw, w.shape(), w.device())?)))
    }
}

/// `y_i = w_i x_i / sqrt(mean x^2 + eps)` over pieces as long as `w`: the last axis of `x`, or the heads it is made of.
pub(crate) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    if !x.dim(D::Minus1)?.is_multiple_of(w.elem_count().max(1)) {
        bail!("norm of {} weights over an axis of {:?}", w.elem_count(), x.dims());
    }
    x.contiguous()?.apply_op2(w, RmsNorm { eps: eps as f32 })
}
