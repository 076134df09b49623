//! From the gradient of the logits to that of the hidden states and of the head.

use super::{Asked, Outcome, Side};
use crate::fused::{axpy, with_floats};
use crate::train_error::TrainResult;
use candle_core::{Device, Tensor};
use rayon::prelude::*;

/// Rows of the head whose gradient is computed at a time.
const BLOCK: usize = 4096;

/// Hidden rows, or head rows, of one parallel piece.
const PIECE: usize = 64;

/// The two sums of a backward through the head.
pub(super) struct Sums<'a> {
    width: usize,
    hidden: Vec<f32>,
    head: &'a mut [f32],
    any: bool,
}

/// Gradients of the logits by row of the head: entries `starts[v]..starts[v + 1]` are those of row `v`, in row order.
struct ByToken {
    starts: Vec<u32>,
    rows: Vec<u32>,
    gradients: Vec<f32>,
}

impl ByToken {
    /// A counting sort, stable.
    fn new<X>(asked: &[Asked], outcomes: &[Option<Outcome<X>>], vocab: usize) -> Self {
        let entries = || {
            let rows = asked.iter().zip(outcomes).filter_map(|(asked, outcome)| Some((asked, outcome.as_ref()?)));
            rows.flat_map(|(asked, outcome)| {
                let entries = asked.support.ids().iter().zip(&outcome.gradient).filter(|(_, g)| **g != 0.0);
                entries.map(|(id, g)| (id.0 as usize, asked.row as u32, *g))
            })
        };
        let mut starts = vec![0u32; vocab + 1];
        entries().for_each(|(id, _, _)| starts[id + 1] += 1);
        (0..vocab).for_each(|id| starts[id + 1] += starts[id]);
        let n = starts[vocab] as usize;
        let (mut next, mut rows, mut gradients) = (starts.clone(), vec![0; n], vec![0.0; n]);
        for (id, row, g) in entries() {
            let at = next[id] as usize;
            (rows[at], gradients[at]) = (row, g);
            next[id] += 1;
        }
        Self { starts, rows, gradients }
    }
}

impl<'a> Sums<'a> {
    pub(super) fn new(hidden: &Tensor, head: &'a mut [f32]) -> TrainResult<Self> {
        let (n, width) = hidden.dims2()?;
        Ok(Self { width, hidden: vec![0.0; n * width], head, any: false })
    }

    /// Positions over listed ids: `dh = sum_v g_v W_v`, `dW_v += g_v h`.
    pub(super) fn listed<X>(
        &mut self,
        side: &Side,
        asked: &[Asked],
        outcomes: &[Option<Outcome<X>>],
    ) -> TrainResult<()> {
        let width = self.width;
        let by_token = ByToken::new(asked, outcomes, side.vocab()?);
        if by_token.rows.is_empty() {
            return Ok(());
        }
        self.any = true;
        let mut of_row = vec![None; self.hidden.len() / width];
        for (asked, outcome) in asked.iter().zip(outcomes) {
            of_row[asked.row] = outcome.as_ref().map(|outcome| (asked.support.ids(), &outcome.gradient[..]));
        }
        with_floats([&side.hidden, &side.head], |[hidden, head]| {
            let row = |place: usize| place * width..(place + 1) * width;
            let rows = self.hidden.par_chunks_mut(width).zip(&of_row).with_min_len(PIECE);
            rows.for_each(|(sum, entries)| {
                let (ids, gradients) = entries.unwrap_or_default();
                ids.iter().zip(gradients).for_each(|(id, g)| axpy(sum, *g, &head[row(id.0 as usize)]));
            });
            let tokens = self.head.par_chunks_mut(width).enumerate().with_min_len(PIECE / 4);
            tokens.for_each(|(id, sum)| {
                let entries = by_token.starts[id] as usize..by_token.starts[id + 1] as usize;
                let entries = by_token.rows[entries.clone()].iter().zip(&by_token.gradients[entries]);
                entries.for_each(|(at, g)| axpy(sum, *g, &hidden[row(*at as usize)]));
            });
            Ok(())
        })?;
        Ok(())
    }

    /// A chunk of positions over the whole vocabulary: `dh = G W`, `dW += G^T h`, with `G [C, V]`.
    pub(super) fn whole<X>(
        &mut self,
        head: &Tensor,
        asked: &[Asked],
        (chunk, hidden, outcomes): (&[usize], &Tensor, &[Outcome<X>]),
    ) -> TrainResult<()> {
        let gradients: Vec<f32> = outcomes.iter().flat_map(|outcome| outcome.gradient.iter().copied()).collect();
        if gradients.iter().all(|g| *g == 0.0) {
            return Ok(());
        }
        self.any = true;
        let (width, vocab) = (self.width, head.dim(0)?);
        let gradients = Tensor::from_vec(gradients, (chunk.len(), vocab), &Device::Cpu)?;
        let of_hidden: Vec<f32> = gradients.matmul(head)?.flatten_all()?.to_vec1()?;
        for (index, sum) in chunk.iter().zip(of_hidden.chunks_exact(width)) {
            let row = asked[*index].row;
            self.hidden[row * width..(row + 1) * width].copy_from_slice(sum);
        }
        for start in (0..vocab).step_by(BLOCK) {
            let block = gradients.narrow(1, start, BLOCK.min(vocab - start))?;
            let block = block.t()?.matmul(hidden)?;
            let sum = &mut self.head[start * width..][..block.elem_count()];
            with_floats([&block], |[block]| {
                axpy(sum, 1.0, block);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Gradient of the hidden states, `[N, H]`.
    pub(super) fn hidden(self) -> TrainResult<Option<Tensor>> {
        let shape = (self.hidden.len() / self.width.max(1), self.width);
        Ok(if self.any { Some(Tensor::from_vec(self.hidden, shape, &Device::Cpu)?) } else { None })
    }
}
