//! How many updates are left until the ESS crosses its threshold, and how wrong such a forecast was before.
//!
//! Both forecasts follow a depth from 0 up to `log(1 / threshold)` along a power of the number of updates:
//!
//! ```text
//! gaussian:    d_n = variance of the answers' log ratios     a Gaussian lag has ESS = exp(-variance)
//! tail-aware:  d_n = -log ESS_n                              what the ESS really did, its tail included
//! d_n = a n^b, b within [1, 4]; crossing at n* = (log(1 / threshold) / a)^(1/b)
//! ```
//!
//! A heavy tail makes the Gaussian one late.

use serde::{Deserialize, Serialize};

/// The most recent observations a fit is made of.
const WINDOW: usize = 6;

/// A lag grows at least as a random walk, and by feedback faster than straight ahead.
const POWERS: (f64, f64) = (1.0, 4.0);

/// The power where one observation is all there is: each update goes the same way.
const FIRST_POWER: f64 = 2.0;

/// Updates left until the threshold is crossed; `None` where nothing has moved yet.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Forecast {
    /// From the variance of the log ratios.
    pub gaussian: Option<f64>,
    /// From the ESS itself.
    pub tail_aware: Option<f64>,
    /// How wrong the forecasts before the last crossing were.
    pub past: Option<PastError>,
}

/// Mean absolute error of the forecasts that were made before a crossing, in updates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PastError {
    /// Of the Gaussian forecast.
    pub gaussian: f64,
    /// Of the tail-aware one.
    pub tail_aware: f64,
    /// Forecasts behind them.
    pub forecasts: usize,
}

#[derive(Debug, Clone, Copy)]
struct Observed {
    updates: f64,
    depths: [f64; 2],
}

/// Observes a run and forecasts it.
#[derive(Debug, Clone)]
pub struct Forecaster {
    threshold: f64,
    observed: Vec<Observed>,
    /// Crossings that were forecast since the last synchronisation, in updates.
    crossings: Vec<[f64; 2]>,
    past: Option<PastError>,
}

impl Forecaster {
    /// Forecasts when an ESS falls below `threshold`, which lies in (0, 1).
    pub fn new(threshold: f64) -> Self {
        Self { threshold, observed: Vec::new(), crossings: Vec::new(), past: None }
    }

    /// The sampler got new weights: what was observed before says nothing of what comes.
    pub fn resynchronised(&mut self) {
        self.observed.clear();
        self.crossings.clear();
    }

    /// Takes in the ESS and the variance of a batch whose weights were `updates` behind, and forecasts.
    pub fn observe(&mut self, updates: u64, (ess, variance): (f64, f64)) -> Forecast {
        let updates = updates as f64;
        if ess < self.threshold {
            self.settle(updates);
            return Forecast { gaussian: Some(0.0), tail_aware: Some(0.0), past: self.past };
        }
        if updates > 0.0 {
            self.observed.push(Observed { updates, depths: [variance, -ess.ln()] });
        }
        let crossings = [0, 1].map(|which| self.crossing(which));
        if let [Some(gaussian), Some(tail_aware)] = crossings {
            self.crossings.push([gaussian, tail_aware]);
        }
        let [gaussian, tail_aware] = crossings.map(|at| at.map(|at| (at - updates).max(0.0)));
        Forecast { gaussian, tail_aware, past: self.past }
    }

    /// Holds the forecasts against the crossing that came; those of one crossing are held against it once.
    fn settle(&mut self, updates: f64) {
        let n = self.crossings.len();
        if n > 0 {
            let error =
                |which: usize| self.crossings.iter().map(|at| (at[which] - updates).abs()).sum::<f64>() / n as f64;
            self.past = Some(PastError { gaussian: error(0), tail_aware: error(1), forecasts: n });
            self.crossings.clear();
        }
    }

    fn crossing(&self, which: usize) -> Option<f64> {
        let recent = &self.observed[self.observed.len().saturating_sub(WINDOW)..];
        let logs: Vec<(f64, f64)> = recent
            .iter()
            .map(|at| (at.updates, at.depths[which]))
            .filter(|(_, depth)| *depth > 0.0 && depth.is_finite())
            .map(|(n, depth)| (n.ln(), depth.ln()))
            .collect();
        let n = logs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / n;
        let (x, y) = (mean(|at| at.0), mean(|at| at.1));
        let spread: f64 = logs.iter().map(|at| (at.0 - x).powi(2)).sum();
        let slope = logs.iter().map(|at| (at.0 - x) * (at.1 - y)).sum::<f64>() / spread;
        let power = if spread > 0.0 { slope.clamp(POWERS.0, POWERS.1) } else { FIRST_POWER };
        let target = (-self.threshold.ln()).ln();
        (!logs.is_empty()).then(|| (x + (target - y) / power).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lag whose depth is `a n^b`, observed until it crosses.
    fn run(a: f64, b: f64, gaussian_share: f64) -> (Forecaster, Vec<Forecast>, u64) {
        let mut forecaster = Forecaster::new(0.5);
        let mut forecasts = Vec::new();
        for n in 0.. {
            let depth = a * (n as f64).powf(b);
            forecasts.push(forecaster.observe(n, ((-depth).exp(), gaussian_share * depth)));
            if (-depth).exp() < 0.5 {
                return (forecaster, forecasts, n);
            }
        }
        unreachable!()
    }

    #[test]
    fn a_power_law_is_forecast_exactly() {
        for (a, b) in [(0.01, 2.0), (0.02, 1.0), (0.001, 3.0)] {
            let (_, forecasts, crossing) = run(a, b, 1.0);
            let exact = ((2f64.ln()) / a).powf(1.0 / b);
            let at_5 = forecasts[4].tail_aware.unwrap();
            assert!((at_5 + 4.0 - exact).abs() < 1e-6, "{at_5} from step 4 on, {exact}");
            assert_eq!(forecasts[crossing as usize].tail_aware, Some(0.0));
        }
    }

    #[test]
    fn a_gaussian_forecast_is_late_where_the_tail_carries_the_lag() {
        let (_, forecasts, crossing) = run(0.01, 2.0, 0.5);
        let Forecast { past, .. } = *forecasts.last().unwrap();
        let past = past.unwrap();
        assert!(past.gaussian > 2.0 && past.tail_aware < 1.0, "{past:?} at {crossing}");
        assert!(forecasts[4].gaussian > forecasts[4].tail_aware);
    }

    #[test]
    fn nothing_moved_is_no_forecast_and_a_sync_forgets() {
        let mut forecaster = Forecaster::new(0.5);
        assert_eq!(forecaster.observe(0, (1.0, 0.0)), Forecast::default());
        assert!(forecaster.observe(1, (0.9, 0.1)).tail_aware.is_some());
        forecaster.resynchronised();
        assert_eq!(forecaster.observe(0, (1.0, 0.0)).tail_aware, None);
    }
}
