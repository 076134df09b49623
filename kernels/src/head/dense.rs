//! Positions over the whole vocabulary, in chunks of rows.

use super::row::{self, Logits, Outcome};
use super::{Gradient, LogProbs, ROWS, Row, RowError, Scores, Side, Sides, Weighed};
use crate::gemm::{Matrix, Output, product};
use crate::rows::Over;
use rayon::prelude::*;

/// Rows of the head whose product is added to an f64 sum at a time.
const BLOCK: usize = 4096;

/// The logits of one chunk of positions, under the weights now and under every older side that the chunk needs.
struct Chunk<'a> {
    sides: Sides<'a>,
    positions: &'a [usize],
    hidden: Vec<f32>,
    now: Vec<f32>,
    /// One entry an older side; empty where the chunk does not need it.
    older: Vec<Vec<f32>>,
}

/// The positions over the vocabulary, in order, and how many make a chunk.
fn positions(sides: Sides<'_>, rows: &[Row<'_>]) -> (Vec<usize>, usize) {
    let wide = (0..rows.len()).filter(|position| rows[*position].over == Over::Vocabulary).collect();
    (wide, (sides.logits_bytes / (4 * sides.now.vocab().max(1))).max(1))
}

/// The hidden states of some positions, `[C, H]`.
fn gather(side: Side<'_>, rows: &[Row<'_>], positions: &[usize]) -> Vec<f32> {
    positions.iter().flat_map(|position| side.row(rows[*position].at)).copied().collect()
}

/// `[C, V]`.
fn logits(side: Side<'_>, hidden: &[f32]) -> Vec<f32> {
    let mut logits = vec![0.0; hidden.len() / side.width * side.vocab()];
    let head = Matrix::new(side.head, side.width).transposed();
    product(&mut logits, Matrix::new(hidden, side.width), head, Output::Set);
    logits
}

impl<'a> Chunk<'a> {
    fn new(sides: Sides<'a>, rows: &[Row<'_>], positions: &'a [usize]) -> Self {
        let older = sides.older.iter().enumerate().map(|(at, side)| {
            let needed = positions.iter().any(|position| rows[*position].older == Some(at));
            if needed { logits(*side, &gather(*side, rows, positions)) } else { Vec::new() }
        });
        let older = older.collect();
        let hidden = gather(sides.now, rows, positions);
        let now = logits(sides.now, &hidden);
        Self { sides, positions, hidden, now, older }
    }

    /// `f` of every position and its logits, in parallel; the error is the first one.
    fn each<R: Send, E: Send>(
        &mut self,
        rows: &[Row<'_>],
        f: impl Fn(usize, Logits<'_>) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let vocab = self.sides.now.vocab();
        let mut older: Vec<_> = self.older.iter_mut().map(|logits| logits.chunks_exact_mut(vocab)).collect();
        let mut of_row = Vec::with_capacity(self.positions.len());
        for (position, now) in self.positions.iter().zip(self.now.chunks_exact_mut(vocab)) {
            let mut all: Vec<Option<&mut [f32]>> = older.iter_mut().map(Iterator::next).collect();
            let older = rows[*position].older.and_then(|at| all.get_mut(at)?.take());
            of_row.push((*position, Logits { now, older }));
        }
        let done: Vec<_> = of_row.into_par_iter().map(|(position, logits)| f(position, logits)).collect();
        done.into_iter().collect()
    }

    /// `dh = G W` and `dW += G^T h`, where the logits have become their gradient `G [C, V]`.
    fn add(&self, rows: &[Row<'_>], gradient: &mut Gradient<'_>) {
        let Side { head, width, .. } = self.sides.now;
        let logits = Matrix::new(&self.now, self.sides.now.vocab());
        let sums = blocked(logits, Matrix::new(head, width));
        for (position, sum) in self.positions.iter().zip(sums.chunks_exact(width)) {
            let at = rows[*position].at * width;
            gradient.hidden[at..at + width].iter_mut().zip(sum).for_each(|(to, sum)| *to += *sum as f32);
        }
        product(gradient.head, logits.transposed(), Matrix::new(&self.hidden, width), Output::Add);
    }
}

/// `a b`, `[C, H]`, as the f64 sum of the f32 products of blocks of the vocabulary.
fn blocked(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f64> {
    let (m, n, k) = a.size(b);
    let (mut sums, mut block) = (vec![0.0; m * n], vec![0.0; m * n]);
    for start in (0..k).step_by(BLOCK) {
        let width = BLOCK.min(k - start);
        product(&mut block, a.columns(start, width), b.rows(start, width), Output::Set);
        let pieces = sums.par_chunks_mut(n * ROWS).zip(block.par_chunks(n * ROWS));
        pieces.for_each(|(sums, block)| sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += f64::from(*x)));
    }
    sums
}

/// Scores of every position over the vocabulary, in order.
pub(super) fn logprob(sides: Sides<'_>, rows: &[Row<'_>]) -> Result<Vec<Scores>, RowError> {
    let (wide, size) = positions(sides, rows);
    let mut all = Vec::with_capacity(wide.len());
    for positions in wide.chunks(size) {
        let scores = Chunk::new(sides, rows, positions).each(rows, |position, logits| {
            row::scores(&rows[position], logits).map_err(|source| RowError { position, source })
        });
        all.extend(scores?);
    }
    Ok(all)
}

/// What the objective saw and the loss of every position over the vocabulary, in order; adds the gradients.
pub(super) fn backward<X: Send, E: Send + From<RowError>>(
    sides: Sides<'_>,
    rows: &[Row<'_>],
    objective: &(impl Fn(usize, LogProbs) -> Result<Weighed<X>, E> + Sync),
    (gradient, reached): (&mut Gradient<'_>, &mut bool),
) -> Result<Vec<(X, f64)>, E> {
    let (wide, size) = positions(sides, rows);
    let mut all = Vec::with_capacity(wide.len());
    for positions in wide.chunks(size) {
        let mut chunk = Chunk::new(sides, rows, positions);
        let done: Vec<Outcome<X>> =
            chunk.each(rows, |position, logits| row::loss((position, &rows[position]), logits, objective))?;
        if done.iter().any(|outcome| outcome.reached) {
            *reached = true;
            chunk.add(rows, gradient);
        }
        all.extend(done.into_iter().map(|outcome| (outcome.seen, outcome.loss)));
    }
    Ok(all)
}
