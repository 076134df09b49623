//! The four fused operations of the model, each with a backward: candle's own fused ones have none and cut the graph
//! without an error. Forward and backward are f32 on the CPU; work is cut into fixed pieces and sums run in a fixed order,
//! so the number of threads does not change a bit of the result.

pub(crate) mod attention;
mod norm;
mod rope;
mod swiglu;

pub(crate) use norm::rms_norm;
pub(crate) use rope::{Angles, rope};
pub(crate) use swiglu::swiglu;

use candle_core::{CpuStorage, Error, Layout, Result, Storage, Tensor, bail};

/// The floats of a contiguous operand.
pub(crate) fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("operand of shape {:?} is not contiguous", layout.dims())
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Runs `f` on the floats of contiguous CPU tensors, without copying them.
pub(crate) fn with_floats<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[f32]; N] = [&[]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        match &**storage {
            Storage::Cpu(cpu) => *slice = floats(cpu, layout)?,
            _ => return Err(Error::Msg("fused operation on a tensor that is not on the CPU".into())),
        }
    }
    f(slices)
}

/// `sum_i a_i b_i` in eight lanes, so that the compiler may vectorise it; the order is fixed.
#[inline]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// `y += scale x`.
#[inline]
pub(crate) fn axpy(y: &mut [f32], scale: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}
