//! A matrix of the model as it is kept: floats, or Q8_0 with products over its blocks.
//!
//! Shapes: N rows of activations.

use crate::plain;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Error, Layout, Result, Shape, Tensor};
use lockstep_kernels::q8;
use std::sync::Arc;

/// A matrix `[out, in]`.
#[derive(Debug, Clone)]
pub(crate) enum Matrix {
    Floats(Tensor),
    Q8(Q8),
}

impl Matrix {
    /// `x [N, in] W^T`: `[N, out]`, in the type of `x`.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Floats(w) => plain::linear(x, w),
            Self::Q8(w) => x.contiguous()?.apply_op1_no_bwd(w)?.to_dtype(x.dtype()),
        }
    }

    /// Some rows, `[N, in]`, on `device`.
    pub(crate) fn select(&self, rows: &[u32], device: &Device) -> Result<Tensor> {
        match self {
            Self::Floats(w) => w.index_select(&Tensor::from_slice(rows, rows.len(), device)?, 0),
            Self::Q8(w) => {
                let selected = w.kernel()?.select(rows).map_err(Error::wrap)?;
                Tensor::from_vec(selected, (rows.len(), w.columns), device)
            }
        }
    }
}

/// A matrix `[out, in]` in Q8_0. Without a backward: it is to sample with.
#[derive(Debug, Clone)]
pub(crate) struct Q8 {
    bytes: Arc<[u8]>,
    columns: usize,
    #[cfg(feature = "cuda")]
    on_card: Option<Arc<lockstep_kernels::cuda::Q8>>,
}

impl Q8 {
    /// Rounds `w [out, in]`, which is kept on `device`.
    ///
    /// # Errors
    /// Rows that are no multiple of 32, weights that Q8_0 cannot hold, a card without room.
    pub(crate) fn new(w: &Tensor, device: &Device) -> Result<Self> {
        let columns = w.dims2()?.1;
        let floats: Vec<f32> = w.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let bytes: Arc<[u8]> = q8::quantise(&floats).map_err(Error::wrap)?.into();
        let matrix = Self {
            bytes,
            columns,
            #[cfg(feature = "cuda")]
            on_card: None,
        };
        matrix.kernel()?;
        matrix.on(device)
    }

    #[cfg(not(feature = "cuda"))]
    fn on(self, _: &Device) -> Result<Self> {
        Ok(self)
    }

    /// A card keeps the blocks there, and no copy beside them.
    #[cfg(feature = "cuda")]
    fn on(self, device: &Device) -> Result<Self> {
        let Device::Cuda(card) = device else { return Ok(self) };
        let on_card = crate::cuda::kernels(card).q8(self.kernel()?).map_err(crate::cuda::refused)?;
        Ok(Self { bytes: Arc::new([]), on_card: Some(Arc::new(on_card)), ..self })
    }

    fn kernel(&self) -> Result<q8::Q8<'_>> {
        q8::Q8::new(&self.bytes, self.columns).map_err(Error::wrap)
    }

    /// The weights as the rounding left them, `[out, in]`.
    pub(crate) fn floats(&self) -> Result<Tensor> {
        let matrix = self.kernel()?;
        Tensor::from_vec(matrix.weights(), (matrix.rows(), self.columns), &Device::Cpu)
    }
}

impl CustomOp1 for Q8 {
    fn name(&self) -> &'static str {
        "q8-gemv"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (matrix, n) = (self.kernel()?, layout.shape().dims2()?.0);
        let mut y = vec![0f32; n * matrix.rows()];
        q8::q8_gemv(matrix, crate::fused::floats(x, layout)?, &mut y).map_err(Error::wrap)?;
        Ok((CpuStorage::F32(y), Shape::from((n, matrix.rows()))))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &candle_core::CudaStorage, layout: &Layout) -> Result<(candle_core::CudaStorage, Shape)> {
        let Some(matrix) = &self.on_card else { candle_core::bail!("a matrix on the CPU for activations on a card") };
        crate::cuda::q8_gemv(matrix, (x, layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_kernels::philox::normal;

    fn noise(rows: usize, columns: usize, seed: u64) -> Tensor {
        let values = (0..(rows * columns) as u64).map(|i| normal(seed, 0, i) as f32);
        Tensor::from_iter(values, &Device::Cpu).unwrap().reshape((rows, columns)).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_product_over_blocks_is_that_of_the_rounded_floats() {
        let (w, x) = (noise(70, 64, 1), noise(9, 64, 2));
        let rounded = Q8::new(&w, &Device::Cpu).unwrap();
        let want = values(&plain::linear(&x, &rounded.floats().unwrap()).unwrap());
        let matrix = Matrix::Q8(rounded);
        let got = values(&matrix.product(&x).unwrap());
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-4), "{got:?} {want:?}");
        let exact = values(&Matrix::Floats(w).product(&x).unwrap());
        assert!(got.iter().zip(&exact).any(|(got, exact)| (got - exact).abs() > 1e-3));
    }

    /// candle's own Q8_0, which is ggml's, rounds to the same blocks.
    #[test]
    fn weights_are_rounded_as_ggml_rounds_them() {
        use candle_core::quantized::{GgmlDType, QTensor};
        let w = noise(6, 96, 3);
        let other = QTensor::quantize(&w, GgmlDType::Q8_0).unwrap().dequantize(&Device::Cpu).unwrap();
        assert_eq!(values(&Q8::new(&w, &Device::Cpu).unwrap().floats().unwrap()), values(&other));
    }

    #[test]
    fn rows_are_selected_as_they_are_kept() {
        let rounded = Q8::new(&noise(6, 32, 4), &Device::Cpu).unwrap();
        let all = rounded.floats().unwrap();
        let selected = Matrix::Q8(rounded).select(&[5, 0, 5], &Device::Cpu).unwrap();
        let want = Matrix::Floats(all).select(&[5, 0, 5], &Device::Cpu).unwrap();
        assert_eq!(values(&selected), values(&want));
    }

    #[test]
    fn what_q8_cannot_hold_is_refused() {
        let refused = |w: &Tensor| Q8::new(w, &Device::Cpu).unwrap_err().to_string();
        assert!(refused(&noise(1, 40, 5)).contains("40"), "{}", refused(&noise(1, 40, 5)));
        let infinite = Tensor::new(&[[f32::INFINITY; 32]], &Device::Cpu).unwrap();
        assert!(refused(&infinite).contains("weight 0 is inf"), "{}", refused(&infinite));
    }
}
