//! The gate of the feed-forward layer.

use super::{floats, with_floats};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

const CHUNK: usize = 1 << 14;

struct SwiGlu;

/// `1 / (1 + exp(-x))`.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, a: &CpuStorage, al: &Layout, b: &CpuStorage, bl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (floats(a, al)?, floats(b, bl)?);
        let mut y = vec![0f32; a.len()];
        let pieces = y.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK));
        pieces.for_each(|((y, a), b)| {
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = a * sigmoid(*a) * b;
            }
        });
        Ok((CpuStorage::F32(y), al.shape().clone()))
    }

    /// ```text
    /// y = a s(a) b      da = g b s(a) (1 + a (1 - s(a)))      db = g a s(a)
    /// ```
    fn bwd(&self, a: &Tensor, b: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (da, db) = with_floats([a, b, &g], |[a, b, g]| {
            let (mut da, mut db) = (vec![0f32; a.len()], vec![0f32; a.len()]);
            let out = da.par_chunks_mut(CHUNK).zip(db.par_chunks_mut(CHUNK));
            let given = a.par_chunks(CHUNK).zip(b.par_chunks(CHUNK)).zip(g.par_chunks(CHUNK));
            out.zip(given).for_each(|((da, db), ((a, b), g))| {
                for i in 0..a.len() {
                    let s = sigmoid(a[i]);
                    da[i] = g[i] * b[i] * s * (1.0 + a[i] * (1.0 - s));
                    db[i] = g[i] * a[i] * s;
                }
            });
            Ok((da, db))
        })?;
        Ok((Some(Tensor::from_vec(da, a.shape(), a.device())?), Some(Tensor::from_vec(db, b.shape(), b.device())?)))
    }
}

/// `silu(gate) * up`, elementwise.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.contiguous()?.apply_op2(&up.contiguous()?, SwiGlu)
}
