//! Products of f32 matrices by the `gemm` crate. An entry of a product is summed in one order whatever the number of threads.

use gemm::Parallelism;

/// A matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major, `[data.len() / columns, columns]`.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Self {
        Self { data, rows: data.len() / columns.max(1), columns, row_stride: columns, column_stride: 1 }
    }

    /// The columns from `start`, `n` of them.
    pub(crate) fn columns(self, start: usize, n: usize) -> Self {
        Self { data: &self.data[start * self.column_stride..], columns: n, ..self }
    }

    /// The rows from `start`, `n` of them.
    pub(crate) fn rows(self, start: usize, n: usize) -> Self {
        Self { data: &self.data[start * self.row_stride..], rows: n, ..self }
    }

    /// `(m, n, k)` of the product with `b`.
    pub(crate) fn size(&self, b: Self) -> (usize, usize, usize) {
        (self.rows, b.columns, self.columns)
    }

    /// The same numbers with rows for columns.
    pub(crate) fn transposed(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self { data, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// `true` when every entry lies in the slice.
    fn fits(&self) -> bool {
        let last = self.rows.saturating_sub(1) * self.row_stride + self.columns.saturating_sub(1) * self.column_stride;
        self.rows * self.columns == 0 || last < self.data.len()
    }
}

/// What becomes of what the output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// It is written over.
    Set,
    /// The product is added to it.
    Add,
}

/// `out = a b` or `out += a b`, with `out` row-major `[a.rows, b.columns]`.
///
/// # Panics
/// Shapes that do not fit together: a mistake of this crate, not of its input.
pub(crate) fn product(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>, output: Output) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert!(b.rows == k && out.len() == m * n && a.fits() && b.fits(), "product of {m} x {k} and {} x {n}", b.rows);
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    #[expect(unsafe_code, reason = "the crate takes pointers and strides")]
    // SAFETY: the largest index that the strides reach lies in each slice: `fits` for the operands, `m n` entries for the
    // output, which is borrowed mutably and so overlaps neither.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            output == Output::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::normal;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| normal(seed, 0, i) as f32).collect()
    }

    #[test]
    fn agrees_with_a_sum_in_f64() {
        let (m, n, k) = (37, 29, 53);
        let (a, b, before) = (noise(m * k, 1), noise(n * k, 2), noise(m * n, 3));
        let mut out = before.clone();
        product(&mut out, Matrix::new(&a, k), Matrix::new(&b, k).transposed(), Output::Add);
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[j * k + l])).sum();
                assert!((f64::from(out[i * n + j]) - sum - f64::from(before[i * n + j])).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (m, n, k) = (200, 700, 600);
        let (a, b) = (noise(m * k, 1), noise(n * k, 2));
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![0.0; m * n];
            pool.install(|| product(&mut out, Matrix::new(&a, k), Matrix::new(&b, k).transposed(), Output::Set));
            out
        };
        let one = on(1);
        assert!(one == on(2) && one == on(3));
    }
}
