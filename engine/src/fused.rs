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

pub(crate) use lockstep_kernels::vector::{axpy, dot};

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
