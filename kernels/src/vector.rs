//! Two loops over short vectors, in an order that stands here.

#[inline(always)]
fn plain_dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// `sum_i a_i b_i` in eight lanes, so that the compiler may vectorise it.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    plain_dot(a, b)
}

/// `y += scale x`.
#[inline]
pub fn axpy(y: &mut [f32], scale: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}

vectorised! {
    /// [`dot`] for long vectors.
    pub(crate) fn long_dot = plain_dot, wide_dot(a: &[f32], b: &[f32]) -> f32
}
