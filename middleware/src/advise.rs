//! Which correction a run calls for, from its two terms. Reads a run's metrics and nothing else; every sentence carries the
//! numbers it rests on.
//!
//! ```text
//! does the error grow with the updates?   the lag term between synchronisations: feedback, weigh or re-synchronise
//! is the ratio concentrated?              ESS and Pareto-k of the raw ratio: whether a weight can be trusted
//! how coarse is the sampler?              the numeric term: constant over steps, centre it
//! ```

use crate::metrics::StepMetrics;
use lockstep_core::dlc::{pareto::UNRELIABLE, resync::NULL_ESS_FLOOR};
use std::path::{Path, PathBuf};

/// A numeric KL below this, nats a token, is what kernels of one precision differ by.
const FINE: f64 = 1e-4;

/// A numeric KL above this, nats a token, is that of a few bits: about what int4 weights cost a small model.
const COARSE: f64 = 1e-2;

/// A lag KL below this is rounding.
const STILL: f64 = 1e-6;

/// An ESS above this everywhere leaves a weight nothing to do.
const CONCENTRATED: f64 = 0.9;

/// Fewest steps that say something.
const FEWEST: usize = 3;

/// A run that cannot be advised on.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// No metrics.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// A line that is no step.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Too short a run.
    #[error("{} has {steps} steps; advice needs at least 3", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its steps.
        steps: usize,
    },
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Neither term is worth a correction.
    Nothing,
    /// The numeric term alone: score centring, or DLC, which is the same with a fresh sampler.
    Centre,
    /// The lag alone: DLC with its trigger; centring does nothing there.
    WeighAndResync,
    /// Both: DLC; form F where the sampler is coarse.
    Dlc,
    /// No weight can be trusted: synchronise more often first.
    SyncFirst,
}

/// Advice with its evidence, one sentence a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Advised {
    /// What to do.
    pub advice: Advice,
    /// In words.
    pub recommendation: String,
    /// Why.
    pub evidence: Vec<String>,
}

/// Reads `metrics.jsonl` of a run.
///
/// # Errors
/// No file, a line that is no step, fewer than three steps.
pub fn read(run: &Path) -> Result<Vec<StepMetrics>, AdviseError> {
    let path = run.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|source| AdviseError::Read { path: path.clone(), source })?;
    let step = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| AdviseError::Line { path: path.clone(), line: at + 1, source })
    };
    let steps: Vec<StepMetrics> = text.lines().enumerate().map(step).collect::<Result<_, _>>()?;
    if steps.len() < FEWEST {
        return Err(AdviseError::Short { path, steps: steps.len() });
    }
    Ok(steps)
}

/// What the two terms of a run say.
pub fn advise(steps: &[StepMetrics]) -> Advised {
    let seen = Seen::of(steps);
    let coarse = seen.numeric > COARSE;
    let numeric = seen.numeric > FINE;
    let lag = seen.lag > STILL && seen.smallest_ess < CONCENTRATED;
    let hopeless = seen.untrusted_share > 0.5 && seen.smallest_ess < 0.5;
    let advice = match (numeric, lag) {
        _ if hopeless => Advice::SyncFirst,
        (false, false) => Advice::Nothing,
        (true, false) => Advice::Centre,
        (false, true) => Advice::WeighAndResync,
        (true, true) => Advice::Dlc,
    };
    Advised { advice, recommendation: recommend(advice, coarse), evidence: seen.evidence() }
}

