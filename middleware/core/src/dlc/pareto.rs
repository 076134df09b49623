//! How heavy the tail of a ratio is: the shape k of a generalised Pareto distribution fitted to its largest values, as in
//! Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry, JMLR 25, 2024), by the estimator of Zhang &
//! Stephens (Technometrics 51, 2009).
//!
//! With shape k the ratio has `1/k` moments: below 0.5 its variance is finite, from 0.7 on an ESS says too much, from 1 on
//! not even its mean exists.

/// From this shape on, averages over the ratio cannot be trusted at usual sample sizes.
pub const UNRELIABLE: f64 = 0.7;

/// Fewest exceedances that a fit is made of.
pub const FEWEST: usize = 5;

/// Pseudo-observations at k = 0.5 that keep a fit of few exceedances from running wild.
const PRIOR: (f64, f64) = (10.0, 0.5);

/// k of the ratios `exp(l)`, from the `M = min(N / 5, 3 sqrt(N))` largest of them:
///
/// ```text
/// x_i = exp(l_i) - u, u the largest ratio that is not among them
/// k = mean_i log(1 - b x_i) at the profile-posterior mean of b; then (M k + 10 * 0.5) / (M + 10)
/// ```
///
/// `None` where M is below [`FEWEST`], or where the ratios do not differ in their tail: those of unchanged weights have none.
pub fn pareto_k(log_ratios: &[f64]) -> Option<f64> {
    let n = log_ratios.len();
    let tail = (n as f64 / 5.0).min(3.0 * (n as f64).sqrt()) as usize;
    let mut sorted = log_ratios.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let largest = *sorted.last().filter(|_| tail >= FEWEST)?;
    let ratio = |l: f64| (l - largest).exp();
    let threshold = ratio(sorted[n - tail - 1]);
    let exceedances: Vec<f64> = sorted[n - tail..].iter().map(|&l| ratio(l) - threshold).collect();
    let k = shape(&exceedances)?;
    let m = tail as f64;
    Some((m * k + PRIOR.0 * PRIOR.1) / (m + PRIOR.0))
}

/// The shape alone, of exceedances in ascending order; positive for heavy tails.
fn shape(x: &[f64]) -> Option<f64> {
    let n = x.len();
    let (quartile, largest) = (x[(n as f64 / 4.0 + 0.5).floor() as usize - 1], x[n - 1]);
    if !(quartile > 0.0 && largest.is_finite()) {
        return None;
    }
    let m = 30 + (n as f64).sqrt() as usize;
    let candidate = |i: usize| largest.recip() + (1.0 - (m as f64 / (i as f64 + 0.5)).sqrt()) / (3.0 * quartile);
    let mean_log = |b: f64| x.iter().map(|x| (-b * x).ln_1p()).sum::<f64>() / n as f64;
    let profile = |b: f64| {
        let k = mean_log(b);
        n as f64 * ((-b / k).ln() - k - 1.0)
    };
    let candidates: Vec<(f64, f64)> =
        (0..m).map(candidate).map(|b| (b, profile(b))).filter(|(_, log)| log.is_finite()).collect();
    let best = candidates.iter().map(|(_, log)| *log).reduce(f64::max)?;
    let (sum, weighted) = candidates.iter().fold((0.0, 0.0), |(sum, weighted), (b, log)| {
        let weight = (log - best).exp();
        (sum + weight, weighted + weight * b)
    });
    Some(mean_log(weighted / sum)).filter(|k| k.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles of the generalised Pareto distribution of a shape, as log ratios above 1.
    fn quantiles(k: f64, n: usize) -> Vec<f64> {
        let at = |i: usize| (i as f64 + 0.5) / n as f64;
        let value = |u: f64| if k == 0.0 { -(1.0 - u).ln() } else { ((1.0 - u).powf(-k) - 1.0) / k };
        (0..n).map(|i| (1.0 + value(at(i))).ln()).collect()
    }

    #[test]
    fn a_known_shape_is_found() {
        for k in [0.0, 0.2, 0.5, 0.8, 1.2] {
            let found = pareto_k(&quantiles(k, 20_000)).unwrap();
            assert!((found - k).abs() < 0.06, "{found} of {k}");
        }
    }

    #[test]
    fn a_bounded_ratio_has_a_negative_shape_and_a_common_factor_changes_nothing() {
        let uniform: Vec<f64> = (0..5000).map(|i| ((f64::from(i) + 0.5) / 5000.0).ln()).collect();
        assert!(pareto_k(&uniform).unwrap() < -0.5);
        let shifted: Vec<f64> = quantiles(0.5, 1000).iter().map(|l| l + 600.0).collect();
        assert!((pareto_k(&shifted).unwrap() - pareto_k(&quantiles(0.5, 1000)).unwrap()).abs() < 1e-9);
    }

    #[test]
    fn few_or_equal_ratios_have_no_tail() {
        assert_eq!(pareto_k(&[0.0; 400]), None);
        assert_eq!(pareto_k(&quantiles(0.5, 24)), None);
        assert_eq!(pareto_k(&[]), None);
        assert!(pareto_k(&quantiles(0.5, 25)).is_some());
    }
}
