//! Seeded numbers: a counter-based generator, so that a question asked twice is the same question.

/// The finaliser of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number that depends on every part, in order.
pub(crate) fn keyed(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, &part| mix(state.rotate_left(17) ^ mix(part)))
}

/// A uniform number in `[0, 1)` from 53 bits.
pub(crate) fn unit(parts: &[u64]) -> f64 {
    (keyed(parts) >> 11) as f64 / (1u64 << 53) as f64
}

/// A uniform number in `0..below`.
pub(crate) fn pick(below: u32, parts: &[u64]) -> u32 {
    ((u64::from(below) * (keyed(parts) >> 32)) >> 32) as u32
}

/// A standard normal number (Box-Muller).
pub(crate) fn normal(parts: &[u64]) -> f64 {
    let key = keyed(parts);
    let radius = (-2.0 * (1.0 - unit(&[key, 1])).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(&[key, 2])).cos()
}
