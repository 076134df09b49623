//! Probability mass as integers: the same bits on every processor, in every order of summation.
//!
//! ```text
//! mass(x) = round(2^44 exp((x - max) / T))        2^44 for the largest entry of a row, 0 below exp(-31.2)
//! ```
//! Sums of integers do not depend on their order, so a support and a draw taken from them do not depend on how many threads
//! added them up. The exponential is made of IEEE additions, multiplications and fused multiply-adds alone, as in
//! `cuda/exact.cuh`; a row of 2^18 entries at most fits 62 bits.

use crate::truncate::Logit;

/// Bits behind the point of a mass.
pub const MASS_BITS: u32 = 44;

/// The mass of probability 1 before normalisation: of the largest entry of a row.
pub const ONE: u64 = 1 << MASS_BITS;

/// Longest row whose masses fit a `u64`.
pub const MAX_ROW: usize = 1 << 18;

/// Gaps below this have mass 0: `exp(-40) 2^44 < 0.5`.
const FLOOR: f64 = -40.0;

/// `1.5 * 2^52`: adding it rounds to an integer, which then stands in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `2^52`: adding it to a number in `[0, 2^52)` leaves its integer part, rounded, in the mantissa.
const INTEGER: f64 = 4_503_599_627_370_496.0;

const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// `1 / k!` for k = 13 down to 0.
const TAYLOR: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `2^44 exp(gap)` for `gap` in `[-40, 0]`.
#[inline(always)]
fn scaled_exp(gap: f64) -> f64 {
    exp_times_power(gap, MASS_BITS)
}

/// `2^bits exp(gap)` for `gap` in `[-700, 1]`: within 2 units in the last place.
///
/// `exp(gap) = 2^n exp(r)`, `n = round(gap / ln 2)`, `r = gap - n ln 2`; `exp(r)` by its series to `r^13`.
#[inline(always)]
pub(crate) fn exp_times_power(gap: f64, bits: u32) -> f64 {
    let shifted = gap.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, gap));
    let mut series = TAYLOR[0];
    for term in &TAYLOR[1..] {
        series = series.mul_add(r, *term);
    }
    let exponent = (shifted.to_bits().wrapping_add(u64::from(bits))) << 52;
    f64::from_bits(series.to_bits().wrapping_add(exponent))
}

/// Mass of an entry `gap = (x - max) / T` below the largest; 0 for negative infinity.
#[inline(always)]
pub fn mass(gap: f64) -> u64 {
    let scaled = scaled_exp(gap.max(FLOOR));
    (scaled + INTEGER).to_bits() - INTEGER.to_bits()
}

#[inline(always)]
fn plain_total<T: Logit>(row: &[T], max: f64, inv_t: f64) -> u64 {
    let mut sum = 0;
    for x in row {
        sum += mass((x.to_f64() - max) * inv_t);
    }
    sum
}

// Loops and not iterators: `collect` is compiled on its own, without the features of its caller.
#[inline(always)]
fn plain_masses<T: Logit>(row: &[T], max: f64, inv_t: f64) -> Vec<u64> {
    let mut masses = vec![0; row.len()];
    for (mass_of, x) in masses.iter_mut().zip(row) {
        *mass_of = mass((x.to_f64() - max) * inv_t);
    }
    masses
}

vectorised! {
    /// Mass of a whole row.
    pub fn total = plain_total, wide_total<T: Logit>(row: &[T], max: f64, inv_t: f64) -> u64
}

vectorised! {
    /// Mass of every entry of a row.
    pub fn masses = plain_masses, wide_masses<T: Logit>(row: &[T], max: f64, inv_t: f64) -> Vec<u64>
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in 0..1_000_000 {
            let gap = -f64::from(i) * 40.0 / 1_000_000.0;
            let want = gap.exp() * ONE as f64;
            worst = worst.max((scaled_exp(gap) / want - 1.0).abs());
        }
        assert!(worst < 2.0 * f64::EPSILON, "off by {worst}");
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(mass(0.0), ONE);
        assert_eq!(mass(-0.0), ONE);
        assert_eq!(mass(f64::NEG_INFINITY), 0);
        assert_eq!(mass(-700.0), 0);
        assert_eq!(mass(0.5f64.ln()), ONE / 2);
    }

    #[test]
    fn the_vector_loop_gives_the_same_bits() {
        let row: Vec<f32> = (0..151_936).map(|i| ((i * 7919) % 30_011) as f32 / -1000.0).collect();
        assert_eq!(total(&row, 0.0, 1.0 / 0.7), plain_total(&row, 0.0, 1.0 / 0.7));
        assert_eq!(masses(&row, 0.0, 1.0 / 0.7), plain_masses(&row, 0.0, 1.0 / 0.7));
    }
}
