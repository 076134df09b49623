//! The upper tail of the chi-square distribution.

/// `P(X > x)` of a chi-square variable with `freedom` degrees of freedom: the regularised upper incomplete gamma function
/// `Q(freedom / 2, x / 2)`, by its series below the mean and by its continued fraction above.
pub fn chi_square_survival(x: f64, freedom: u32) -> f64 {
    let (a, x) = (f64::from(freedom) / 2.0, x / 2.0);
    if x <= 0.0 || freedom == 0 {
        return 1.0;
    }
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 { 1.0 - scale * lower_series(a, x) } else { scale * upper_fraction(a, x) }
}

/// `sum_n x^n / (a (a + 1) .. (a + n))`.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    while term > sum * 1e-17 {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum
}

/// `1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ..)))`, by Lentz's method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    let tiny = 1e-300;
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / tiny, 1.0 / b);
    let mut fraction = d;
    for n in 1..10_000 {
        let n = f64::from(n);
        let numerator = -n * (n - a);
        b += 2.0;
        d = 1.0 / floored(numerator * d + b, tiny);
        c = floored(b + numerator / c, tiny);
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    fraction
}

fn floored(x: f64, tiny: f64) -> f64 {
    if x.abs() < tiny { tiny } else { x }
}

/// `ln Gamma(a)` for `a > 0`: Lanczos, g = 7, nine coefficients.
fn ln_gamma(a: f64) -> f64 {
    const COEFFICIENTS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if a < 0.5 {
        let reflected = (std::f64::consts::PI * a).sin().abs().ln();
        return std::f64::consts::PI.ln() - reflected - ln_gamma(1.0 - a);
    }
    let a = a - 1.0;
    let terms = COEFFICIENTS.iter().zip(1..).map(|(coefficient, n)| coefficient / (a + f64::from(n)));
    let series = 0.999_999_999_999_809_9 + terms.sum::<f64>();
    let t = a + 7.5;
    0.5 * std::f64::consts::TAU.ln() + (a + 0.5) * t.ln() - t + series.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms_and_table_values() {
        // Two degrees: exp(-x / 2); four: exp(-x / 2)(1 + x / 2).
        for x in [0.01, 0.5, 3.0, 27.631_021_115_928_547, 200.0f64] {
            let two = (-x / 2.0).exp();
            assert!((chi_square_survival(x, 2) / two - 1.0).abs() < 1e-11, "{x}");
            let four = two * (1.0 + x / 2.0);
            assert!((chi_square_survival(x, 4) / four - 1.0).abs() < 1e-11, "{x}");
        }
        // One degree: erfc(sqrt(x / 2)); the 1e-6 quantile of the normal distribution is 4.891638475698590.
        let survival = chi_square_survival(4.891_638_475_698_59f64.powi(2), 1);
        assert!((survival / 1e-6 - 1.0).abs() < 1e-9, "{survival}");
        // 95 % quantiles.
        for (freedom, quantile) in
            [(1, 3.841_458_820_694_124), (10, 18.307_038_053_275_146), (100, 124.342_113_404_004_1)]
        {
            assert!((chi_square_survival(quantile, freedom) - 0.05).abs() < 1e-9, "{freedom}");
        }
        assert_eq!(chi_square_survival(0.0, 3), 1.0);
    }

    #[test]
    fn ln_gamma_of_small_integers_and_halves() {
        assert!((ln_gamma(5.0) - 24.0f64.ln()).abs() < 1e-13);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-13);
        assert!((ln_gamma(0.25) - 1.288_022_524_698_077_5).abs() < 1e-12);
    }
}
