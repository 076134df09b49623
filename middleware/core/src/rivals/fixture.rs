//! Small batches for the tests of the rivals.

use super::batch::{Batch, Sequence};

/// Sequences of full log ratios, each with one advantage; the lag is all of it.
pub(crate) fn batch(sequences: &[(&[f64], f64)]) -> Batch {
    let log_q = -100.0;
    let columns: Vec<_> = sequences
        .iter()
        .map(|(ratios, advantage)| {
            let log_theta: Vec<f64> = ratios.iter().map(|ratio| log_q + ratio).collect();
            (log_theta, vec![log_q; ratios.len()], vec![*advantage; ratios.len()], vec![true; ratios.len()])
        })
        .collect();
    let sequences = columns.iter().map(|(log_theta, log_q, advantages, mask)| Sequence {
        log_theta,
        log_s: log_q,
        log_q,
        advantages,
        mask,
    });
    Batch::new(&sequences.collect::<Vec<_>>()).unwrap()
}
