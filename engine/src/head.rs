//! The loss at the head, without autograd and without a softmax chain. Over a kept support only the logits of its ids are
//! computed; over a whole vocabulary the logits come in chunks of rows and are gone before the next chunk. What the loss
//! *is* stands in `lockstep_core::dlc`; this file knows how to get from hidden states to log-probs and back.
//!
//! ```text
//! z_v = h . W_v          log p_v = z_v / T - ln sum_u exp(z_u / T)          u, v over the domain of q
//! dh  = sum_v g_v W_v    dW_v   += g_v h                                    g = dloss / dz
//! ```
//!
//! Shapes: N rows of hidden states, H hidden, V vocabulary. Sums run in a fixed order whatever the number of threads.

use crate::train_error::{Place, TrainError, TrainResult};
use crate::{Error, Qwen3};
use candle_core::{Device, Tensor};
use lockstep_core::dlc::TokenCorrection;
use lockstep_core::dlc::loss::{DomainRow, Scale, loss};
use lockstep_core::dlc::weigh::WeighError;
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::Support;
use rayon::prelude::*;
use rows::Kind;

#[cfg(feature = "cuda")]
mod card;
mod rows;
mod scatter;

/// Bytes of logits held at a time unless the caller wants another number.
pub const LOGITS_BYTES: usize = 64 << 20;

/// Rows a parallel piece covers at least.
const ROWS: usize = 32;

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

    /// Logits `[C, V]` of some rows, flat.
    fn logits(&self, hidden: &Tensor) -> TrainResult<Vec<f32>> {
        Ok(hidden.matmul(&self.head.t()?)?.flatten_all()?.to_vec1()?)
    }

    fn chunk(&self) -> TrainResult<usize> {
        Ok((self.logits_bytes / (4 * self.vocab()?)).max(1))
    }

    /// The hidden states of some of the asked rows, `[C, H]`.
    fn select(&self, asked: &[Asked], chunk: &[usize]) -> TrainResult<Tensor> {
        let rows = Tensor::from_iter(chunk.iter().map(|&index| asked[index].row as u32), &Device::Cpu)?;
        Ok(self.hidden.index_select(&rows, 0)?)
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
    /// Advantage and temperature.
    pub scale: Scale,
    /// What the objective wants to remember.
    pub seen: X,
}

struct Outcome<X> {
    seen: X,
    loss: f64,
    /// With respect to the logits of the domain; empty where there was no choice.
    gradient: Vec<f32>,
}

/// What a backward through the head gives.
#[derive(Debug)]
pub struct HeadLoss<X> {
    /// Sum of the losses.
    pub loss: f64,
    /// What the objective saw, one entry a position.
    pub seen: Vec<X>,
    /// Gradient with respect to the hidden states, `[N, H]`; `None` where it is zero everywhere.
    pub hidden: Option<Tensor>,
}

/// log p of every asked position, rounded to f32 as it travels.
///
/// # Errors
/// Ids outside the head, another vocabulary, logits that cannot be normalised; each with its place.
pub fn scores(side: &Side, asked: &[Asked]) -> TrainResult<Vec<RowLogProbs>> {
    rows::check(asked, side.vocab()?)?;
    #[cfg(feature = "cuda")]
    if !side.hidden.device().is_cpu() {
        return card::scores(side, asked);
    }
    let score = |index: usize, logits: &[f32]| {
        let asked: &Asked = &asked[index];
        Ok(rows::row_log_probs(&asked.support, &rows::log_softmax(asked, logits)?))
    };
    let listed = rows::listed_logits(side, asked, |asked| asked.kind() != Kind::Whole)?;
    let narrow = in_order(asked.len(), |index| match asked[index].kind() {
        Kind::Whole => Ok(None),
        _ => score(index, &listed[index]).map(Some),
    })?;
    let mut wide = Vec::new();
    for chunk in rows::whole(asked).chunks(side.chunk()?) {
        let logits = side.logits(&side.select(asked, chunk)?)?;
        let by_row: Vec<&[f32]> = logits.chunks_exact(side.vocab()?).collect();
        wide.extend(in_order(chunk.len(), |at| score(chunk[at], by_row[at]))?);
    }
    let mut wide = wide.into_iter();
    Ok(narrow.into_iter().filter_map(|row| row.or_else(|| wide.next())).collect())
}

/// `f(0), f(1), ..` in parallel; the error is the first one.
fn in_order<R: Send>(n: usize, f: impl Fn(usize) -> TrainResult<R> + Sync) -> TrainResult<Vec<R>> {
    let all: Vec<TrainResult<R>> = (0..n).into_par_iter().with_min_len(ROWS).map(&f).collect();
    all.into_iter().collect()
}

