//! AdamW (Loshchilov and Hutter 2019) in one pass over memory. Elementwise, so the result does not depend on the chunks.

use crate::{Error, Result};
use rayon::prelude::*;

/// Entries per parallel piece.
const CHUNK: usize = 1 << 14;

/// Constants of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, multiplied by `lr`.
    pub weight_decay: f64,
}

/// One parameter with its moments, as flat slices of one length.
#[derive(Debug)]
pub struct Slot<'a> {
    /// The weights, updated in place.
    pub param: &'a mut [f32],
    /// The gradient of the loss.
    pub grad: &'a [f32],
    /// First moment, updated in place.
    pub m: &'a mut [f32],
    /// Second moment, updated in place.
    pub v: &'a mut [f32],
}

impl Slot<'_> {
    fn check(&self) -> Result<()> {
        let want = self.param.len();
        for (name, got) in [("grad", self.grad.len()), ("m", self.m.len()), ("v", self.v.len())] {
            if got != want {
                return Err(Error::Length { name, got, want });
            }
        }
        Ok(())
    }
}

/// What is one number a step; the memory layout of `Step` in `cuda/adamw.cu`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Constants {
    /// Factor of the gradient.
    pub scale: f32,
    /// Decay of the first moment.
    pub b1: f32,
    /// 1 - b1.
    pub c1: f32,
    /// Decay of the second moment.
    pub b2: f32,
    /// 1 - b2.
    pub c2: f32,
    /// 1 - lr wd.
    pub keep: f32,
    /// lr / (1 - b1^step).
    pub rate: f32,
    /// 1 / sqrt(1 - b2^step).
    pub root: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl AdamW {
    /// The constants of step number `step` (the first is 1).
    pub fn constants(&self, step: u64, grad_scale: f64) -> Constants {
        let (b1, b2) = self.betas;
        let t = step.max(1) as f64;
        Constants {
            scale: grad_scale as f32,
            b1: b1 as f32,
            c1: (1.0 - b1) as f32,
            b2: b2 as f32,
            c2: (1.0 - b2) as f32,
            keep: (1.0 - self.lr * self.weight_decay) as f32,
            rate: (self.lr / (1.0 - b1.powf(t))) as f32,
            root: (1.0 / (1.0 - b2.powf(t)).sqrt()) as f32,
            eps: self.eps as f32,
        }
    }

    /// Step number `step` (the first is 1) with the gradient scaled by `grad_scale`:
    ///
    /// ```text
    /// g  = grad_scale * grad
    /// m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
    /// p <- (1 - lr wd) p - lr m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps)
    /// ```
    pub fn update(&self, slot: Slot<'_>, step: u64, grad_scale: f64) -> Result<()> {
        slot.check()?;
        let Constants { scale, b1, c1, b2, c2, keep, rate, root, eps } = self.constants(step, grad_scale);
        let moments = slot.m.par_chunks_mut(CHUNK).zip(slot.v.par_chunks_mut(CHUNK));
        let weights = slot.param.par_chunks_mut(CHUNK).zip(slot.grad.par_chunks(CHUNK));
        weights.zip(moments).for_each(|((param, grad), (m, v))| {
            for (((p, g), m), v) in param.iter_mut().zip(grad).zip(m).zip(v) {
                let g = g * scale;
                *m = b1 * *m + c1 * g;
                *v = b2 * *v + c2 * g * g;
                *p = keep * *p - rate * *m / (v.sqrt() * root + eps);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::normal;

    fn noise(n: usize, stream: u64) -> Vec<f32> {
        (0..n).map(|i| normal(5, stream, i as u64) as f32).collect()
    }

    #[test]
    fn agrees_with_the_formula_in_f64() {
        let rule = AdamW { lr: 3e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
        let n = CHUNK + 37;
        let (mut param, mut m, mut v) = (noise(n, 0), vec![0f32; n], vec![0f32; n]);
        let mut want: Vec<[f64; 3]> = param.iter().map(|p| [f64::from(*p), 0.0, 0.0]).collect();
        for step in 1..=3u64 {
            let grad = noise(n, step);
            let slot = Slot { param: &mut param, grad: &grad, m: &mut m, v: &mut v };
            rule.update(slot, step, 0.5).unwrap();
            for ([p, m, v], g) in want.iter_mut().zip(&grad) {
                let g = 0.5 * f64::from(*g);
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.95 * *v + 0.05 * g * g;
                let (mh, vh) = (*m / (1.0 - 0.9f64.powi(step as i32)), *v / (1.0 - 0.95f64.powi(step as i32)));
                *p = *p * (1.0 - 3e-4) - 3e-3 * mh / (vh.sqrt() + 1e-8);
            }
        }
        let worst = param.iter().zip(&want).map(|(p, w)| (f64::from(*p) - w[0]).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-6, "worst {worst}");
    }

    #[test]
    fn refuses_slices_of_different_lengths() {
        let rule = AdamW { lr: 1.0, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.0 };
        let (mut param, mut m, mut v) = ([0f32; 3], [0f32; 3], [0f32; 2]);
        let slot = Slot { param: &mut param, grad: &[0.0; 3], m: &mut m, v: &mut v };
        assert_eq!(rule.update(slot, 1, 1.0).unwrap_err().to_string(), "v has 2 entries, param has 3");
    }
}
