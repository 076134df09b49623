//! One token from one uniform. The order of summation is the order of the ids, so the draw is a pure function of the
//! distribution and the uniform.

/// Inverse of the distribution function: the place `i` of the first entry with `sum_{j<=i} exp(log_q_j) > u`.
///
/// `log_q` is normalised and in ascending order of ids. Where rounding leaves the sum below `u`, the last entry of
/// positive probability is drawn. `None` for an empty distribution.
pub fn draw(log_q: &[f64], u: f64) -> Option<usize> {
    let mut sum = 0.0;
    let mut last = None;
    for (i, log_q) in log_q.iter().enumerate() {
        let q = log_q.exp();
        if q > 0.0 {
            last = Some(i);
        }
        sum += q;
        if sum > u {
            return last;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::uniform;

    #[test]
    fn edges() {
        assert_eq!(draw(&[], 0.5), None);
        assert_eq!(draw(&[0.0], 0.0), Some(0));
        assert_eq!(draw(&[0.5f64.ln(), 0.5f64.ln()], 0.6), Some(1));
        assert_eq!(draw(&[f64::NEG_INFINITY, 0.0], 0.0), Some(1));
        let short = [0.3f64.ln(), 0.3f64.ln(), f64::NEG_INFINITY];
        assert_eq!(draw(&short, 0.99), Some(1), "rounding must not draw an impossible token");
    }

    /// `G = 2 sum_i n_i ln(n_i / (n q_i))` is chi-squared with 5 degrees of freedom; 25.7 is its 1 - 1e-4 quantile.
    #[test]
    fn frequencies_follow_q() {
        let q = [0.05, 0.4, 0.01, 0.24, 0.2, 0.1f64];
        let log_q = q.map(f64::ln);
        let n = 60_000u64;
        let mut counts = [0f64; 6];
        for request in 0..n {
            counts[draw(&log_q, uniform(11, request, 5)).unwrap()] += 1.0;
        }
        let g: f64 = counts.iter().zip(q).map(|(c, q)| 2.0 * c * (c / (n as f64 * q)).ln()).sum();
        assert!(g < 25.7, "G = {g}, counts {counts:?}");
    }
}
