//! The head on a card: logits in f32 by cuBLAS or over listed ids, log-probs and gradients by the kernels, nothing of a
//! vocabulary's length on the CPU. Positions run in chunks of one kind.

use super::rows::check_tail;
use super::{Asked, HeadLoss, Side, Sides, Weighed};
use crate::cuda::{kernels_of, new_floats, on_storage, refused, with_floats};
use crate::optimiser::Floats;
use crate::plain::add_product;
use crate::train_error::{TrainError, TrainResult};
use crate::trainer::cut;
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Device, Result, Storage, Tensor, bail};
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::Domain;
use lockstep_kernels::Error;
use lockstep_kernels::cuda::cudarc::driver::CudaView;
use lockstep_kernels::cuda::{HeadLogits, HeadRow, HeadScores, Kernels, Listed, Runs};
use std::collections::BTreeMap;

/// One position.
struct Row<'a> {
    asked: &'a Asked,
    whole: bool,
    ids: Vec<u32>,
    inv_t: f64,
    /// The older side, where log p_s is asked for.
    older: Option<usize>,
}

impl<'a> Row<'a> {
    fn new(asked: &'a Asked, with_older: bool) -> Self {
        let whole = matches!(asked.support.domain(), Domain::Vocabulary(_));
        let ids = asked.support.ids().iter().map(|id| id.0).collect();
        Self { asked, whole, ids, inv_t: 1.0 / asked.temperature, older: asked.sampler.filter(|_| with_older) }
    }

    fn all(asked: &'a [Asked], with_older: bool) -> Vec<Self> {
        asked.iter().map(|asked| Self::new(asked, with_older)).collect()
    }

    fn drawn(&self) -> u32 {
        self.asked.support.sampled().token.0
    }

    /// A token without alternative: log p is 0, the gradient exactly 0, and no product is needed.
    fn is_only(&self) -> bool {
        !self.whole && self.ids.len() == 1
    }

    /// As a scorer reports them.
    fn reported(&self, log_p: Vec<f64>, log_p_sampled: f64, rest: f64) -> RowLogProbs {
        let log_rest = self.asked.support.log_rest().map(|_| rest.ln().min(0.0));
        RowLogProbs { log_p, log_p_sampled, log_rest }.rounded()
    }

    fn certain(&self) -> RowLogProbs {
        self.reported(vec![0.0; self.asked.support.known()], 0.0, 0.0)
    }
}

/// Logits of some positions of one kind, one position behind the other, and those of every older side in the same places.
struct Flat<'a> {
    positions: &'a [usize],
    now: Tensor,
    sides: Vec<OlderSide>,
    rows: Vec<HeadRow>,
    places: Vec<u32>,
}

/// Logits under one set of older weights, or none, and the rows that they are for.
struct OlderSide {
    logits: Option<Tensor>,
    rows: Vec<usize>,
}

/// What the kernel found of a position: its sums, and its run of the known log-probs.
type Found = (Vec<HeadScores>, Vec<f64>);

