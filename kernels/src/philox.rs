//! Philox4x32-10 (Salmon et al., SC11): random numbers as a function of a counter, so that a draw depends on which token
//! of which request it is for and on nothing else: not on the batch around it, nor on an interruption before it.

const MULTIPLY: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds on a counter of 128 bits with a key of 64.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLY[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLY[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

fn block(seed: u64, stream: u64, position: u64) -> [u32; 4] {
    let halves = |x: u64| (x as u32, (x >> 32) as u32);
    let ((k0, k1), (s0, s1), (p0, p1)) = (halves(seed), halves(stream), halves(position));
    philox4x32([p0, p1, s0, s1], [k0, k1])
}

/// 53 random bits as a number in `[0, 1)`.
fn unit(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// The 64 random bits of token number `position` of request number `request` under `seed`; [`uniform`] is their upper 53.
pub fn bits(seed: u64, request: u64, position: u64) -> u64 {
    let [a, b, _, _] = block(seed, request, position);
    u64::from(a) << 32 | u64::from(b)
}

/// The uniform in `[0, 1)` of token number `position` of request number `request` under `seed`.
pub fn uniform(seed: u64, request: u64, position: u64) -> f64 {
    let [a, b, _, _] = block(seed, request, position);
    unit(a, b)
}

/// A standard normal by Box and Muller: `sqrt(-2 ln(1 - u1)) cos(2 pi u2)`.
pub fn normal(seed: u64, stream: u64, position: u64) -> f64 {
    let [a, b, c, d] = block(seed, stream, position);
    (-2.0 * (1.0 - unit(a, b)).ln()).sqrt() * (std::f64::consts::TAU * unit(c, d)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (`kat_vectors`).
    #[test]
    fn known_answers() {
        let f = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([f; 4], [f; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox4x32(counter, key), want);
        }
    }

    #[test]
    fn every_argument_matters_and_the_mean_is_a_half() {
        let u = uniform(1, 2, 3);
        assert_eq!(u, uniform(1, 2, 3));
        for other in [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1 << 32, 2, 3)] {
            assert_ne!(u, other);
        }
        let n = 100_000;
        let mean = (0..n).map(|i| uniform(7, i, 0)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 4.0 * (1.0 / 12.0f64 / n as f64).sqrt(), "mean {mean}");
        let square = (0..n).map(|i| normal(7, 0, i).powi(2)).sum::<f64>() / n as f64;
        assert!((square - 1.0).abs() < 4.0 * (2.0 / n as f64).sqrt(), "variance {square}");
    }
}
