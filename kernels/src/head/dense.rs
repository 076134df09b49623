//! Positions over the whole vocabulary, in chunks of rows.

use super::listed::Entries;
use super::row::{self, Logits, Outcome, Reach};
use super::{Gradient, LogProbs, ROWS, Row, RowError, Scores, Side, Sides, Weighed};
use crate::gemm::{Matrix, Output, product};
use crate::rows::Over;
use rayon::prelude::*;

/// Rows of the head whose product is added to an f64 sum at a time.
const BLOCK: usize = 4096;

/// Logits `[C, V]` under the weights now and under every older side; one chunk's after another's in the same memory.
struct Buffers {
    now: Vec<f32>,
    /// One entry an older side; empty where no chunk needed it.
    older: Vec<Vec<f32>>,
}

impl Buffers {
    fn new(sides: Sides<'_>) -> Self {
        Self { now: Vec::new(), older: vec![Vec::new(); sides.older.len()] }
    }
}

/// One chunk of positions, and their logits.
struct Chunk<'a> {
    sides: Sides<'a>,
    positions: &'a [usize],
    hidden: Vec<f32>,
    logits: &'a mut Buffers,
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

/// `logits = hidden W^T`.
fn fill(logits: &mut Vec<f32>, side: Side<'_>, hidden: &[f32]) {
    logits.resize(hidden.len() / side.width * side.vocab(), 0.0);
    let head = Matrix::new(side.head, side.width).transposed();
    product(logits, Matrix::new(hidden, side.width), head, Output::Set);
}

impl<'a> Chunk<'a> {
    fn new(sides: Sides<'a>, rows: &[Row<'_>], positions: &'a [usize], logits: &'a mut Buffers) -> Self {
        for (at, (side, logits)) in sides.older.iter().zip(&mut logits.older).enumerate() {
            if positions.iter().any(|position| rows[*position].older == Some(at)) {
                fill(logits, *side, &gather(*side, rows, positions));
            }
        }
        let hidden = gather(sides.now, rows, positions);
        fill(&mut logits.now, sides.now, &hidden);
        Self { sides, positions, hidden, logits }
    }

    /// `f` of every position and its logits, in parallel; the error is the first one.
    fn each<R: Send, E: Send>(
        &mut self,
        rows: &[Row<'_>],
        f: impl Fn(usize, Logits<'_>) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let vocab = self.sides.now.vocab();
        let mut older: Vec<_> = self.logits.older.iter_mut().map(|logits| logits.chunks_exact_mut(vocab)).collect();
        let mut of_row = Vec::with_capacity(self.positions.len());
        for (position, now) in self.positions.iter().zip(self.logits.now.chunks_exact_mut(vocab)) {
            let mut all: Vec<Option<&mut [f32]>> = older.iter_mut().map(Iterator::next).collect();
            let older = rows[*position].older.and_then(|at| all.get_mut(at)?.take());
            of_row.push((*position, Logits { now, older }));
        }
        let done: Vec<_> = of_row.into_par_iter().map(|(position, logits)| f(position, logits)).collect();
        done.into_iter().collect()
    }

    /// The few entries of the gradient of the position at `place` of the chunk.
    fn entries<'r>(&self, row: &'r Row<'_>, place: usize) -> Entries<'r> {
        let (ids, start) = (row.few(), place * self.sides.now.vocab());
        let gradient = ids.iter().map(|id| self.logits.now[start + *id as usize]).collect();
        Entries { at: row.at, ids, gradient }
    }

    /// `dh = G W` and `dW += G^T h` of the positions at `places` of the chunk, whose logits have become their gradient
    /// `G [C, V]`; moves them to the front.
    fn add(self, rows: &[Row<'_>], places: &[usize], gradient: &mut Gradient<'_>) {
        let Self { sides, positions, mut hidden, logits: Buffers { now, .. } } = self;
        let Side { head, width, .. } = sides.now;
        let vocab = sides.now.vocab();
        for (to, &from) in places.iter().enumerate().filter(|(to, from)| to != *from) {
            now.copy_within(from * vocab..(from + 1) * vocab, to * vocab);
            hidden.copy_within(from * width..(from + 1) * width, to * width);
        }
        let logits = Matrix::new(&now[..places.len() * vocab], vocab);
        let sums = blocked(logits, Matrix::new(head, width));
        for (place, sum) in places.iter().zip(sums.chunks_exact(width)) {
            let at = rows[positions[*place]].at * width;
            gradient.hidden[at..at + width].iter_mut().zip(sum).for_each(|(to, sum)| *to += *sum as f32);
        }
        let hidden = Matrix::new(&hidden[..places.len() * width], width);
        product(gradient.head, logits.transposed(), hidden, Output::Add);
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
    let (mut all, mut logits) = (Vec::with_capacity(wide.len()), Buffers::new(sides));
    for positions in wide.chunks(size) {
        let scores = Chunk::new(sides, rows, positions, &mut logits).each(rows, |position, logits| {
            row::scores(&rows[position], logits).map_err(|source| RowError { position, source })
        });
        all.extend(scores?);
    }
    Ok(all)
}

/// What became of the positions over the vocabulary, in order; adds the gradients of whole rows, and pushes the others.
pub(super) fn backward<'r, X: Send, E: Send + From<RowError>>(
    sides: Sides<'_>,
    rows: &'r [Row<'_>],
    objective: &(impl Fn(usize, LogProbs) -> Result<Weighed<X>, E> + Sync),
    (gradient, few): (&mut Gradient<'_>, &mut Vec<Entries<'r>>),
) -> Result<Vec<Outcome<X>>, E> {
    let (wide, size) = positions(sides, rows);
    let (mut all, mut logits) = (Vec::with_capacity(wide.len()), Buffers::new(sides));
    for positions in wide.chunks(size) {
        let mut chunk = Chunk::new(sides, rows, positions, &mut logits);
        let done: Vec<Outcome<X>> =
            chunk.each(rows, |position, logits| row::loss((position, &rows[position]), logits, objective))?;
        let of = |reach| (0..done.len()).filter(|place| done[*place].reach == reach).collect::<Vec<_>>();
        few.extend(of(Reach::Few).into_iter().map(|place| chunk.entries(&rows[positions[place]], place)));
        let whole = of(Reach::Everywhere);
        if !whole.is_empty() {
            chunk.add(rows, &whole, gradient);
        }
        all.extend(done);
    }
    Ok(all)
}
