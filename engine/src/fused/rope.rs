//! Rotary positions, with a position of its own for every row.

use super::{floats, with_floats};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// Tokens per piece.
const TOKENS: usize = 64;

/// Cosine and sine of every rotary angle, `[positions, head_dim / 2]`.
#[derive(Debug)]
pub(crate) struct Angles {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// `angle(p, i) = p theta^(-2 i / head_dim)`, rounded to f32 at every step as torch does.
    pub(crate) fn new(theta: f64, head_dim: usize, positions: usize) -> Self {
        let half = head_dim / 2;
        let inverse = (0..half).map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32));
        let inverse: Vec<f32> = inverse.collect();
        let angles = (0..positions).flat_map(|p| inverse.iter().map(move |f| p as f32 * f));
        let (sin, cos) = angles.map(f32::sin_cos).unzip();
        Self { half, cos, sin }
    }

    /// Cosines and sines of `positions`, each `[N, head_dim / 2]`.
    pub(crate) fn at(&self, positions: &[u32], device: &Device) -> Result<(Tensor, Tensor)> {
        let of = |table: &[f32]| {
            let rows = positions.iter().flat_map(|p| &table[*p as usize * self.half..(*p as usize + 1) * self.half]);
            Tensor::from_vec(rows.copied().collect::<Vec<f32>>(), (positions.len(), self.half), device)
        };
        Ok((of(&self.cos)?, of(&self.sin)?))
    }

    /// ```text
    /// y_i        = x_i cos - x_{i+h} sin
    /// y_{i+h}    = x_{i+h} cos + x_i sin          with sin -> -sin for the inverse, which is the backward
    /// ```
    fn rotate(&self, x: &[f32], positions: &[u32], sign: f32) -> Vec<f32> {
        let (h, width) = (self.half, x.len() / positions.len().max(1));
        let mut y = vec![0f32; x.len()];
        let pieces = y.par_chunks_mut(TOKENS * width).zip(x.par_chunks(TOKENS * width));
        pieces.zip(positions.par_chunks(TOKENS)).for_each(|((y, x), positions)| {
            for ((y, x), p) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(positions) {
                let at = *p as usize * h;
                let (cos, sin) = (&self.cos[at..at + h], &self.sin[at..at + h]);
                for (y, x) in y.chunks_exact_mut(2 * h).zip(x.chunks_exact(2 * h)) {
                    let ((ya, yb), (xa, xb)) = (y.split_at_mut(h), x.split_at(h));
                    for i in 0..h {
                        ya[i] = xa[i] * cos[i] - xb[i] * (sign * sin[i]);
                        yb[i] = xb[i] * cos[i] + xa[i] * (sign * sin[i]);
                    }
                }
            }
        });
        y
    }
}

struct Rope {
    angles: Arc<Angles>,
    positions: Arc<[u32]>,
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = self.angles.rotate(floats(x, layout)?, &self.positions, 1.0);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let g = g.contiguous()?;
        let dx = with_floats([&g], |[g]| Ok(self.angles.rotate(g, &self.positions, -1.0)))?;
        Ok(Some(Tensor::from_vec(dx, x.shape(), x.device())?))
    }
}

/// Rotates every head of `x [N, heads * head_dim]` by the angles of `positions [N]`, all below the length of the table.
pub(crate) fn rope(x: &Tensor, angles: &Arc<Angles>, positions: &Arc<[u32]>) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Rope { angles: angles.clone(), positions: positions.clone() })
}
