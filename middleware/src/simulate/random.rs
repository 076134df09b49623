//! Numbers that depend on their names alone: changing one draw of a schedule moves no other.

/// A well-mixed number of every part, in order (the finaliser of SplitMix64, Steele et al. 2014).
pub(super) fn keyed(parts: &[u64]) -> u64 {
    let mix = |x: u64| {
        let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    parts.iter().fold(0, |state, &part| mix(state.rotate_left(17) ^ mix(part)))
}

/// Uniform in `[0, 1)`.
pub(super) fn unit(parts: &[u64]) -> f64 {
    (keyed(parts) >> 11) as f64 / (1u64 << 53) as f64
}

/// Uniform in `0..below`.
pub(crate) fn pick(below: u64, parts: &[u64]) -> u64 {
    ((u128::from(below) * u128::from(keyed(parts))) >> 64) as u64
}

/// `median * exp(sigma z)` with a standard normal z (Box-Muller).
pub(super) fn log_normal(median: f64, sigma: f64, parts: &[u64]) -> f64 {
    let key = keyed(parts);
    let radius = (-2.0 * (1.0 - unit(&[key, 1])).ln()).sqrt();
    median * (sigma * radius * (std::f64::consts::TAU * unit(&[key, 2])).cos()).exp()
}

/// Exponential with this mean.
pub(super) fn exponential(mean: f64, parts: &[u64]) -> f64 {
    -mean * (1.0 - unit(parts)).ln()
}
