//! The head's kernels as operations on tensors.

use super::{HeadLoss, Refusal, Side, Sides};
use crate::fused::floats;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Storage, Tensor, bail};
use lockstep_kernels::head::{self as kernel, Correction, Gradient, LogProbs, Row, Scores, Weighed};
use std::cell::RefCell;

/// The slices of a side on the CPU.
fn cpu_side<'a>(
    (hidden, of_hidden): (&'a CpuStorage, &Layout),
    (head, of_head): (&'a CpuStorage, &Layout),
) -> Result<kernel::Side<'a>> {
    let width = of_head.shape().dims2()?.1;
    kernel::Side::new(floats(hidden, of_hidden)?, floats(head, of_head)?, width).map_err(candle_core::Error::wrap)
}

fn on_cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("a side of the head that is not on the CPU beside one that is"),
    }
}

/// Runs `f` on the slices of older sides.
fn with_older<R>(older: &[Side], f: impl FnOnce(&[kernel::Side<'_>]) -> Result<R>) -> Result<R> {
    let guards: Vec<_> =
        older.iter().map(|side| (side.hidden.storage_and_layout(), side.head.storage_and_layout())).collect();
    let sides = guards
        .iter()
        .map(|((hidden, of_hidden), (head, of_head))| cpu_side((on_cpu(hidden)?, of_hidden), (on_cpu(head)?, of_head)));
    f(&sides.collect::<Result<Vec<_>>>()?)
}

/// What an operation found besides its tensor, or what it refused.
type Found<T> = RefCell<Option<std::result::Result<T, Refusal>>>;

/// Runs an operation on a side; its own refusal stands before what candle makes of it.
fn run<T>(side: &Side, op: &impl CustomOp2, found: &Found<T>) -> std::result::Result<(Tensor, T), Refusal> {
    let tensor = side.hidden.apply_op2_no_bwd(&side.head, op);
    match found.take() {
        Some(Ok(found)) => Ok((tensor?, found)),
        Some(Err(refusal)) => Err(refusal),
        None => Err(tensor.err().unwrap_or(candle_core::Error::Msg(format!("{} found nothing", op.name()))).into()),
    }
}

/// Keeps what a kernel gave; gives its tensor's data.
fn keep<T, E: Into<Refusal>>(
    found: &Found<T>,
    given: std::result::Result<T, E>,
    data: impl FnOnce(&T) -> Vec<f32>,
) -> Result<CpuStorage> {
    let (data, given) = match given {
        Ok(given) => (Ok(CpuStorage::F32(data(&given))), Ok(given)),
        Err(error) => (Err(candle_core::Error::Msg("refused".into())), Err(error.into())),
    };
    found.replace(Some(given));
    data
}

/// `hidden [N, H]`, `head [V, H]` -> log p of the drawn tokens, `[M]`; keeps the scores of every position.
pub(super) struct LogProb<'a> {
    rows: &'a [Row<'a>],
    logits_bytes: usize,
    found: Found<Vec<Scores>>,
}

impl<'a> LogProb<'a> {
    pub(super) fn new(side: &Side, rows: &'a [Row<'a>]) -> Self {
        Self { rows, logits_bytes: side.logits_bytes, found: RefCell::new(None) }
    }

    pub(super) fn run(self, side: &Side) -> std::result::Result<Vec<Scores>, Refusal> {
        Ok(run(side, &self, &self.found)?.1)
    }
}

impl CustomOp2 for LogProb<'_> {
    fn name(&self) -> &'static str {
        "head-logprob"
    }

    fn cpu_fwd(&self, h: &CpuStorage, hl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let sides = kernel::Sides { now: cpu_side((h, hl), (w, wl))?, older: &[], logits_bytes: self.logits_bytes };
        let drawn = |scores: &Vec<Scores>| scores.iter().map(|scores| scores.now.drawn as f32).collect();
        let data = keep(&self.found, kernel::head_logprob(sides, self.rows), drawn)?;
        Ok((data, Shape::from(self.rows.len())))
    }
}

/// `hidden [N, H]`, `head [V, H]` -> dloss/dhidden, `[N, H]`; adds dloss/dhead to a buffer, keeps loss and what was seen.
/// Forward and backward in one, because the coefficients depend on the log-probs and the logits are not kept.
pub(super) struct Backward<'a, X, F> {
    sides: Sides<'a>,
    rows: &'a [Row<'a>],
    objective: F,
    of_head: RefCell<&'a mut [f32]>,
    found: Found<kernel::HeadLoss<X>>,
}

impl<'a, X: Send, F: Fn(usize, LogProbs) -> std::result::Result<Weighed<X>, Refusal> + Sync> Backward<'a, X, F> {
    pub(super) fn new(sides: Sides<'a>, rows: &'a [Row<'a>], objective: F, of_head: &'a mut [f32]) -> Self {
        Self { sides, rows, objective, of_head: RefCell::new(of_head), found: RefCell::new(None) }
    }

    pub(super) fn run(self, side: &Side) -> std::result::Result<HeadLoss<X>, Refusal> {
        let (of_hidden, found) = run(side, &self, &self.found)?;
        Ok(HeadLoss { loss: found.loss, seen: found.seen, hidden: found.reached.then_some(of_hidden) })
    }
}

impl<X: Send, F: Fn(usize, LogProbs) -> std::result::Result<Weighed<X>, Refusal> + Sync> CustomOp2
    for Backward<'_, X, F>
{
    fn name(&self) -> &'static str {
        "head-backward"
    }

    fn cpu_fwd(&self, h: &CpuStorage, hl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let now = cpu_side((h, hl), (w, wl))?;
        let mut hidden = vec![0f32; hl.shape().elem_count()];
        let given = with_older(self.sides.sampler, |older| {
            let sides = kernel::Sides { now, older, logits_bytes: self.sides.now.logits_bytes };
            let gradient = Gradient { hidden: &mut hidden, head: &mut self.of_head.borrow_mut() };
            Ok(kernel::head_backward(sides, self.rows, &self.objective, gradient))
        })?;
        Ok((keep(&self.found, given, |_| hidden)?, hl.shape().clone()))
    }
}

/// Gradient of one position's loss with respect to the logits of its domain.
pub(super) fn logits_gradient(
    side: &Side,
    row: &Row<'_>,
    correction: &Correction,
) -> std::result::Result<Vec<f64>, Refusal> {
    Ok(with_older(std::slice::from_ref(side), |sides| Ok(kernel::logits_gradient(sides[0], row, correction)))??)
}

/// The loss of a head as a node of the graph over its hidden states: value and gradient are known already.
struct Loss {
    value: f64,
    of_hidden: Tensor,
}

impl CustomOp1 for Loss {
    fn name(&self) -> &'static str {
        "head-loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.value as f32]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, h: &candle_core::CudaStorage, _: &Layout) -> Result<(candle_core::CudaStorage, Shape)> {
        let value = h.device.clone_htod(&[self.value as f32])?;
        Ok((candle_core::CudaStorage::wrap_cuda_slice(value, h.device.clone()), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        self.of_hidden.broadcast_mul(g).map(Some)
    }
}

/// A scalar of this value whose gradient with respect to `hidden [N, H]` is `of_hidden`.
pub(crate) fn loss_of(hidden: &Tensor, value: f64, of_hidden: &Tensor) -> Result<Tensor> {
    hidden.apply_op1(Loss { value, of_hidden: of_hidden.clone() })
}
