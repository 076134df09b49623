//! Matrix times vectors with the matrix in Q8_0, as GGUF lays it out: 34 bytes for 32 weights, a half-precision scale and 32
//! signed bytes, row after row.
//!
//! ```text
//! y_r = sum_b d_rb sum_{j < 32} q_rbj x_{32 b + j}        products and sums of a block in f32, the sum over blocks in f64
//! ```
//! A vector's product does not depend on those beside it, nor on the number of threads.

use crate::{Error, Result};
use half::f16;
use rayon::prelude::*;

/// Weights of one block.
pub const BLOCK: usize = 32;

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 2 + BLOCK;

/// Rows of one parallel piece.
const ROWS: usize = 64;

/// A matrix `[rows, columns]` in Q8_0.
#[derive(Debug, Clone, Copy)]
pub struct Q8<'a> {
    bytes: &'a [u8],
    columns: usize,
}

impl<'a> Q8<'a> {
    /// `columns` is a multiple of 32.
    ///
    /// # Errors
    /// Columns that are none, bytes that are no whole rows.
    pub fn new(bytes: &'a [u8], columns: usize) -> Result<Self> {
        if columns == 0 || !columns.is_multiple_of(BLOCK) {
            return Err(Error::Width { name: "columns", len: columns, width: BLOCK });
        }
        let width = columns / BLOCK * BLOCK_BYTES;
        if !bytes.len().is_multiple_of(width) {
            return Err(Error::Width { name: "bytes", len: bytes.len(), width });
        }
        Ok(Self { bytes, columns })
    }

    fn row_bytes(&self) -> usize {
        self.columns / BLOCK * BLOCK_BYTES
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The weights, `[rows, columns]`.
    pub fn weights(&self) -> Vec<f32> {
        weights(self.bytes).collect()
    }

    /// Scale, as the bits of its half, and values of every block.
    #[cfg(feature = "cuda")]
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u16, Vec<i8>)> + 'a {
        let values = |block: &[u8]| block[2..].iter().map(|q| *q as i8).collect();
        self.bytes.chunks_exact(BLOCK_BYTES).map(move |block| (u16::from_le_bytes([block[0], block[1]]), values(block)))
    }

    /// The weights of some rows, `[N, columns]`.
    ///
    /// # Errors
    /// A row that is not there.
    pub fn select(&self, rows: &[u32]) -> Result<Vec<f32>> {
        let width = self.row_bytes();
        let mut selected = Vec::with_capacity(rows.len() * self.columns);
        for (place, &id) in rows.iter().enumerate() {
            let bytes = self.bytes.get(id as usize * width..(id as usize + 1) * width);
            selected.extend(weights(bytes.ok_or(Error::OutsideRow { id, place, len: self.rows() })?));
        }
        Ok(selected)
    }
}

fn weights(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(BLOCK_BYTES).flat_map(|block| {
        let d = scale(block);
        block[2..].iter().map(move |q| d * f32::from(*q as i8))
    })
}

