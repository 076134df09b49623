//! The kernels on the tensors of a card: what candle's storage and `lockstep_kernels::cuda` have to say to each other.

use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail,
};
use half::bf16;
use lockstep_kernels::adamw::Constants;
use lockstep_kernels::cuda::{
    CudaError, Kernels, Q8, Q8_BATCH, UpdateSlot,
    cudarc::driver::{CudaSlice, CudaView},
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The kernels of every card in use, by candle's name of it.
static LOADED: Mutex<Option<HashMap<String, Kernels>>> = Mutex::new(None);

/// The kernels on the stream of a device.
pub(crate) fn kernels(device: &CudaDevice) -> Kernels {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{:?}", device.id());
    let of_device = loaded.get_or_insert_default().entry(name);
    of_device.or_insert_with(|| Kernels::on(device.cuda_stream())).clone()
}

/// A kernel's refusal as candle's.
pub(crate) fn refused(error: CudaError) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// The floats of a contiguous operand on a card.
pub(crate) fn floats<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, f32>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("operand of shape {:?} is not contiguous", layout.dims())
    };
    Ok(storage.as_cuda_slice::<f32>()?.slice(start..end))
}

/// Runs `f` on the floats of a contiguous tensor of a card.
pub(crate) fn with_floats<R>(tensor: &Tensor, f: impl FnOnce(&Kernels, CudaView<'_, f32>) -> Result<R>) -> Result<R> {
    let Device::Cuda(device) = tensor.device() else { bail!("a tensor on the CPU beside one on a card") };
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(cuda) => f(&kernels(device), floats(cuda, layout)?),
        _ => bail!("a tensor on the CPU beside one on a card"),
    }
}

/// The kernels of the card a tensor is on.
pub(crate) fn kernels_of(tensor: &Tensor) -> Result<Kernels> {
    match tensor.device() {
        Device::Cuda(device) => Ok(kernels(device)),
        _ => bail!("a tensor on the CPU where one on a card is wanted"),
    }
}

/// A tensor `[n]` of the floats that `f` makes on `device`.
pub(crate) fn new_floats(
    device: &Device,
    n: usize,
    f: impl FnOnce(&Kernels) -> Result<CudaSlice<f32>>,
) -> Result<Tensor> {
    let Device::Cuda(card) = device else { bail!("floats of a card for the CPU") };
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(f(&kernels(card))?, card.clone()));
    Ok(Tensor::from_storage(storage, n, candle_core::op::BackpropOp::none(), false))
}

/// One step of the optimiser on a parameter of a card.
pub(crate) fn adamw(
    (param, layout): (&mut CudaStorage, &Layout),
    [grad, m, v]: [&Tensor; 3],
    constants: Constants,
) -> Result<()> {
    let kernels = kernels(&param.device.clone());
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("parameter of shape {:?} is not contiguous", layout.dims())
    };
    let mut param = param.as_cuda_slice_mut::<f32>()?.slice_mut(start..end);
    with_floats(grad, |_, grad| {
        on_storage(m, |m| {
            on_storage(v, |v| {
                let slot = UpdateSlot { param: &mut param, grad: &grad, m, v };
                kernels.adamw(slot, constants).map_err(refused)
            })
        })
    })
}

/// What an operation on one tensor's memory does, once.
struct Once<F>(RefCell<Option<F>>);

impl<F: FnOnce(&mut CudaSlice<f32>) -> Result<()>> InplaceOp1 for Once<F> {
    fn name(&self) -> &'static str {
        "in-place"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("a moment on the CPU of a parameter on a card")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let slice = storage.as_cuda_slice_mut::<f32>()?;
        self.0.take().map_or(Ok(()), |f| f(slice))
    }
}

/// Runs `f` on the memory of a tensor of a card, from its beginning, which nothing else shares.
pub(crate) fn on_storage(tensor: &Tensor, f: impl FnOnce(&mut CudaSlice<f32>) -> Result<()>) -> Result<()> {
    tensor.inplace_op1(&Once(RefCell::new(Some(f))))
}

/// `x [N, in] W^T`, f32, in launches of as many rows as the kernel takes.
pub(crate) fn q8_gemv(matrix: &Q8, (x, layout): (&CudaStorage, &Layout)) -> Result<(CudaStorage, Shape)> {
    let device = &x.device;
    let (n, width) = layout.shape().dims2()?;
    let Some((start, _)) = layout.contiguous_offsets() else {
        bail!("operand of shape {:?} is not contiguous", layout.dims())
    };
    let (kernels, out) = (kernels(device), matrix.values.len() / matrix.width.max(1));
    let x = x.as_cuda_slice::<bf16>()?;
    let mut y = device.alloc_zeros::<f32>(n * out)?;
    for first in (0..n).step_by(Q8_BATCH) {
        let batch = Q8_BATCH.min(n - first);
        let rows = x.slice(start + first * width..start + (first + batch) * width);
        let part = kernels.q8_gemv(matrix, &rows, batch).map_err(refused)?;
        let mut to = y.slice_mut(first * out..(first + batch) * out);
        device.memcpy_dtod(&part, &mut to)?;
    }
    Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), Shape::from((n, out))))
}