fn recommend(advice: Advice, coarse: bool) -> String {
    match advice {
        Advice::Nothing => "Stay with stage fix: neither term is large enough for a correction to show.",
        Advice::Centre => {
            "Centre the numeric term: stage dlc, or score centring alone, which is the same while the sampler is fresh. Do \
             not clip a ratio against q: its clip would cut what precision moved, not what was learned."
        }
        Advice::WeighAndResync => {
            "Weigh the lag and re-synchronise when its ESS falls: stage dlc with its trigger. The sampler is exact, so \
             centring adds nothing here; a plain importance weight with the same trigger is as good."
        }
        Advice::Dlc if coarse => {
            "Both terms are large: DLC with its trigger, in form F, which also weighs the numeric term of so coarse a \
             sampler; form A leaves that to the centring."
        }
        Advice::Dlc => "Both terms are there: DLC in form A with its trigger, centred, clipped and re-synchronised.",
        Advice::SyncFirst => {
            "Synchronise more often before anything else: over most of the run the tail of the ratio is too heavy for any \
             weight, clipped or not. Lower the learning rate, or set resync.max_interval."
        }
    }
    .into()
}

/// What a run shows.
struct Seen {
    lag: f64,
    numeric: f64,
    numeric_change: f64,
    growth: Option<f64>,
    smallest_ess: f64,
    null: Option<f64>,
    untrusted_share: f64,
    heaviest: Option<f64>,
    syncs: usize,
    steps: usize,
}

impl Seen {
    fn of(steps: &[StepMetrics]) -> Self {
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let half = steps.len() / 2;
        let numeric = |steps: &[StepMetrics]| mean(steps.iter().map(|step| step.terms.numeric.kl).collect());
        let k = || steps.iter().filter_map(|step| step.terms.shape.lag_pareto_k);
        let untrusted = k().filter(|k| *k > UNRELIABLE).count();
        Self {
            lag: steps.iter().map(|step| step.terms.lag.kl).fold(0.0, f64::max),
            numeric: numeric(steps),
            numeric_change: numeric(&steps[half..]) / numeric(&steps[..half]),
            growth: growth(steps),
            smallest_ess: steps.iter().map(|step| step.ess.horizon).fold(1.0, f64::min),
            null: steps.iter().filter_map(|step| step.null_ess).reduce(f64::min),
            untrusted_share: untrusted as f64 / steps.len() as f64,
            heaviest: k().reduce(f64::max),
            syncs: steps.iter().filter(|step| step.resync.is_some()).count(),
            steps: steps.len(),
        }
    }

    fn evidence(&self) -> Vec<String> {
        let Self { lag, numeric, numeric_change, smallest_ess, syncs, steps, .. } = self;
        let grows = match self.growth {
            Some(power) if power > 0.5 => {
                format!("grows with the updates since a synchronisation, about as n^{power:.1}")
            }
            Some(power) => format!("does not grow with the updates since a synchronisation (n^{power:.1})"),
            None => "was never more than one update behind".to_owned(),
        };
        let size = match *numeric {
            kl if kl > COARSE => "a sampler of few bits",
            kl if kl > FINE => "a sampler of lower precision, or with other kernels",
            _ => "the same precision on both sides",
        };
        let tail = match self.heaviest {
            Some(k) if k > UNRELIABLE => format!(
                "heaviest tail k = {k:.2}, above {UNRELIABLE} on {:.0} % of the steps: there an ESS says too much",
                100.0 * self.untrusted_share
            ),
            Some(k) => format!("heaviest tail k = {k:.2}, below {UNRELIABLE}: weights can be trusted"),
            None => "no tail to fit".to_owned(),
        };
        let mut evidence = vec![
            format!("lag: at most {lag:.2e} nats a token; it {grows}"),
            format!(
                "ratio: smallest horizon ESS {smallest_ess:.3} over {steps} steps with {syncs} synchronisations; {tail}"
            ),
            format!(
                "numeric: {numeric:.2e} nats a token on average, second half {numeric_change:.2} times the first: {size}"
            ),
        ];
        evidence.extend(self.null.filter(|null| *null < NULL_ESS_FLOOR).map(|null| {
            format!("null ESS {null:.3}: equal weights already look like lag at this level, so the trigger refuses it")
        }));
        evidence
    }
}

