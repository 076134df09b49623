//! AdamW over named weights, with the gradient's norm clipped as one vector. Its state can be saved and restored, so that
//! an interrupted run goes on with the same bits. Knows nothing of losses.

use crate::fused::{axpy, floats, with_floats};
use crate::train_error::{TrainError, TrainResult};
use crate::{Error, Result, Weights};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor, Var};
use lockstep_kernels::adamw::{AdamW, Slot};
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

mod state;

pub(crate) use state::write_whole;

/// Floats a parallel piece of a norm covers.
const PIECE: usize = 1 << 14;

/// The gradient of a loss, one flat f32 buffer a parameter, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients(BTreeMap<String, Vec<f32>>);

impl Gradients {
    /// Zeros for every parameter.
    pub fn zeros(weights: &Weights) -> Self {
        Self(weights.iter().map(|(name, var)| (name.to_owned(), vec![0.0; var.elem_count()])).collect())
    }

    /// The gradient of one parameter, in the order of its floats.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// The gradient of one parameter, to be added to.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        self.0.get_mut(name).map(Vec::as_mut_slice)
    }

    /// Adds what a backward found.
    ///
    /// # Errors
    /// A parameter other than `apart` that the backward did not reach.
    pub fn add(&mut self, weights: &Weights, found: &GradStore, apart: &str) -> TrainResult<()> {
        for (name, var) in weights.iter() {
            match (found.get(var), self.0.get_mut(name)) {
                (Some(gradient), Some(sum)) => add_to(sum, gradient)?,
                (None, _) if name == apart => {}
                _ => return Err(TrainError::NoGradient { name: name.into() }),
            }
        }
        Ok(())
    }

    /// Adds another gradient of the same parameters.
    pub fn merge(&mut self, other: &Self) {
        for (sum, gradient) in self.0.values_mut().zip(other.0.values()) {
            add_floats(sum, gradient);
        }
    }

    /// L2 norm of all parameters together; f64 sums over fixed pieces, so threads do not change it.
    ///
    /// # Errors
    /// A parameter whose norm is NaN or infinite, by name.
    pub fn norm(&self) -> TrainResult<f64> {
        let mut total = 0.0;
        for (name, gradient) in &self.0 {
            let square = |piece: &[f32]| piece.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let pieces: Vec<f64> = gradient.par_chunks(PIECE).map(square).collect();
            let squares: f64 = pieces.iter().sum();
            if !squares.is_finite() {
                return Err(TrainError::Gradient { name: name.clone(), norm: squares.sqrt() });
            }
            total += squares;
        }
        Ok(total.sqrt())
    }
}

fn add_to(sum: &mut [f32], gradient: &Tensor) -> Result<()> {
    let gradient = gradient.contiguous()?;
    with_floats([&gradient], |[gradient]| {
        add_floats(sum, gradient);
        Ok(())
    })?;
    Ok(())
}

fn add_floats(sum: &mut [f32], gradient: &[f32]) {
    let pieces = sum.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
    pieces.for_each(|(sum, gradient)| axpy(sum, 1.0, gradient));
}

#[derive(Debug, Clone, PartialEq)]
struct Moments {
    m: Vec<f32>,
    v: Vec<f32>,
}

/// AdamW with its moments. Weight decay applies to matrices, not to the vectors of the norms.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimiser {
    /// Constants; may change between steps.
    pub rule: AdamW,
    /// Largest norm of the gradient, all parameters together; infinity never clips.
    pub max_norm: f64,
    step: u64,
    moments: BTreeMap<String, Moments>,
}

impl Optimiser {
    /// Zero moments for every parameter of `weights`.
    pub fn new(weights: &Weights, rule: AdamW, max_norm: f64) -> Self {
        let zeros = |var: &Var| Moments { m: vec![0.0; var.elem_count()], v: vec![0.0; var.elem_count()] };
        let moments = weights.iter().map(|(name, var)| (name.to_owned(), zeros(var))).collect();
        Self { rule, max_norm, step: 0, moments }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// One step, in place. The gradient is scaled by `min(1, max_norm / norm)`; gives its norm before that.
    ///
    /// # Errors
    /// A gradient that is NaN or infinite, weights that are not those of the moments; then nothing has changed.
    pub fn update(&mut self, weights: &Weights, gradients: &Gradients) -> TrainResult<f64> {
        let norm = gradients.norm()?;
        self.check(weights, gradients)?;
        let scale = if norm > self.max_norm { self.max_norm / norm } else { 1.0 };
        self.step += 1;
        for (name, var) in weights.iter() {
            let (Some(grad), Some(moments)) = (gradients.get(name), self.moments.get_mut(name)) else { continue };
            let decay = if var.rank() > 1 { self.rule.weight_decay } else { 0.0 };
            let rule = AdamW { weight_decay: decay, ..self.rule };
            let update = Update { rule, step: self.step, scale, grad, moments: RefCell::new(moments) };
            var.inplace_op1(&update)?;
        }
        Ok(norm)
    }

    fn check(&self, weights: &Weights, gradients: &Gradients) -> Result<()> {
        for (name, var) in weights.iter() {
            let want = var.elem_count();
            let held = self.moments.get(name).map(|moments| moments.m.len());
            for got in [held, gradients.get(name).map(<[f32]>::len)] {
                let missing = || Error::Missing { name: name.into(), shape: var.dims().to_vec() };
                let got = got.ok_or_else(missing)?;
                if got != want {
                    return Err(Error::Shape { name: name.into(), got: vec![got], want: vec![want] });
                }
            }
        }
        Ok(())
    }
}

/// One parameter's update, written into the memory that every view of it shares.
struct Update<'a> {
    rule: AdamW,
    step: u64,
    scale: f64,
    grad: &'a [f32],
    moments: RefCell<&'a mut Moments>,
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (start, end) = (layout.start_offset(), layout.start_offset() + floats(storage, layout)?.len());
        let CpuStorage::F32(data) = storage else { candle_core::bail!("parameter is not f32") };
        let mut moments = self.moments.borrow_mut();
        let Moments { m, v } = &mut **moments;
        let slot = Slot { param: &mut data[start..end], grad: self.grad, m, v };
        self.rule.update(slot, self.step, self.scale).map_err(candle_core::Error::wrap)
    }
}
