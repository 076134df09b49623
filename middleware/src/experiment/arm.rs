//! What runs: a correction, a precision of the sampler, and when the sampler gets new weights; one seed.

use super::setting::{Extent, Setting};
use lockstep_core::{
    dlc::{LagClip, Policy, Rule, TailModel, Trigger, resync::TriggerLevel, rule::ClipError},
    rivals::Method,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// When the sampler gets new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// After every this many updates.
    Every(u64),
    /// Not once.
    Never,
    /// When a policy says so.
    Policy(Policy),
    /// As often as another arm did, evenly.
    AsOftenAs(String),
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// Nothing: the control that says how far away standing still is.
    Untrained,
    /// Plain policy gradient.
    None,
    /// DLC, form A, with this upper bound of the lag ratio.
    DlcA(f64),
    /// Another, by name.
    Method(Method),
}

/// One training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// The correction.
    pub correction: Correction,
    /// Precision of the sampler, as its engine names it.
    pub numerics: String,
    /// When the sampler gets new weights.
    pub sync: Sync,
    /// Learning rate where it is not the setting's.
    pub learning_rate: Option<f64>,
    /// Seed of the draws.
    pub seed: u64,
    /// An on-policy run that others are held against.
    pub reference: bool,
}

impl Correction {
    /// DLC with its default bound.
    pub fn dlc_a() -> Self {
        Self::DlcA(LagClip::default().high())
    }

    /// The rule of a step; `None` where no step is taken.
    ///
    /// # Errors
    /// A bound of the lag ratio below 1.
    pub fn rule(self) -> Result<Option<Rule>, ClipError> {
        Ok(match self {
            Self::Untrained => None,
            Self::None => Some(Rule::Uncorrected),
            Self::DlcA(high) => Some(Rule::Dlc { lag_clip: LagClip::new(0.0, high)?, tail: TailModel::default() }),
            Self::Method(method) => Some(Rule::Method(method)),
        })
    }
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untrained => f.write_str("untrained"),
            Self::None => f.write_str("none"),
            Self::DlcA(high) if *high == LagClip::default().high() => f.write_str("dlc_a"),
            Self::DlcA(high) => write!(f, "dlc_a_clip{high}"),
            Self::Method(method) => method.fmt(f),
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(1) => f.write_str("fresh"),
            Self::Every(n) => write!(f, "every{n}"),
            Self::Never => f.write_str("never"),
            Self::AsOftenAs(_) => f.write_str("periodic"),
            Self::Policy(Policy { trigger, forecast_ahead, .. }) => {
                let level = match trigger.level {
                    TriggerLevel::Horizon => "",
                    TriggerLevel::Sequence => "-sequence",
                    TriggerLevel::Token => "-token",
                };
                write!(f, "trigger{level}")?;
                if trigger.threshold != Trigger::default().threshold {
                    write!(f, "-{}", trigger.threshold)?;
                }
                if *forecast_ahead > 0 { write!(f, "-ahead{forecast_ahead}") } else { Ok(()) }
            }
        }
    }
}

impl Arm {
    /// A run of the matrix.
    pub fn new(correction: Correction, numerics: &str, sync: Sync) -> Self {
        Self { correction, numerics: numerics.into(), sync, learning_rate: None, seed: 0, reference: false }
    }

    /// The same with another seed.
    #[must_use]
    pub fn seeded(&self, seed: u64) -> Self {
        let sync = match &self.sync {
            // Followed within the same seed.
            Sync::AsOftenAs(row) => Sync::AsOftenAs(format!("{row}-s{seed}")),
            other => other.clone(),
        };
        Self { seed, sync, ..self.clone() }
    }

    /// What arms of different seeds share: a row of the table.
    pub fn row(&self) -> String {
        let Self { correction, numerics, sync, .. } = self;
        let rate = self.learning_rate.map_or_else(String::new, |rate| format!("-lr{rate:e}"));
        let reference = if self.reference { "reference-" } else { "" };
        format!("{reference}{correction}-{numerics}-{sync}{rate}")
    }

    /// Its name; also that of its files.
    pub fn name(&self) -> String {
        format!("{}-s{}", self.row(), self.seed)
    }

    /// The arm whose result it needs.
    pub fn needs(&self) -> Option<&str> {
        match &self.sync {
            Sync::AsOftenAs(name) => Some(name),
            _ => None,
        }
    }
}

/// The precision the core matrix takes for a quantised sampler.
pub const COARSE: &str = "int4";

const EXACT: &str = "exact";

fn trigger() -> Sync {
    Sync::Policy(Policy::default())
}

fn as_often_as(arm: &Arm) -> Sync {
    Sync::AsOftenAs(arm.row())
}

/// The arms of an extent: references, then everything by seed, so that one whole seed is there before the next begins.
pub(super) fn matrix(extent: Extent, setting: &Setting) -> Vec<Arm> {
    let on_policy = Arm::new(Correction::None, EXACT, Sync::Every(1));
    let references = setting.reference_seeds().map(|seed| Arm { reference: true, ..on_policy.seeded(seed) });
    let untrained = Arm::new(Correction::Untrained, EXACT, Sync::Never).seeded(setting.first_seed);
    let rows = match extent {
        Extent::Quick => quick(),
        Extent::Deep => deep(),
        Extent::Core => core(),
        Extent::All => [core(), rest(setting)].concat(),
    };
    let by_seed = setting.arm_seeds().flat_map(|seed| rows.iter().map(move |row| row.seeded(seed)));
    references.chain([untrained]).chain(by_seed).collect()
}