/// Sum of the losses of all asked positions; adds the head's gradient to `head_gradient`, `[V, H]` flat. The objective sees
/// an index into `asked` and the position's log-probs as a scorer would report them.
///
/// # Errors
/// As [`scores`]; and whatever the objective refuses.
pub fn backward<X: Send>(
    sides: Sides<'_>,
    asked: &[Asked],
    objective: impl Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>> + Sync,
    head_gradient: &mut [f32],
) -> TrainResult<HeadLoss<X>> {
    rows::check(asked, sides.now.vocab()?)?;
    let row = |index: usize, now: &[f32], sampler: Option<&[f32]>| {
        row_loss(&asked[index], now, sampler, |log_theta| objective(index, log_theta))
    };
    let mut sums = scatter::Sums::new(&sides.now.hidden, head_gradient)?;
    let listed = rows::listed_logits(sides.now, asked, |asked| asked.kind() != Kind::Whole)?;
    let sampled = rows::sampler_logits(sides.sampler, asked)?;
    let narrow = in_order(asked.len(), |index| match asked[index].kind() {
        Kind::Whole => Ok(None),
        _ => row(index, &listed[index], asked[index].sampler.map(|_| &*sampled[index])).map(Some),
    })?;
    sums.listed(sides.now, asked, &narrow)?;
    let mut wide = Vec::new();
    for chunk in rows::whole(asked).chunks(sides.now.chunk()?) {
        let hidden = sides.now.select(asked, chunk)?;
        let logits = WholeLogits::new(sides, asked, (chunk, &hidden))?;
        let outcomes =
            in_order(chunk.len(), |at| row(chunk[at], logits.now(at), logits.sampler(asked, chunk[at], at)))?;
        sums.whole(&sides.now.head, asked, (chunk, &hidden, &outcomes))?;
        wide.extend(outcomes.into_iter().map(|outcome| (outcome.seen, outcome.loss)));
    }
    let mut wide = wide.into_iter();
    let narrow = narrow.into_iter().map(|row| row.map(|outcome| (outcome.seen, outcome.loss)));
    let (seen, losses): (Vec<X>, Vec<f64>) = narrow.filter_map(|row| row.or_else(|| wide.next())).unzip();
    Ok(HeadLoss { loss: losses.iter().sum(), seen, hidden: sums.hidden()? })
}

/// The same on a card, where the head's gradient `[V, H]` is a tensor that is given.
///
/// # Errors
/// As [`backward`].
#[cfg(feature = "cuda")]
pub(crate) fn backward_on_card<X>(
    sides: Sides<'_>,
    asked: &[Asked],
    objective: impl Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>>,
) -> TrainResult<(HeadLoss<X>, Tensor)> {
    rows::check(asked, sides.now.vocab()?)?;
    card::backward(sides, asked, objective)
}

/// Gradient of one position's loss with respect to the logits of its domain.
///
/// # Errors
/// As [`backward`].
pub fn gradient(side: &Side, asked: &Asked, correction: TokenCorrection) -> TrainResult<Vec<f64>> {
    let one = std::slice::from_ref(asked);
    rows::check(one, side.vocab()?)?;
    // One position is no work for a card.
    let side = &side.on_cpu()?;
    let logits = rows::listed_logits(side, one, |_| true)?;
    let log_theta = rows::log_softmax(asked, &logits[0])?;
    let (known, sampled) = asked.places();
    let row = DomainRow { log_theta: &log_theta, log_s: &[], known: &known, sampled };
    let mut gradient = vec![0.0; log_theta.len()];
    loss(&row, &correction, Scale { advantage: 1.0, temperature: asked.temperature }, &mut gradient);
    Ok(gradient)
}

fn row_loss<X>(
    asked: &Asked,
    now: &[f32],
    sampler: Option<&[f32]>,
    objective: impl FnOnce(RowLogProbs) -> TrainResult<Weighed<X>>,
) -> TrainResult<Outcome<X>> {
    let log_theta = rows::log_softmax(asked, now)?;
    let log_s = sampler.map(|logits| rows::log_softmax(asked, logits)).transpose()?.unwrap_or_default();
    let Weighed { correction, scale, seen } = objective(rows::row_log_probs(&asked.support, &log_theta))?;
    if asked.kind() == Kind::Only {
        return Ok(Outcome { seen, loss: 0.0, gradient: Vec::new() });
    }
    if correction.tail.is_some() && log_s.is_empty() {
        let source = WeighError::NoRest(asked.support.log_rest().unwrap_or(f64::NEG_INFINITY));
        return Err(TrainError::Weigh { place: asked.place, source });
    }
    let (known, sampled) = asked.places();
    let row = DomainRow { log_theta: &log_theta, log_s: &log_s, known: &known, sampled };
    let mut gradient = vec![0.0; log_theta.len()];
    let loss = loss(&row, &correction, scale, &mut gradient);
    Ok(Outcome { seen, loss, gradient: gradient.into_iter().map(|g| g as f32).collect() })
}

/// Logits `[C, V]` of one chunk, under the weights now and under those of every sampler's side that the chunk needs.
struct WholeLogits {
    vocab: usize,
    now: Vec<f32>,
    sampler: Vec<Vec<f32>>,
}

impl WholeLogits {
    fn new(sides: Sides<'_>, asked: &[Asked], (chunk, hidden): (&[usize], &Tensor)) -> TrainResult<Self> {
        let older = sides.sampler.iter().enumerate().map(|(at, side)| {
            let needed = chunk.iter().any(|&index| asked[index].sampler == Some(at));
            if needed { side.logits(&side.select(asked, chunk)?) } else { Ok(Vec::new()) }
        });
        let sampler = older.collect::<TrainResult<_>>()?;
        Ok(Self { vocab: sides.now.vocab()?, now: sides.now.logits(hidden)?, sampler })
    }

    fn now(&self, at: usize) -> &[f32] {
        &self.now[at * self.vocab..(at + 1) * self.vocab]
    }

    fn sampler(&self, asked: &[Asked], index: usize, at: usize) -> Option<&[f32]> {
        let logits = self.sampler.get(asked[index].sampler?)?;
        logits.get(at * self.vocab..(at + 1) * self.vocab)
    }
}
