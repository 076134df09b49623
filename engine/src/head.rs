//! The head between candle and `lockstep_kernels::head`, which is its definition: positions in the words of the core go in,
//! log-probs and gradients come out.
//!
//! Shapes: N rows of hidden states, H hidden, V vocabulary.

use crate::optimiser::Floats;
use crate::train_error::{Place, TrainError, TrainResult};
use crate::{Error, Qwen3};
use candle_core::{Device, Tensor};
use lockstep_core::dlc::TokenCorrection;
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::Support;
use lockstep_kernels::head as kernel;
use ops::{Backward, LogProb};
use rows::Rows;

#[cfg(feature = "cuda")]
mod card;
mod ops;
mod rows;

pub(crate) use ops::loss_of;

/// Bytes of logits held at a time unless the caller wants another number.
pub const LOGITS_BYTES: usize = 64 << 20;

/// Name of the parameter that turns hidden states into logits.
pub(crate) fn head_name(tied: bool) -> &'static str {
    if tied { "model.embed_tokens.weight" } else { "lm_head.weight" }
}

/// Hidden states `[N, H]` and the head `[V, H]` they meet, both outside the graph.
#[derive(Debug, Clone)]
pub struct Side {
    hidden: Tensor,
    head: Tensor,
    logits_bytes: usize,
}

impl Side {
    /// The head of `model` over `hidden [N, H]`; at most about `logits_bytes` of logits are held at a time.
    ///
    /// # Errors
    /// A model without a head.
    pub fn new(model: &Qwen3, hidden: &Tensor, logits_bytes: usize) -> TrainResult<Self> {
        let name = head_name(model.config().tied);
        let missing = || Error::Missing { name: name.into(), shape: vec![model.config().vocab, model.config().hidden] };
        let head = model.weights().get(name).ok_or_else(missing)?.as_detached_tensor();
        Ok(Self { hidden: hidden.detach().contiguous()?, head, logits_bytes })
    }

    fn on_cpu(&self) -> TrainResult<Self> {
        let [hidden, head] = [&self.hidden, &self.head].map(|tensor| tensor.to_device(&Device::Cpu));
        Ok(Self { hidden: hidden?, head: head?, logits_bytes: self.logits_bytes })
    }

    fn vocab(&self) -> TrainResult<usize> {
        Ok(self.head.dim(0)?)
    }
}

/// One position that is to be scored, or trained.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its name.
    pub place: Place,
    /// Row of the hidden states that predict it; no two positions share one.
    pub row: usize,
    /// q.
    pub support: Support,
    /// Divisor of the logits.
    pub temperature: f64,
    /// Index of the sampler's side, where p_s is needed on every entry.
    pub sampler: Option<usize>,
}

/// The hidden states of one forward under the weights now, and under older ones.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// The weights that are trained.
    pub now: &'a Side,
    /// The weights that sampled, by [`Asked::sampler`].
    pub sampler: &'a [Side],
}

/// What an objective makes of the log-probs of one position.
#[derive(Debug, Clone)]
pub struct Weighed<X> {
    /// `(w, c)`.
    pub correction: TokenCorrection,
    /// A, with the position's share of the batch.
    pub advantage: f64,
    /// What the objective wants to remember.
    pub seen: X,
}

/// What a backward through the head gives.
#[derive(Debug)]
pub struct HeadLoss<X> {
    /// Sum of the losses.
    pub loss: f64,
    /// What the objective saw, one entry a position.
    pub seen: Vec<X>,
    /// `false` where every gradient is exactly zero.
    pub reached: bool,
    /// Gradient with respect to the hidden states, `[N, H]`; `None` where it is zero everywhere.
    pub hidden: Option<Tensor>,
}

/// log p of every asked position, rounded to f32 as it travels.
///
/// # Errors
/// Ids outside the head, another vocabulary, logits that cannot be normalised; each with its place.
pub fn scores(side: &Side, asked: &[Asked]) -> TrainResult<Vec<RowLogProbs>> {
    rows::check(asked, side.vocab()?)?;
    LogProb::new(side, asked).run().map_err(rows::refusal(asked))
}

/// Sum of the losses of all asked positions; adds the head's gradient to `of_head`, `[V, H]` flat, where the sides are. The
/// objective sees an index into `asked` and the position's log-probs as a scorer would report them.
///
/// # Errors
/// As [`scores`]; and whatever the objective refuses.
pub(crate) fn backward<X: Send>(
    sides: Sides<'_>,
    asked: &[Asked],
    objective: impl Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>> + Sync,
    of_head: &mut Floats,
) -> TrainResult<HeadLoss<X>> {
    rows::check(asked, sides.now.vocab()?)?;
    Backward::new(sides, asked, objective, of_head).run().map_err(rows::refusal(asked))
}

/// Gradient of one position's loss with respect to the logits of its domain, at advantage 1.
///
/// # Errors
/// As [`scores`]; coefficients of another number than the ids.
pub fn gradient(side: &Side, asked: &Asked, correction: TokenCorrection) -> TrainResult<Vec<f64>> {
    let one = std::slice::from_ref(asked);
    rows::check(one, side.vocab()?)?;
    let rows = Rows::new(one, false);
    // One position is no work for a card.
    let found = ops::logits_gradient(&side.on_cpu()?, &rows.kernel()[0], &rows::correction(correction, 1.0));
    found.map_err(rows::refusal(one))
}

/// What stops a pass through the head.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel, at one of its rows.
    Row(kernel::RowError),
    /// The objective, or the tensors.
    Train(TrainError),
}

impl From<kernel::RowError> for Refusal {
    fn from(error: kernel::RowError) -> Self {
        Self::Row(error)
    }
}

impl From<TrainError> for Refusal {
    fn from(error: TrainError) -> Self {
        Self::Train(error)
    }
}

impl From<candle_core::Error> for Refusal {
    fn from(error: candle_core::Error) -> Self {
        Self::Train(error.into())
    }
}