fn quick() -> Vec<Arm> {
    let dlc = Arm::new(Correction::dlc_a(), EXACT, trigger());
    vec![
        Arm::new(Correction::None, EXACT, Sync::Never),
        Arm::new(Correction::Method(Method::Is), EXACT, Sync::Never),
        dlc,
    ]
}

fn deep() -> Vec<Arm> {
    vec![Arm::new(Correction::None, EXACT, Sync::Never), Arm::new(Correction::dlc_a(), EXACT, trigger())]
}

/// What the bars and the claims E1 to E5 and E8 need, the most telling rows first.
fn core() -> Vec<Arm> {
    use Correction::{Method as By, None as Nothing};
    let a = Correction::dlc_a();
    let arm = Arm::new;
    let triggered = arm(a, EXACT, trigger());
    let both = arm(a, COARSE, trigger());
    let periodic = as_often_as(&triggered);
    let mut rows = vec![
        arm(Nothing, EXACT, Sync::Never),
        arm(By(Method::Is), EXACT, Sync::Never),
        triggered.clone(),
        arm(a, EXACT, Sync::Never),
        arm(By(Method::Centring), EXACT, Sync::Never),
        arm(Nothing, COARSE, Sync::Every(1)),
        arm(By(Method::Centring), COARSE, Sync::Every(1)),
        arm(By(Method::PpoFull), COARSE, Sync::Every(1)),
        arm(Nothing, EXACT, Sync::Every(1)),
        arm(By(Method::Is), EXACT, trigger()),
        arm(Nothing, EXACT, trigger()),
        arm(a, EXACT, periodic.clone()),
        arm(Nothing, EXACT, periodic),
        arm(By(Method::PpoLag), EXACT, Sync::Never),
        arm(By(Method::Is), COARSE, Sync::Every(1)),
        both,
    ];
    for method in [Method::DlcF, Method::DlcE] {
        rows.push(arm(By(method), EXACT, trigger()));
        rows.push(arm(By(method), COARSE, trigger()));
    }
    rows.extend([arm(By(Method::Is), COARSE, trigger()), arm(By(Method::PpoLag), COARSE, Sync::Every(1))]);
    for wrong in [Method::WrongUnweightedCentring, Method::WrongWeightedCentring, Method::WrongLagAgainstQ] {
        rows.push(arm(By(wrong), EXACT, Sync::Never));
    }
    rows
}

/// Every rival, every precision, levels of the trigger, and the grids behind E6, E7 and E9.
fn rest(setting: &Setting) -> Vec<Arm> {
    let stale = |method: Method| Arm::new(Correction::Method(method), EXACT, Sync::Never);
    let here = core();
    let mut rows: Vec<Arm> = Method::ALL.map(stale).into_iter().filter(|arm| !here.contains(arm)).collect();
    for numerics in ["bf16-head", "int8", "int3", "noise(0.05,1)", "noise(0.1,1)"] {
        for correction in [Correction::None, Correction::Method(Method::Centring), Correction::Method(Method::Is)] {
            rows.push(Arm::new(correction, numerics, Sync::Every(1)));
        }
        rows.push(Arm::new(Correction::dlc_a(), numerics, trigger()));
    }
    for policy in [
        Policy { trigger: Trigger { threshold: 0.7, ..Trigger::default() }, ..Policy::default() },
        Policy { trigger: Trigger { level: TriggerLevel::Token, ..Trigger::default() }, ..Policy::default() },
        Policy { forecast_ahead: 2, ..Policy::default() },
    ] {
        rows.push(Arm::new(Correction::dlc_a(), EXACT, Sync::Policy(policy)));
        rows.push(Arm::new(Correction::dlc_a(), COARSE, Sync::Policy(policy)));
    }
    rows.push(Arm::new(Correction::DlcA(1.2), EXACT, trigger()));
    rows.push(Arm::new(Correction::DlcA(5.0), EXACT, trigger()));
    rows.extend(grid(setting));
    rows
}

/// Learning rate x staleness for a per-token rule (E9), with and without forced synchronisation (E7), and centring beside
/// IS over the learning rates (E6).
fn grid(setting: &Setting) -> Vec<Arm> {
    let mut rows = Vec::new();
    for factor in [0.25, 0.5, 2.0, 4.0] {
        let rate = Some(setting.learning_rate * factor);
        let at = |correction, sync| Arm { learning_rate: rate, ..Arm::new(correction, EXACT, sync) };
        for method in [Method::Is, Method::Centring] {
            rows.push(at(Correction::Method(method), Sync::Never));
        }
        for every in [4, 16] {
            rows.push(at(Correction::Method(Method::Tis), Sync::Every(every)));
        }
        rows.push(at(Correction::Method(Method::Tis), Sync::Never));
        rows.push(at(Correction::Method(Method::Tis), trigger()));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_needs_come_first() {
        for (extent, setting) in
            [(Extent::Quick, Setting::small()), (Extent::Core, Setting::big()), (Extent::All, Setting::big())]
        {
            let arms = matrix(extent, &setting);
            let mut before = BTreeSet::new();
            for arm in &arms {
                if let Some(needs) = arm.needs() {
                    assert!(before.contains(needs), "{} before {needs}", arm.name());
                }
                assert!(before.insert(arm.name()), "{} twice", arm.name());
                assert!(arm.numerics.parse::<lockstep_engine::Numerics>().is_ok(), "{}", arm.numerics);
            }
        }
    }

    #[test]
    fn an_arm_reads_back() {
        for arm in matrix(Extent::All, &Setting::big()) {
            let json = serde_json::to_string(&arm).unwrap();
            assert_eq!(serde_json::from_str::<Arm>(&json).unwrap(), arm);
        }
    }
}