/// b of `lag KL = a n^b` over the updates n since a synchronisation, by least squares in logs; `None` where no two differ.
fn growth(steps: &[StepMetrics]) -> Option<f64> {
    let behind = |step: &StepMetrics| step.trainer_version.step.checked_sub(step.sampler_version.step);
    let points = steps.iter().filter_map(|step| Some((behind(step)? as f64, step.terms.lag.kl)));
    let logs: Vec<(f64, f64)> =
        points.filter(|(n, kl)| *n > 0.0 && *kl > 0.0).map(|(n, kl)| (n.ln(), kl.ln())).collect();
    let n = logs.len().max(1) as f64;
    let (x, y) = (logs.iter().map(|at| at.0).sum::<f64>() / n, logs.iter().map(|at| at.1).sum::<f64>() / n);
    let spread: f64 = logs.iter().map(|at| (at.0 - x).powi(2)).sum();
    (spread > 0.0).then(|| logs.iter().map(|at| (at.0 - x) * (at.1 - y)).sum::<f64>() / spread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::{
        WeightVersion,
        dlc::{EssReport, Forecast, statistics::TermReport},
    };

    /// Steps of a sampler that is never synchronised: lag KL `a n^2`, numeric KL constant, ESS and k as given.
    fn run(a: f64, numeric: f64, (ess, k): (f64, Option<f64>)) -> Vec<StepMetrics> {
        let version = |step| WeightVersion { epoch: 0, step };
        let step = |n: u64| {
            let mut terms = TermReport::default();
            terms.lag.kl = a * (n * n) as f64;
            terms.numeric.kl = numeric;
            terms.shape.lag_pareto_k = k;
            StepMetrics {
                step: n + 1,
                plan: n,
                rollouts: 64,
                reward: 0.5,
                length: 9.0,
                truncated_share: 0.0,
                sampler_version: version(0),
                trainer_version: version(n),
                ess: EssReport {
                    token: 1.0,
                    sequence: ess,
                    horizon: ess,
                    horizon_tokens: 24,
                    sequences: 64,
                    tokens: 576,
                },
                null_ess: Some(1.0),
                terms,
                aliases: terms.aliases().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                forecast: Forecast::default(),
                resync: None,
                loss: 0.0,
                gradient_norm: 1.0,
            }
        };
        (0..20).map(step).collect()
    }

    #[test]
    fn each_kind_of_run_gets_its_own_advice() {
        let light = Some(0.2);
        for (a, numeric, ess, k, expected) in [
            (0.0, 1e-8, 1.0, None, Advice::Nothing),
            (0.0, 3e-2, 1.0, None, Advice::Centre),
            (1e-4, 1e-8, 0.4, light, Advice::WeighAndResync),
            (1e-4, 3e-2, 0.4, light, Advice::Dlc),
            (1e-2, 1e-8, 0.02, Some(1.3), Advice::SyncFirst),
        ] {
            let advised = advise(&run(a, numeric, (ess, k)));
            assert_eq!(advised.advice, expected, "{advised:?}");
        }
        let coarse = advise(&run(1e-4, 3e-2, (0.4, light)));
        assert!(coarse.recommendation.contains("form F"), "{coarse:?}");
    }

    #[test]
    fn the_evidence_carries_the_numbers() {
        let advised = advise(&run(1e-4, 3e-2, (0.4, Some(0.9))));
        let all = advised.evidence.join("\n");
        assert!(all.contains("n^2.0") && all.contains("0.400") && all.contains("k = 0.90"), "{all}");
        assert!(all.contains("3.00e-2") && all.contains("1.00 times"), "{all}");
    }

    #[test]
    fn a_run_without_metrics_or_too_short_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(read(folder.path()), Err(AdviseError::Read { .. })));
        let path = folder.path().join("metrics.jsonl");
        let line = serde_json::to_string(&run(0.0, 0.0, (1.0, None))[0]).unwrap();
        std::fs::write(&path, format!("{line}\n")).unwrap();
        assert!(matches!(read(folder.path()), Err(AdviseError::Short { steps: 1, .. })));
        std::fs::write(&path, "{}\n").unwrap();
        assert!(matches!(read(folder.path()), Err(AdviseError::Line { line: 1, .. })));
    }
}
