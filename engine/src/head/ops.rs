//! The head's kernels as operations on tensors, on the CPU and on a card.

use super::rows::{self, Rows};
use super::{Asked, HeadLoss, Refusal, Side, Sides, Weighed};
use crate::found::Found;
use crate::fused::floats;
use crate::optimiser::Floats;
use crate::train_error::TrainResult;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Storage, Tensor, bail};
use lockstep_core::score::RowLogProbs;
use lockstep_kernels::head::{self as kernel, Correction, Gradient, LogProbs, Row, Scores};
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

/// `hidden [N, H]`, `head [V, H]` -> log p of the drawn tokens, `[M]`; keeps the scores of every position.
pub(super) struct LogProb<'a> {
    side: &'a Side,
    asked: &'a [Asked],
    found: Found<Vec<RowLogProbs>, Refusal>,
}

fn drawn(scores: &[RowLogProbs]) -> Vec<f32> {
    scores.iter().map(|scores| scores.log_p_sampled as f32).collect()
}

impl<'a> LogProb<'a> {
    pub(super) fn new(side: &'a Side, asked: &'a [Asked]) -> Self {
        Self { side, asked, found: Found::nothing() }
    }

    pub(super) fn run(self) -> std::result::Result<Vec<RowLogProbs>, Refusal> {
        let tensor = self.side.hidden.apply_op2_no_bwd(&self.side.head, &self);
        Ok(self.found.take(tensor)?.1)
    }

    fn on_cpu(&self, now: kernel::Side<'_>) -> std::result::Result<Vec<RowLogProbs>, Refusal> {
        let sides = kernel::Sides { now, older: &[], logits_bytes: self.side.logits_bytes };
        let found = kernel::head_logprob(sides, &Rows::new(self.asked, false).kernel())?;
        let reported = |(asked, scores): (&Asked, Scores)| rows::row_log_probs(&asked.support, scores.now);
        Ok(self.asked.iter().zip(found).map(reported).collect())
    }
}

impl CustomOp2 for LogProb<'_> {
    fn name(&self) -> &'static str {
        "head-logprob"
    }

    fn cpu_fwd(&self, h: &CpuStorage, hl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let scores = self.on_cpu(cpu_side((h, hl), (w, wl))?);
        let data = self.found.keep(scores, |scores| Ok(CpuStorage::F32(drawn(scores))))?;
        Ok((data, Shape::from(self.asked.len())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, h: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let scores = super::card::scores(self.side, self.asked).map_err(Refusal::Train);
        let data = self.found.keep(scores, |scores| h.device.clone_htod(&drawn(scores)))?;
        Ok((CudaStorage::wrap_cuda_slice(data, h.device.clone()), Shape::from(self.asked.len())))
    }
}

/// `hidden [N, H]`, `head [V, H]` -> dloss/dhidden, `[N, H]`; adds dloss/dhead to a buffer, keeps loss and what was seen.
/// Forward and backward in one, because the coefficients depend on the log-probs and the logits are not kept.
pub(super) struct Backward<'a, X, F> {
    sides: Sides<'a>,
    asked: &'a [Asked],
    objective: F,
    of_head: RefCell<&'a mut Floats>,
    found: Found<HeadLoss<X>, Refusal>,
}

impl<'a, X: Send, F: Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>> + Sync> Backward<'a, X, F> {
    pub(super) fn new(sides: Sides<'a>, asked: &'a [Asked], objective: F, of_head: &'a mut Floats) -> Self {
        Self { sides, asked, objective, of_head: RefCell::new(of_head), found: Found::nothing() }
    }

    pub(super) fn run(self) -> std::result::Result<HeadLoss<X>, Refusal> {
        let tensor = self.sides.now.hidden.apply_op2_no_bwd(&self.sides.now.head, &self);
        let (of_hidden, found) = self.found.take(tensor)?;
        Ok(HeadLoss { hidden: found.reached.then_some(of_hidden), ..found })
    }

    fn on_cpu(&self, now: kernel::Side<'_>, hidden: &mut [f32]) -> std::result::Result<HeadLoss<X>, Refusal> {
        let (asked, objective) = (self.asked, &self.objective);
        let weigh = |index: usize, log_theta: LogProbs| -> std::result::Result<kernel::Weighed<X>, Refusal> {
            let asked: &Asked = &asked[index];
            let weighed = objective(index, rows::row_log_probs(&asked.support, log_theta))?;
            rows::check_tail(asked, &weighed.correction)?;
            let correction = rows::correction(weighed.correction, weighed.advantage);
            Ok(kernel::Weighed { correction, seen: weighed.seen })
        };
        let mut of_head = self.of_head.borrow_mut();
        let Floats::Host(head) = &mut **of_head else {
            return Err(candle_core::Error::Msg("the head's gradient is not on the CPU".into()).into());
        };
        let found = with_older(self.sides.sampler, |older| {
            let sides = kernel::Sides { now, older, logits_bytes: self.sides.now.logits_bytes };
            let rows = Rows::new(asked, true);
            Ok(kernel::head_backward(sides, &rows.kernel(), weigh, Gradient { hidden, head }))
        })??;
        Ok(HeadLoss { loss: found.loss, seen: found.seen, reached: found.reached, hidden: None })
    }
}

impl<X: Send, F: Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>> + Sync> CustomOp2 for Backward<'_, X, F> {
    fn name(&self) -> &'static str {
        "head-backward"
    }

    fn cpu_fwd(&self, h: &CpuStorage, hl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut hidden = vec![0f32; hl.shape().elem_count()];
        let given = self.on_cpu(cpu_side((h, hl), (w, wl))?, &mut hidden);
        Ok((self.found.keep(given, |_| Ok(CpuStorage::F32(hidden)))?, hl.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, _: &CudaStorage, hl: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let given = super::card::backward(self.sides, self.asked, &self.objective, &mut self.of_head.borrow_mut());
        let storage = self.found.keep(given.map_err(Refusal::Train), |found| super::card::storage(&found.hidden))?;
        Ok((storage, hl.shape().clone()))
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
    fn cuda_fwd(&self, h: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let value = h.device.clone_htod(&[self.value as f32])?;
        Ok((CudaStorage::wrap_cuda_slice(value, h.device.clone()), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        self.of_hidden.broadcast_mul(g).map(Some)
    }
}

/// A scalar of this value whose gradient with respect to `hidden [N, H]` is `of_hidden`.
pub(crate) fn loss_of(hidden: &Tensor, value: f64, of_hidden: &Tensor) -> Result<Tensor> {
    hidden.apply_op1(Loss { value, of_hidden: of_hidden.clone() })
}
