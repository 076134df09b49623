//! AdamW over named weights, with the gradient's norm clipped as one vector. Its state can be saved and restored, so that
//! an interrupted run goes on with the same bits. Knows nothing of losses.

use crate::fused::floats;
use crate::train_error::{TrainError, TrainResult};
use crate::{Error, Result, Weights};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Var};
use lockstep_kernels::adamw::{AdamW, Slot};
use std::cell::RefCell;
use std::collections::BTreeMap;

mod floats;
mod state;

pub(crate) use floats::Floats;
pub(crate) use state::write_whole;

/// The gradient of a loss, one flat f32 buffer a parameter, by name, where the parameter is.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients(BTreeMap<String, Floats>);

impl Gradients {
    /// Zeros for every parameter.
    pub fn zeros(weights: &Weights) -> Self {
        Self(weights.iter().map(|(name, var)| (name.to_owned(), Floats::beside(var))).collect())
    }

    /// Replaces the gradient of one parameter, in the order of its floats.
    ///
    /// # Errors
    /// No such parameter, another number of floats, a card that does not take them.
    pub fn set(&mut self, name: &str, values: Vec<f32>) -> Result<()> {
        let floats = self.one_mut(name)?;
        if values.len() != floats.len() {
            return Err(Error::Shape { name: name.into(), got: vec![values.len()], want: vec![floats.len()] });
        }
        *floats = Floats::on(values, &floats.device())?;
        Ok(())
    }

    /// A copy of the gradient of one parameter.
    ///
    /// # Errors
    /// A card that does not give it.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.0.get(name).map(Floats::values).transpose()
    }

    /// Adds what a backward found.
    ///
    /// # Errors
    /// A parameter other than `apart` that the backward did not reach.
    pub fn add(&mut self, weights: &Weights, found: &GradStore, apart: &str) -> TrainResult<()> {
        for (name, var) in weights.iter() {
            match (found.get(var), self.0.get_mut(name)) {
                (Some(gradient), Some(sum)) => sum.add(gradient)?,
                (None, _) if name == apart => {}
                _ => return Err(TrainError::NoGradient { name: name.into() }),
            }
        }
        Ok(())
    }

    /// The gradient of one parameter, where it is.
    ///
    /// # Errors
    /// No such parameter.
    pub(crate) fn one_mut(&mut self, name: &str) -> Result<&mut Floats> {
        self.0.get_mut(name).ok_or_else(|| Error::Missing { name: name.into(), shape: Vec::new() })
    }

    /// Adds another gradient of the same parameters.
    ///
    /// # Errors
    /// A card without room for a sum.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.0.values_mut().zip(other.0.values()).try_for_each(|(sum, gradient)| sum.merge(gradient))
    }

    /// L2 norm of all parameters together; f64 sums over fixed pieces, so threads do not change it.
    ///
    /// # Errors
    /// A parameter whose norm is NaN or infinite, by name.
    pub fn norm(&self) -> TrainResult<f64> {
        let mut total = 0.0;
        for (name, gradient) in &self.0 {
            let squares = gradient.squares()?;
            if !squares.is_finite() {
                return Err(TrainError::Gradient { name: name.clone(), norm: squares.sqrt() });
            }
            total += squares;
        }
        Ok(total.sqrt())
    }
}

#[derive(Debug, PartialEq)]
struct Moments {
    m: Floats,
    v: Floats,
}

/// AdamW with its moments. Weight decay applies to matrices, not to the vectors of the norms.
#[derive(Debug, PartialEq)]
pub struct Optimiser {
    /// Constants; may change between steps.
    pub rule: AdamW,
    /// Largest norm of the gradient, all parameters together; infinity never clips.
    pub max_norm: f64,
    step: u64,
    moments: BTreeMap<String, Moments>,
}

impl Optimiser {
    /// Zero moments for every parameter of `weights`, where they are.
    pub fn new(weights: &Weights, rule: AdamW, max_norm: f64) -> Self {
        let zeros = |var: &Var| Moments { m: Floats::beside(var), v: Floats::beside(var) };
        let moments = weights.iter().map(|(name, var)| (name.to_owned(), zeros(var))).collect();
        Self { rule, max_norm, step: 0, moments }
    }

    /// The same in memory of its own: moments of a card are updated in place.
    ///
    /// # Errors
    /// A card without room for it.
    pub fn copy(&self) -> Result<Self> {
        let copy =
            |(name, Moments { m, v }): (&String, &Moments)| Ok((name.clone(), Moments { m: m.copy()?, v: v.copy()? }));
        let moments = self.moments.iter().map(copy).collect::<Result<_>>()?;
        Ok(Self { rule: self.rule, max_norm: self.max_norm, step: self.step, moments })
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
        self.moments.values_mut().try_for_each(|Moments { m, v }| m.take_memory().and_then(|()| v.take_memory()))?;
        self.step += 1;
        for (name, var) in weights.iter() {
            let (Some(grad), Some(moments)) = (gradients.0.get(name), self.moments.get_mut(name)) else { continue };
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
            for got in [held, gradients.0.get(name).map(Floats::len)] {
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
    grad: &'a Floats,
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
        let (Floats::Host(grad), Moments { m: Floats::Host(m), v: Floats::Host(v) }) = (self.grad, &mut **moments)
        else {
            candle_core::bail!("a parameter on the CPU with its gradient or moments on a card")
        };
        self.rule
            .update(Slot { param: &mut data[start..end], grad, m, v }, self.step, self.scale)
            .map_err(candle_core::Error::wrap)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle_core::CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let mut moments = self.moments.borrow_mut();
        if let Floats::Zeros(n, device) = self.grad {
            let grad = Floats::Card(candle_core::Tensor::zeros(*n, candle_core::DType::F32, device)?);
            let moments = RefCell::new(&mut **moments);
            return Update { grad: &grad, moments, ..*self }.cuda_fwd(storage, layout);
        }
        let (Floats::Card(grad), Moments { m: Floats::Card(m), v: Floats::Card(v) }) = (self.grad, &mut **moments)
        else {
            candle_core::bail!("a parameter on a card with its gradient or moments on the CPU")
        };
        crate::cuda::adamw((storage, layout), [grad, m, v], self.rule.constants(self.step, self.scale))
    }
}