#[inline(always)]
fn scale(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// Writes rows of weights as Q8_0: `d = max |w| / 127` rounded to half precision, `q = round(w / d)`, ties away from zero.
///
/// # Errors
/// Weights that are no whole blocks, or not finite, or too large for the scale.
pub fn quantise(weights: &[f32]) -> Result<Vec<u8>> {
    if !weights.len().is_multiple_of(BLOCK) {
        return Err(Error::Width { name: "weights", len: weights.len(), width: BLOCK });
    }
    let mut bytes = Vec::with_capacity(weights.len() / BLOCK * BLOCK_BYTES);
    for (at, block) in weights.chunks_exact(BLOCK).enumerate() {
        let largest = block.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
        let d = largest / 127.0;
        let bad = block.iter().position(|w| !w.is_finite());
        if let Some(bad) = bad.or_else(|| (!f16::from_f32(d).is_finite()).then_some(0)) {
            return Err(Error::Weight { at: at * BLOCK + bad, value: block[bad] });
        }
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        bytes.extend(f16::from_f32(d).to_le_bytes());
        bytes.extend(block.iter().map(|w| (w * inverse).round() as i8 as u8));
    }
    Ok(bytes)
}

#[inline(always)]
fn plain_row(row: &[u8], x: &[f32]) -> f32 {
    let mut sum = 0.0f64;
    for (block, x) in row.chunks_exact(BLOCK_BYTES).zip(x.chunks_exact(BLOCK)) {
        let mut lanes = [0f32; 8];
        for (q, x) in block[2..].chunks_exact(8).zip(x.chunks_exact(8)) {
            for (lane, (q, x)) in lanes.iter_mut().zip(q.iter().zip(x)) {
                *lane += f32::from(*q as i8) * x;
            }
        }
        let four = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
        sum += f64::from(scale(block)) * f64::from((four[0] + four[2]) + (four[1] + four[3]));
    }
    sum as f32
}

vectorised! {
    fn row = plain_row, wide_row(row: &[u8], x: &[f32]) -> f32
}

/// `y = x W^T`, with `x [N, columns]` and `y [N, rows]`.
///
/// # Errors
/// Vectors of another length.
pub fn q8_gemv(weights: Q8<'_>, x: &[f32], y: &mut [f32]) -> Result<()> {
    let (columns, rows) = (weights.columns, weights.rows());
    let n = x.len() / columns;
    for (name, got, want) in [("x", x.len(), n.max(1) * columns), ("y", y.len(), n.max(1) * rows)] {
        if got != want {
            return Err(Error::Size { name, got, want });
        }
    }
    let width = weights.row_bytes();
    // A piece of the weights meets every vector while it is in the cache.
    let pieces = weights.bytes.par_chunks(ROWS * width).map(|piece| {
        let of = |x: &[f32]| piece.chunks_exact(width).map(|bytes| row(bytes, x)).collect::<Vec<_>>();
        x.chunks_exact(columns).map(of).collect::<Vec<_>>()
    });
    for (at, piece) in pieces.collect::<Vec<_>>().into_iter().enumerate() {
        for (y, part) in y.chunks_exact_mut(rows).zip(piece) {
            y[at * ROWS..at * ROWS + part.len()].copy_from_slice(&part);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::normal;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| normal(seed, 2, i) as f32).collect()
    }

    #[test]
    fn agrees_with_the_weights_in_f64() {
        let (rows, columns) = (200, 1024);
        let (bytes, x) = (quantise(&noise(rows * columns, 1)).unwrap(), noise(columns, 2));
        let weights = Q8::new(&bytes, columns).unwrap();
        let mut y = vec![0.0; rows];
        q8_gemv(weights, &x, &mut y).unwrap();
        for (y, w) in y.iter().zip(weights.weights().chunks_exact(columns)) {
            let terms = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = terms.clone().map(f64::abs).sum();
            assert!((f64::from(*y) - terms.sum::<f64>()).abs() < 1e-7 * size);
        }
    }

    #[test]
    fn a_vector_has_one_product_whatever_is_beside_it() {
        let (rows, columns, n) = (150, 96, 5);
        let (bytes, x) = (quantise(&noise(rows * columns, 6)).unwrap(), noise(n * columns, 7));
        let weights = Q8::new(&bytes, columns).unwrap();
        let mut all = vec![0.0; n * rows];
        q8_gemv(weights, &x, &mut all).unwrap();
        for (x, y) in x.chunks_exact(columns).zip(all.chunks_exact(rows)) {
            let mut alone = vec![0.0; rows];
            q8_gemv(weights, x, &mut alone).unwrap();
            assert_eq!(alone, y);
        }
        assert_eq!(weights.select(&[149]).unwrap(), weights.weights()[149 * columns..]);
        assert_eq!(weights.select(&[0, 150]), Err(Error::OutsideRow { id: 150, place: 1, len: rows }));
    }

    #[test]
    fn a_block_is_a_half_and_thirty_two_bytes() {
        let mut w = [0f32; 32];
        (w[0], w[1], w[31]) = (127.0, -1.0, 64.0);
        let bytes = quantise(&w).unwrap();
        assert_eq!(bytes.len(), 34);
        assert_eq!((&bytes[..4], bytes[33]), (&[0x00, 0x3c, 127, 255][..], 64));
        assert_eq!(Q8::new(&bytes, 32).unwrap().weights(), w);
        assert_eq!(quantise(&[0.0; 32]).unwrap(), [0; 34]);
    }

    #[test]
    fn a_weight_moves_by_half_a_step_at_most() {
        let w = noise(32 * 50, 3);
        let bytes = quantise(&w).unwrap();
        for (block, back) in w.chunks_exact(32).zip(Q8::new(&bytes, 32).unwrap().weights().chunks_exact(32)) {
            let step = block.iter().fold(0.0f32, |m, w| m.max(w.abs())) / 127.0;
            assert!(block.iter().zip(back).all(|(w, b)| (w - b).abs() <= 0.5 * step + 1e-3 * w.abs()));
        }
    }

    #[test]
    fn the_vector_loop_gives_the_same_bits() {
        let (bytes, x) = (quantise(&noise(32 * 9, 4)).unwrap(), noise(32 * 9, 5));
        assert_eq!(row(&bytes, &x), plain_row(&bytes, &x));
    }

    #[test]
    fn refusals_carry_the_numbers() {
        let refused = |error: Error| error.to_string();
        assert_eq!(refused(Q8::new(&[], 31).unwrap_err()), "columns: 31, wanted a multiple of 32");
        assert!(refused(Q8::new(&[0; 35], 32).unwrap_err()).contains("35"));
        assert_eq!(refused(quantise(&[f32::NAN; 32]).unwrap_err()), "weight 0 is NaN, which Q8_0 cannot hold");
        assert!(quantise(&[1e9; 32]).is_err());
        let weights = Q8::new(&[0; 34], 32).unwrap();
        assert_eq!(refused(q8_gemv(weights, &[0.0; 3], &mut [0.0]).unwrap_err()), "x: 3, wanted 32");
    }
}
