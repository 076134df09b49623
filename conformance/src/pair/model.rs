//! A table of logits, one row for each hashed prefix.

use crate::mix::{keyed, mix, normal};
use lockstep_core::{TokenId, WeightVersion, version::Digest};

use super::VOCABULARY;

/// Rows of the table; a prefix falls on one of them by its hash, every id and its place counting.
const CONTEXTS: usize = 64;
/// Standard deviation of the initial logits.
const SPREAD: f64 = 1.5;

/// Weights and their version.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Their version.
    pub version: WeightVersion,
    logits: Vec<f64>,
    digest: Digest,
}

impl Model {
    /// Initial weights.
    pub fn seeded(seed: u64) -> Self {
        let entries = CONTEXTS as u64 * u64::from(VOCABULARY);
        // In every second row ids share their logits in pairs, so that there are ties to break.
        let width = u64::from(VOCABULARY);
        let source = |entry: u64| if (entry / width).is_multiple_of(2) { entry } else { entry / 2 * 2 };
        let logits = (0..entries).map(|entry| SPREAD * normal(&[seed, 0x10d, source(entry)])).collect();
        Self::of(WeightVersion { epoch: 0, step: 0 }, logits)
    }

    /// The row of a prefix.
    pub fn context<'a>(prefix: impl IntoIterator<Item = &'a TokenId>) -> usize {
        let hash = prefix.into_iter().fold(0x5eed, |hash: u64, id| mix(hash.rotate_left(9) ^ u64::from(id.0)));
        (hash % CONTEXTS as u64) as usize
    }

    /// Logits of a row, `[V]`.
    pub fn logits(&self, context: usize) -> &[f64] {
        let width = VOCABULARY as usize;
        &self.logits[context * width..(context + 1) * width]
    }

    /// Logits divided by the temperature, `[V]`.
    pub fn tempered(&self, context: usize, temperature: f64) -> Vec<f64> {
        self.logits(context).iter().map(|logit| logit / temperature).collect()
    }

    /// The next version: these weights less `rate` times a gradient of the same shape.
    #[must_use]
    pub fn stepped(&self, gradient: &[f64], rate: f64) -> Self {
        let logits = self.logits.iter().zip(gradient).map(|(logit, gradient)| logit - rate * gradient).collect();
        Self::of(self.version.next(), logits)
    }

    /// A gradient of zeros.
    pub fn zeros(&self) -> Vec<f64> {
        vec![0.0; self.logits.len()]
    }

    fn of(version: WeightVersion, logits: Vec<f64>) -> Self {
        let digest = digest(&logits);
        Self { version, logits, digest }
    }

    /// Hash of the logits; tells weights apart, is not cryptographic.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

fn digest(logits: &[f64]) -> Digest {
    let bits = logits.iter().map(|logit| logit.to_bits());
    let state = bits.fold(0, |state: u64, bits| mix(state.rotate_left(5) ^ bits));
    let mut bytes = [0; 32];
    for (part, chunk) in (0..).zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&keyed(&[state, part]).to_le_bytes());
    }
    Digest(bytes)
}

/// `z - LSE(z)`.
pub(super) fn log_softmax(z: &[f64]) -> Vec<f64> {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    z.iter().map(|z| (z - log_sum).min(0.0)).collect()
}
