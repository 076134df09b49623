//! Launches over weights: the optimiser, and the Q8_0 product.

use super::{CudaError, CudaResult, Kernel, Kernels, THREADS, WARPS, blocks, long_enough};
use crate::adamw::Constants;
use crate::q8;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, PushKernelArg};
use half::bf16;

/// Rows of activations a launch of `q8_gemv` takes.
pub const Q8_BATCH: usize = 8;

/// One parameter with its moments, of one length.
#[derive(Debug)]
pub struct UpdateSlot<'p, 'g, 'b> {
    /// The weights, updated in place.
    pub param: &'b mut CudaViewMut<'p, f32>,
    /// The gradient of the loss.
    pub grad: &'b CudaView<'g, f32>,
    /// First moment, updated in place.
    pub m: &'b mut CudaSlice<f32>,
    /// Second moment, updated in place.
    pub v: &'b mut CudaSlice<f32>,
}

/// A matrix `[out, in]` of Q8_0, its values and its scales apart.
#[derive(Debug)]
pub struct Q8 {
    /// `[out, in]` signed bytes.
    pub values: CudaSlice<i8>,
    /// `[out, in / 32]`, f16 as bits.
    pub scales: CudaSlice<u16>,
    /// Length of a row; a multiple of 32.
    pub width: usize,
}

impl Kernels {
    /// A matrix on the card.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn q8(&self, matrix: q8::Q8<'_>) -> CudaResult<Q8> {
        let (scales, values): (Vec<u16>, Vec<Vec<i8>>) = matrix.blocks().unzip();
        let (values, scales) = (self.stream.clone_htod(&values.concat())?, self.stream.clone_htod(&scales)?);
        Ok(Q8 { values, scales, width: matrix.columns() })
    }

    /// One step of [`crate::adamw::AdamW`].
    ///
    /// # Errors
    /// Lengths that differ, what the driver refuses.
    pub fn adamw(&self, slot: UpdateSlot<'_, '_, '_>, constants: Constants) -> CudaResult<()> {
        let n = slot.param.len();
        let checks = [("grad", slot.grad.len(), n), ("m", slot.m.len(), n), ("v", slot.v.len(), n)];
        long_enough("adamw", &checks)?;
        if n == 0 {
            return Ok(());
        }
        let function = self.function(Kernel::AdamW)?;
        let (none, entries) = (0u64, n as u64);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(slot.param).arg(slot.grad).arg(slot.m).arg(slot.v).arg(&none).arg(&entries).arg(&constants);
        // SAFETY: one thread an entry, which stops at `n`; every buffer has `n` (checked).
        unsafe { self.launch(launch, blocks(n.div_ceil(THREADS as usize))) }?;
        Ok(())
    }

    /// `x W^T`, `[batch, out]` f32, of up to 8 rows of bf16 activations `x [batch, in]`.
    ///
    /// # Errors
    /// A width that is no multiple of 32, a batch beyond 8, buffers too short, what the driver refuses.
    pub fn q8_gemv(&self, weights: &Q8, x: &CudaView<'_, bf16>, batch: usize) -> CudaResult<CudaSlice<f32>> {
        let width = weights.width;
        let out = weights.values.len() / width.max(1);
        if width == 0 || !width.is_multiple_of(32) {
            return Err(CudaError::Width(width));
        }
        let checks = [
            ("a launch's rows", Q8_BATCH, batch),
            ("scales", weights.scales.len(), out * (width / 32)),
            ("x", x.len(), batch * width),
        ];
        long_enough("q8_gemv", &checks)?;
        let mut y = self.stream.alloc_zeros::<f32>((batch * out).max(1))?;
        let function = self.function(Kernel::Q8Gemv)?;
        let (input, output, rows) = (width as i32, out as i32, batch as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&weights.values).arg(&weights.scales).arg(&input).arg(&output).arg(x).arg(&rows).arg(&mut y);
        // SAFETY: one warp an output, which stops at `out`; buffers are long enough (checked) and CUDA aligns them to 256
        // bytes, so every row of a multiple of 32 bytes is aligned for 16-byte loads.
        unsafe { self.launch(launch, blocks(out.div_ceil(WARPS as usize).max(1))) }?;
        Ok(y)
    }
}