/// Positions over whole vocabularies, then those over listed ids, in order, in chunks of about `logits_bytes`; a token without
/// alternative is in none. Older sides do not enter, so that a position lies in the same chunk whoever asks.
fn chunks(side: &Side, rows: &[Row<'_>]) -> Result<Vec<Vec<usize>>> {
    let (vocab, budget) = (side.head.dim(0)?, side.logits_bytes / size_of::<f32>());
    let kind = |whole| -> Vec<usize> {
        let of_kind = |(_, row): &(usize, &Row<'_>)| row.whole == whole && !row.is_only();
        rows.iter().enumerate().filter(of_kind).map(|(position, _)| position).collect()
    };
    let len = |&position: &usize| if rows[position].whole { vocab } else { rows[position].ids.len() };
    let cut = |positions: Vec<usize>| {
        let ranges = cut(positions.iter().map(len), budget);
        ranges.into_iter().map(|range| positions[range].to_vec()).collect::<Vec<_>>()
    };
    Ok([kind(true), kind(false)].into_iter().flat_map(cut).collect())
}

fn ids(values: &[u32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), device)
}

/// Logits of whole vocabularies, `[C * V]`.
fn whole(side: &Side, rows: &[Row<'_>], positions: &[usize]) -> Result<Tensor> {
    let at: Vec<u32> = positions.iter().map(|&position| rows[position].asked.row as u32).collect();
    let hidden = side.hidden.index_select(&ids(&at, side.hidden.device())?, 0)?;
    hidden.matmul(&side.head.t()?)?.flatten_all()
}

/// Rows of the hidden states and of the head of every listed entry.
fn entries(rows: &[Row<'_>], positions: &[usize]) -> (Vec<u32>, Vec<u32>) {
    let of = |&position: &usize| rows[position].ids.iter().map(move |&id| (rows[position].asked.row as u32, id));
    positions.iter().flat_map(of).unzip()
}

fn listed(side: &Side, rows: &[Row<'_>], positions: &[usize]) -> Result<Tensor> {
    let (at, id) = entries(rows, positions);
    let (n, width) = (id.len(), side.hidden.dim(1)?);
    new_floats(side.hidden.device(), n, |kernels| {
        with_floats(&side.hidden, |_, hidden| {
            with_floats(&side.head, |_, head| {
                let listed = Listed { rows: &at, ids: &id };
                kernels.listed_logits((&hidden, &head, width), listed).map_err(refused)
            })
        })
    })
}

impl<'a> Flat<'a> {
    fn new(sides: Sides<'_>, rows: &[Row<'_>], positions: &'a [usize]) -> Result<Self> {
        let logits = if rows[positions[0]].whole { whole } else { listed };
        let now = logits(sides.now, rows, positions)?;
        let mut by_side = BTreeMap::<Option<usize>, Vec<usize>>::new();
        for (at, &position) in positions.iter().enumerate() {
            by_side.entry(rows[position].older).or_default().push(at);
        }
        let older = |(side, of_side): (Option<usize>, _)| {
            let logits = side.map(|side| logits(&sides.sampler[side], rows, positions)).transpose()?;
            Ok(OlderSide { logits, rows: of_side })
        };
        let older = by_side.into_iter().map(older).collect::<Result<_>>()?;
        let (mut start, mut places, mut all) = (0u64, Vec::new(), Vec::new());
        for row in positions.iter().map(|&position| &rows[position]) {
            let known = places.len() as u32;
            let (len, sampled) = if row.whole {
                places.extend(&row.ids);
                (sides.now.head.dim(0)?, row.drawn())
            } else {
                places.extend(0..row.asked.support.known() as u32);
                (row.ids.len(), row.ids.iter().position(|id| *id == row.drawn()).unwrap_or_default() as u32)
            };
            let known_end = places.len() as u32;
            let len = len as u32;
            all.push(HeadRow { start, len, sampled, known, known_end, inv_t: row.inv_t, ..HeadRow::default() });
            start += u64::from(len);
        }
        Ok(Self { positions, now, sides: older, rows: all, places })
    }

    fn rows_of(&self, side: &OlderSide) -> Vec<HeadRow> {
        side.rows.iter().map(|&at| self.rows[at]).collect()
    }

    /// Runs `f` on the logits now and those of a side.
    fn with_logits<R>(
        &self,
        side: &OlderSide,
        f: impl FnOnce(&Kernels, (&CudaView<'_, f32>, Option<&CudaView<'_, f32>>)) -> Result<R>,
    ) -> Result<R> {
        with_floats(&self.now, |kernels, now| match &side.logits {
            None => f(kernels, (&now, None)),
            Some(older) => with_floats(older, |_, older| f(kernels, (&now, Some(&older)))),
        })
    }

    /// Sums and known log-probs; the sums go into the rows.
    fn scores(&mut self, asked: &[Row<'_>]) -> TrainResult<Found> {
        let (mut scores, mut log_p) = (vec![HeadScores::default(); self.rows.len()], vec![0.0; self.places.len()]);
        for side in &self.sides {
            let rows = self.rows_of(side);
            let (found, (log_p_of_side, _)) = self.with_logits(side, |kernels, logits| {
                kernels.head_scores(logits, &rows, &self.places).map_err(refused)
            })?;
            for ((row, found), &at) in rows.iter().zip(found).zip(&side.rows) {
                let known = row.known as usize..row.known_end as usize;
                scores[at] = found;
                log_p[known.clone()].copy_from_slice(&log_p_of_side[known]);
            }
        }
        for ((row, scores), &position) in self.rows.iter_mut().zip(&scores).zip(self.positions) {
            let len = row.len as usize;
            let source = match scores.status.max(scores.status_s) {
                0 => None,
                1 => Some(Error::NotLogits { len }),
                _ => Some(Error::NoFiniteLogit { len }),
            };
            if let Some(source) = source {
                return Err(TrainError::Logits { place: asked[position].asked.place, source });
            }
            (row.lse, row.lse_s) = (scores.lse, if scores.lse_s.is_nan() { 0.0 } else { scores.lse_s });
        }
        Ok((scores, log_p))
    }

    fn reported(&self, asked: &[Row<'_>], (scores, log_p): &Found, at: usize) -> RowLogProbs {
        let row = &self.rows[at];
        let known = log_p[row.known as usize..row.known_end as usize].to_vec();
        asked[self.positions[at]].reported(known, scores[at].drawn, scores[at].rest)
    }

    /// Puts the coefficients of a position into its row, and those of its known places behind `c`.
    fn weigh<X>(&mut self, (at, asked): (usize, &Row<'_>), weighed: &Weighed<X>, c: &mut Vec<f64>) -> TrainResult<()> {
        let row = &mut self.rows[at];
        let correction = &weighed.correction;
        (row.w, row.factor) = (correction.w, -weighed.advantage * row.inv_t);
        check_tail(asked.asked, correction)?;
        if let Some(tail) = &correction.tail {
            (row.scale, row.low, row.high) = (tail.scale, tail.clip.low(), tail.clip.high());
        }
        let (got, want) = (correction.c.len(), (row.known_end - row.known) as usize);
        if got != want {
            let source = Error::Size { name: "coefficients", got, want };
            return Err(TrainError::Logits { place: asked.asked.place, source });
        }
        c.extend(&correction.c);
        Ok(())
    }

    /// The logits become their gradient; gives the losses.
    fn differentiate(&self, c: &[f64]) -> Result<Vec<f64>> {
        let mut losses = vec![0.0; self.rows.len()];
        for side in &self.sides {
            let rows = self.rows_of(side);
            let found = match &side.logits {
                Some(older) => with_floats(older, |kernels, older| self.in_place(kernels, Some(&older), (&rows, c))),
                None => self.in_place(&kernels_of(&self.now)?, None, (&rows, c)),
            }?;
            side.rows.iter().zip(found).for_each(|(&at, loss)| losses[at] = loss);
        }
        Ok(losses)
    }

    fn in_place(
        &self,
        kernels: &Kernels,
        sampler: Option<&CudaView<'_, f32>>,
        (rows, c): (&[HeadRow], &[f64]),
    ) -> Result<Vec<f64>> {
        let mut losses = Vec::new();
        on_storage(&self.now, |now| {
            let logits = HeadLogits { now: &mut now.as_view_mut(), sampler };
            losses = kernels.head_backward(logits, rows, (&self.places, c)).map_err(refused)?;
            Ok(())
        })?;
        Ok(losses)
    }
}

/// log p of every position under the weights of a side, as a scorer reports them.
pub(super) fn scores(side: &Side, asked: &[Asked]) -> TrainResult<Vec<RowLogProbs>> {
    let rows = Row::all(asked, false);
    let mut all: Vec<RowLogProbs> = rows.iter().map(Row::certain).collect();
    let sides = Sides { now: side, sampler: &[] };
    for positions in chunks(side, &rows)? {
        let mut flat = Flat::new(sides, &rows, &positions)?;
        let found = flat.scores(&rows)?;
        for (at, &position) in positions.iter().enumerate() {
            all[position] = flat.reported(&rows, &found, at);
        }
    }
    Ok(all)
}

/// Sum of the losses, what the objective saw, the gradient of the hidden states `[N, H]`; adds the head's, `[V, H]`.
pub(super) fn backward<X>(
    sides: Sides<'_>,
    asked: &[Asked],
    objective: impl Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>>,
    sum_of_head: &mut Floats,
) -> TrainResult<HeadLoss<X>> {
    let rows = Row::all(asked, true);
    let zeros = |like: &Tensor| Tensor::zeros(like.shape(), DType::F32, like.device());
    let (mut of_hidden, of_head) = (zeros(&sides.now.hidden)?, sum_of_head.shared(sides.now.head.shape())?);
    let mut seen: Vec<Option<X>> = rows.iter().map(|_| None).collect();
    let mut losses = vec![0.0; rows.len()];
    for positions in chunks(sides.now, &rows)? {
        let mut flat = Flat::new(sides, &rows, &positions)?;
        let found = flat.scores(&rows)?;
        let mut c = Vec::with_capacity(flat.places.len());
        for (at, &position) in positions.iter().enumerate() {
            let log_theta = flat.reported(&rows, &found, at);
            let weighed = objective(position, log_theta)?;
            flat.weigh((at, &rows[position]), &weighed, &mut c)?;
            seen[position] = Some(weighed.seen);
        }
        for (loss, &position) in flat.differentiate(&c)?.into_iter().zip(&positions) {
            losses[position] = loss;
        }
        let add = if rows[positions[0]].whole { add_whole } else { add_listed };
        add(sides.now, &rows, &flat, (&mut of_hidden, &of_head))?;
    }
    for (position, row) in rows.iter().enumerate().filter(|(_, row)| row.is_only()) {
        seen[position] = Some(objective(position, row.certain())?.seen);
    }
    let (seen, loss) = (seen.into_iter().flatten().collect(), losses.iter().sum());
    Ok(HeadLoss { loss, seen, reached: true, hidden: Some(of_hidden) })
}

/// A copy of the memory of a gradient of the hidden states.
pub(super) fn storage(hidden: &Option<Tensor>) -> Result<CudaStorage> {
    let Some(hidden) = hidden else { bail!("the gradient of the hidden states is missing") };
    match &*hidden.storage_and_layout().0 {
        Storage::Cuda(storage) => storage.try_clone(hidden.layout()),
        _ => bail!("the gradient of the hidden states is not on the card"),
    }
}

/// `dh = G W`, `dW += G^T h`, with `G [C, V]`.
fn add_whole(
    side: &Side,
    rows: &[Row<'_>],
    flat: &Flat<'_>,
    (of_hidden, of_head): (&mut Tensor, &Tensor),
) -> Result<()> {
    let gradient = flat.now.reshape((flat.positions.len(), ()))?;
    let at: Vec<u32> = flat.positions.iter().map(|&position| rows[position].asked.row as u32).collect();
    let at = ids(&at, side.hidden.device())?;
    *of_hidden = of_hidden.index_add(&at, &gradient.matmul(&side.head)?, 0)?;
    add_product(of_head, &gradient, &side.hidden.index_select(&at, 0)?)
}

/// `dh_r += sum_e g_e W_id`, `dW_id += sum_e g_e h_r`, in the order of the entries.
fn add_listed(
    side: &Side,
    rows: &[Row<'_>],
    flat: &Flat<'_>,
    (of_hidden, of_head): (&mut Tensor, &Tensor),
) -> Result<()> {
    let (at, id) = entries(rows, flat.positions);
    let runs = |of: &[u32]| {
        let starts: Vec<u32> =
            (0..of.len() as u32).filter(|&e| e == 0 || of[e as usize] != of[e as usize - 1]).collect();
        let into: Vec<u32> = starts.iter().map(|&start| of[start as usize]).collect();
        (starts.into_iter().chain([of.len() as u32]).collect::<Vec<u32>>(), into)
    };
    add_runs((&side.head, &id), runs(&at), &flat.now, of_hidden)?;
    let mut order: Vec<u32> = (0..id.len() as u32).collect();
    order.sort_by_key(|&e| id[e as usize]);
    let by_id: Vec<u32> = order.iter().map(|&e| id[e as usize]).collect();
    let of: Vec<u32> = order.iter().map(|&e| at[e as usize]).collect();
    let gradient = flat.now.index_select(&ids(&order, flat.now.device())?, 0)?;
    add_runs((&side.hidden, &of), runs(&by_id), &gradient, of_head)
}

/// Adds `sum_e g_e from[of_e]` of every run to its row of `sums`.
fn add_runs(
    (from, of): (&Tensor, &[u32]),
    (starts, into): (Vec<u32>, Vec<u32>),
    gradient: &Tensor,
    sums: &Tensor,
) -> Result<()> {
    let width = from.dim(1)?;
    with_floats(from, |kernels, from| {
        with_floats(gradient, |_, gradient| {
            on_storage(sums, |sums| {
                let runs = Runs { starts: &starts, into: &into, of };
                kernels.listed_sums((&from, width), (runs, &gradient), &mut sums.as_view_mut()).map_err(refused)
            })
        })
    })
}
