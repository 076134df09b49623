//! Positions over listed ids: dot products with a few rows of the head. Gradients of few entries: sums over those of each token.

use super::{Row, Side, Sides};
use crate::vector::{axpy, long_dot};
use rayon::prelude::*;
use std::borrow::Cow;

/// Rows of the hidden states, or of the head, of one parallel piece.
const PIECE: usize = 64;

/// Logits of the listed ids, in their order, under the weights now and under older ones. A token without alternative costs
/// no product: any logit gives it log p 0.
pub(super) fn logits(sides: Sides<'_>, row: &Row<'_>) -> (Vec<f32>, Option<Vec<f32>>) {
    let of = |side: &Side<'_>| -> Vec<f32> {
        let width = side.width;
        let logit = |id: &u32| long_dot(side.row(row.at), &side.head[*id as usize * width..(*id as usize + 1) * width]);
        if row.is_only() { vec![0.0] } else { row.ids.iter().map(logit).collect() }
    };
    (of(&sides.now), row.older.map(|at| of(&sides.older[at])))
}

/// The few entries of one position's gradient of logits.
pub(super) struct Entries<'a> {
    /// Its row of the hidden states.
    pub(super) at: usize,
    pub(super) ids: Cow<'a, [u32]>,
    /// One an id.
    pub(super) gradient: Vec<f32>,
}

/// Gradients of the logits by row of the head: entries `starts[v]..starts[v + 1]` are those of row `v`, in row order.
struct ByToken {
    starts: Vec<u32>,
    rows: Vec<u32>,
    gradients: Vec<f32>,
}

impl ByToken {
    /// A counting sort, stable.
    fn new(all: &[Entries<'_>], vocab: usize) -> Self {
        let entries = || {
            all.iter().flat_map(|Entries { at, ids, gradient }| {
                let entries = ids.iter().zip(gradient).filter(|(_, g)| **g != 0.0);
                entries.map(|(id, g)| (*id as usize, *at as u32, *g))
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

/// `dh = sum_v g_v W_v`, `dW_v += g_v h`; `false` where nothing was added.
pub(super) fn add(side: Side<'_>, all: &[Entries<'_>], (of_hidden, of_head): (&mut [f32], &mut [f32])) -> bool {
    let width = side.width;
    let by_token = ByToken::new(all, side.vocab());
    if by_token.rows.is_empty() {
        return false;
    }
    let mut of_row = vec![None; side.rows()];
    all.iter().for_each(|entries| of_row[entries.at] = Some((&entries.ids[..], &entries.gradient[..])));
    let place = |row: usize| row * width..(row + 1) * width;
    let hidden = of_hidden.par_chunks_mut(width).zip(&of_row).with_min_len(PIECE);
    hidden.for_each(|(sum, entries)| {
        let (ids, gradients) = entries.unwrap_or_default();
        ids.iter().zip(gradients).for_each(|(id, g)| axpy(sum, *g, &side.head[place(*id as usize)]));
    });
    of_head.par_chunks_mut(width).enumerate().with_min_len(PIECE / 4).for_each(|(id, sum)| {
        let entries = by_token.starts[id] as usize..by_token.starts[id + 1] as usize;
        let entries = by_token.rows[entries.clone()].iter().zip(&by_token.gradients[entries]);
        entries.for_each(|(at, g)| axpy(sum, *g, &side.hidden[place(*at as usize)]));
    });
    true
}
