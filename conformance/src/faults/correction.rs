//! Faults of the correction's gradient.

use crate::{check::Fault, target::Target};
use async_trait::async_trait;
use lockstep_core::ports::{PortResult, Probe, ProbeLoss};
use std::sync::Arc;

/// Centres with probabilities that do not sum to 1.
pub const RAW_CENTRED: Fault = Fault {
    id: "raw-centred",
    does: "centres with probabilities over the whole vocabulary, which miss the mass truncation took",
    break_target: |target| {
        probed(target, |loss| ProbeLoss { c: loss.c.iter().map(|c| 0.9 * c).collect(), ..loss.clone() }, |_, _| ())
    },
};

/// Weights the centring twice.
pub const DOUBLE_CORRECTION: Fault = Fault {
    id: "double-correction",
    does: "multiplies the centring with the lag ratio a second time",
    break_target: |target| {
        probed(target, |loss| ProbeLoss { c: loss.c.iter().map(|c| loss.w * c).collect(), ..loss.clone() }, |_, _| ())
    },
};

/// Leaves out the temperature.
pub const TEMPERATURE_FORGOTTEN: Fault = Fault {
    id: "temperature-forgotten",
    does: "leaves out the division by the temperature in the gradient",
    break_target: |target| {
        probed(target, ProbeLoss::clone, |loss, gradient| {
            gradient.iter_mut().for_each(|entry| *entry *= loss.temperature)
        })
    },
};

/// Does not centre.
pub const CENTRING_DROPPED: Fault = Fault {
    id: "centring-dropped",
    does: "leaves the centring out of the gradient",
    break_target: |target| probed(target, |loss| ProbeLoss { c: vec![0.0; loss.c.len()], ..loss.clone() }, |_, _| ()),
};

/// Centres on the first half of the support.
pub const CENTRING_HEAD_ALONE: Fault = Fault {
    id: "centring-head-alone",
    does: "centres over the first half of the support alone",
    break_target: |target| {
        let head = |loss: &ProbeLoss| {
            let half = loss.c.len() / 2;
            let c = loss.c.iter().enumerate().map(|(at, c)| if at < half { *c } else { 0.0 }).collect();
            ProbeLoss { c, ..loss.clone() }
        };
        probed(target, head, |_, _| ())
    },
};

type Before = fn(&ProbeLoss) -> ProbeLoss;
type After = fn(&ProbeLoss, &mut Vec<f64>);

struct Probed {
    inner: Arc<dyn Probe>,
    before: Before,
    after: After,
}

#[async_trait]
impl Probe for Probed {
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>> {
        let mut gradient = self.inner.gradient(&(self.before)(loss)).await?;
        (self.after)(loss, &mut gradient);
        Ok(gradient)
    }
}

fn probed(mut target: Target, before: Before, after: After) -> Target {
    target.probe = target.probe.map(|inner| Arc::new(Probed { inner, before, after }) as _);
    target
}
