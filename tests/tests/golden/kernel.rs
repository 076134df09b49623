//! The same coefficients through the head's kernel in f32: hidden states are the logits, the head is the unit matrix, so dh is
//! the gradient of the logits.

use super::problem::Row;
use lockstep_core::dlc::TokenCorrection;
use lockstep_kernels::head::{self, Correction, Gradient, LogProbs, RowError, Side, Sides, Tail, Weighed};
use lockstep_kernels::rows::Over;
use std::cell::Cell;

/// Largest accepted error, relative to the largest entry of a gradient.
const TOLERANCE: f64 = 2e-5;

thread_local! {
    static ROWS: Cell<usize> = const { Cell::new(0) };
}

/// Positions that went through the kernel on this thread.
pub fn rows() -> usize {
    ROWS.get()
}

/// Asserts that the kernel gives this loss and gradient over the domain.
pub fn check(row: &Row, correction: &TokenCorrection, (loss, gradient): (f64, &[f64])) {
    ROWS.set(ROWS.get() + 1);
    let (found, of_logits, of_head) = backward(row, correction);
    let largest = gradient.iter().fold(0.0, |max: f64, g| max.max(g.abs()));
    let close = |name: &str, found: f32, wanted: f64| {
        assert!((f64::from(found) - wanted).abs() <= TOLERANCE * largest, "{name}: {found}, wanted {wanted}");
    };
    assert!((found - loss).abs() <= TOLERANCE * (1.0 + loss.abs()), "loss {found}, wanted {loss}");
    let v = row.vocabulary;
    let mut wanted = vec![0.0; v];
    row.domain.iter().zip(gradient).for_each(|(&id, &g)| wanted[id] = g);
    of_logits.iter().zip(&wanted).for_each(|(found, wanted)| close("dh", *found, *wanted));
    let hidden = hidden(row, &row.log_theta);
    for (of_row, wanted) in of_head.chunks_exact(v).zip(&wanted) {
        let size = hidden.iter().fold(1.0f32, |max, h| max.max(h.abs()));
        of_row.iter().zip(&hidden).for_each(|(found, h)| close("dW", found / size, wanted * f64::from(h / size)));
    }
}

/// Raw logits up to a constant; anything off the domain.
fn hidden(row: &Row, log_p: &[f64]) -> Vec<f32> {
    let mut logits = vec![0.0; row.vocabulary];
    row.domain.iter().zip(log_p).for_each(|(&id, log_p)| logits[id] = (log_p * row.scale.temperature) as f32);
    logits
}

/// Loss, dh and dW.
pub fn backward(row: &Row, correction: &TokenCorrection) -> (f64, Vec<f32>, Vec<f32>) {
    let v = row.vocabulary;
    let mut unit = vec![0.0; v * v];
    (0..v).for_each(|id| unit[id * v + id] = 1.0);
    let (now, older) = (hidden(row, &row.log_theta), hidden(row, &row.log_s));
    let (mut of_hidden, mut of_head) = (vec![0.0; v], vec![0.0; v * v]);
    let listed = row.domain.len() < v;
    let ids: Vec<u32> = if listed { &row.domain } else { &row.known }.iter().map(|id| *id as u32).collect();
    let asked = head::Row {
        at: 0,
        over: if listed { Over::Listed } else { Over::Vocabulary },
        ids: &ids,
        known: row.known.len(),
        drawn: row.domain[row.sampled] as u32,
        inv_t: 1.0 / row.scale.temperature,
        older: Some(0),
    };
    let TokenCorrection { w, c, tail } = correction.clone();
    let tail = tail.map(|tail| Tail { scale: tail.scale, low: tail.clip.low(), high: tail.clip.high() });
    let correction = Correction { w, c, tail, advantage: row.scale.advantage };
    let objective =
        |_, _: LogProbs| -> Result<_, RowError> { Ok(Weighed { correction: correction.clone(), seen: () }) };
    let [now, older] = [&now, &older].map(|hidden| Side::new(hidden, &unit, v).unwrap());
    let sides = Sides { now, older: &[older], logits_bytes: 1 << 20 };
    let gradient = Gradient { hidden: &mut of_hidden, head: &mut of_head };
    let loss = head::head_backward(sides, &[asked], objective, gradient).unwrap().loss;
    (loss, of_hidden, of_head)
}
