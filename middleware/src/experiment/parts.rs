//! Which arms there are, in parts that can be run on their own into one directory.

use super::{
    Arm, Setting, Sync,
    arm::Correction::{self, Method as By, None as Nothing},
};
use clap::ValueEnum;
use lockstep_core::{
    dlc::{Policy, Trigger, resync::TriggerLevel},
    rivals::Method,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The precision the core matrix takes for a quantised sampler.
pub const COARSE: &str = "int4";

/// The precisions in which a default is looked for.
pub const QUANTISED: [&str; 2] = ["int8", COARSE];

/// Bounds of the lag ratio in the search, beside the default's.
pub const CLIPS: [f64; 2] = [1.2, 2.0];

const EXACT: &str = "exact";

/// Rates of the sweeps, as multiples of the setting's; the largest first, since they show most.
const FACTORS: [f64; 4] = [4.0, 2.0, 0.5, 0.25];

/// The rate at which a per-token rule with a stale sampler collapses and a fresh one does not, found with another seed.
const COLLAPSE: f64 = 16.0;

/// Arms that answer a question together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Three methods: whether it works, and the largest effects.
    #[value(skip)]
    Quick,
    /// As wrapped, plain and untrained: the training of `lockstep conformance --deep`.
    #[value(skip)]
    Deep,
    /// What the bars and the claims E1 to E5 and E8 need, controls, and what is wrong on purpose.
    Core,
    /// Every other correction, with a stale sampler.
    Rivals,
    /// Other precisions of the sampler and fixed weight noise; other levels and thresholds of the trigger.
    Noise,
    /// Centring beside IS over learning rates (E6).
    E6,
    /// A per-token rule over learning rate and staleness, with and without the trigger (E7, E9).
    E9,
    /// Forms of DLC, IS, level of the ESS and bound of the ratio, for a default that holds everywhere.
    DefaultSearch,
}

impl Part {
    /// Everything but the quick one and the deep one.
    pub const ALL: [Self; 6] = [Self::Core, Self::Rivals, Self::Noise, Self::E6, Self::E9, Self::DefaultSearch];

    /// Seeds of each arm, unless asked for others.
    pub fn seeds(self) -> u64 {
        match self {
            Self::Quick | Self::Deep => 1,
            Self::DefaultSearch => 5,
            _ => 3,
        }
    }

    fn rows(self, setting: &Setting) -> Vec<Arm> {
        match self {
            Self::Quick => quick(),
            Self::Deep => deep(),
            Self::Core => core(),
            Self::Rivals => rivals(),
            Self::Noise => noise(),
            Self::E6 => over_rates(setting, &FACTORS, (&[Method::Is, Method::Centring], &[Sync::Never])),
            Self::E9 => {
                let syncs = [Sync::Never, trigger(), Sync::Every(1), Sync::Every(16), Sync::Every(4)];
                let factors: Vec<f64> = [COLLAPSE].into_iter().chain(FACTORS).collect();
                over_rates(setting, &factors, (&[Method::Tis], &syncs))
            }
            Self::DefaultSearch => search(),
        }
    }
}

fn trigger() -> Sync {
    Sync::Policy(Policy::default())
}

/// The arms of some parts: references, the control, then each part seed by seed, so that one whole seed is there before the
/// next begins. An arm of several parts is there once.
pub(super) fn arms(parts: &[Part], setting: &Setting, seeds: Option<u64>) -> Vec<Arm> {
    let on_policy = Arm::new(Nothing, EXACT, Sync::Every(1));
    let references = setting.reference_seeds().map(|seed| Arm { reference: true, ..on_policy.seeded(seed) });
    let untrained = Arm::new(Correction::Untrained, EXACT, Sync::Never).seeded(setting.first_seed);
    let mut arms: Vec<Arm> = references.chain([untrained]).collect();
    for part in parts {
        let rows = part.rows(setting);
        let seeds = setting.first_seed..setting.first_seed + seeds.unwrap_or(part.seeds());
        arms.extend(seeds.flat_map(|seed| rows.iter().map(move |row| row.seeded(seed))));
    }
    let mut seen = BTreeSet::new();
    arms.retain(|arm| seen.insert(arm.name()));
    arms
}

fn quick() -> Vec<Arm> {
    vec![
        Arm::new(Nothing, EXACT, Sync::Never),
        Arm::new(By(Method::Is), EXACT, Sync::Never),
        Arm::new(Correction::dlc_a(), EXACT, trigger()),
    ]
}

fn deep() -> Vec<Arm> {
    vec![Arm::new(Nothing, EXACT, Sync::Never), Arm::new(Correction::dlc_a(), EXACT, trigger())]
}

/// The most telling rows first.
fn core() -> Vec<Arm> {
    let a = Correction::dlc_a();
    let arm = Arm::new;
    let triggered = arm(a, EXACT, trigger());
    let periodic = Sync::AsOftenAs(triggered.row());
    let mut rows = vec![
        arm(Nothing, EXACT, Sync::Never),
        arm(By(Method::Is), EXACT, Sync::Never),
        triggered,
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
        arm(a, COARSE, trigger()),
    ];
    for method in [Method::DlcF, Method::DlcE] {
        rows.push(arm(By(method), EXACT, trigger()));
        rows.push(arm(By(method), COARSE, trigger()));
    }
    rows.extend([arm(By(Method::Is), COARSE, trigger()), arm(By(Method::PpoLag), COARSE, Sync::Every(1))]);
    for wrong in [Method::WrongUnweightedCentring, Method::WrongWeightedCentring, Method::WrongLagAgainstQ] {
        rows.push(arm(By(wrong), EXACT, Sync::Never));
    }
    rows.push(arm(a, EXACT, Sync::ClippedEss));
    rows
}

fn rivals() -> Vec<Arm> {
    Method::ALL.map(|method| Arm::new(By(method), EXACT, Sync::Never)).into()
}

fn noise() -> Vec<Arm> {
    let mut rows = Vec::new();
    for numerics in ["noise(0.05,1)", "noise(0.1,1)", "bf16-head", "int8", "int3"] {
        for correction in [Nothing, By(Method::Centring), By(Method::Is), By(Method::PpoFull)] {
            rows.push(Arm::new(correction, numerics, Sync::Every(1)));
        }
        rows.push(Arm::new(Correction::dlc_a(), numerics, trigger()));
    }
    for policy in [
        Policy { trigger: Trigger { threshold: 0.7, ..Trigger::default() }, ..Policy::default() },
        Policy { forecast_ahead: 2, ..Policy::default() },
    ] {
        rows.push(Arm::new(Correction::dlc_a(), EXACT, Sync::Policy(policy)));
        rows.push(Arm::new(Correction::dlc_a(), COARSE, Sync::Policy(policy)));
    }
    rows
}

fn over_rates(setting: &Setting, factors: &[f64], (methods, syncs): (&[Method], &[Sync])) -> Vec<Arm> {
    let mut rows = Vec::new();
    for factor in factors {
        let learning_rate = Some(setting.learning_rate * factor);
        for method in methods {
            let of = |sync: &Sync| Arm { learning_rate, ..Arm::new(By(*method), EXACT, sync.clone()) };
            rows.extend(syncs.iter().map(of));
        }
    }
    rows
}

/// What may become the default: the correction, and what its trigger watches. Answers are shorter than H, so the horizon level
/// is the sequence level here.
pub(super) fn candidates() -> Vec<(Correction, Sync)> {
    let token = Policy { trigger: Trigger { level: TriggerLevel::Token, ..Trigger::default() }, ..Policy::default() };
    let forms = [Correction::dlc_a(), By(Method::DlcE), By(Method::DlcF), By(Method::Is)];
    let clips = CLIPS.map(Correction::DlcA);
    let triggered = forms.into_iter().chain(clips).map(|correction| (correction, trigger()));
    triggered.chain([(Correction::dlc_a(), Sync::Policy(token))]).collect()
}

/// The correction that a candidate is with a fresh sampler: no bound of the lag ratio binds there, so that E and A are one.
pub(super) fn when_fresh(correction: Correction) -> Correction {
    match correction {
        Correction::DlcA(_) | By(Method::DlcE) => Correction::dlc_a(),
        other => other,
    }
}

fn search() -> Vec<Arm> {
    let mut rows = Vec::new();
    for (correction, sync) in candidates() {
        rows.push(Arm::new(correction, EXACT, sync.clone()));
        for numerics in QUANTISED {
            rows.push(Arm::new(when_fresh(correction), numerics, Sync::Every(1)));
            rows.push(Arm::new(correction, numerics, sync.clone()));
        }
    }
    let mut seen = BTreeSet::new();
    rows.retain(|arm| seen.insert(arm.row()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_needs_come_first() {
        let parts =
            Part::ALL.map(|part| vec![part]).into_iter().chain([vec![Part::Quick], vec![Part::Deep], Part::ALL.into()]);
        for parts in parts {
            let arms = arms(&parts, &Setting::big(), None);
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
    fn all_of_it_has_every_rival_and_every_seed() {
        let arms = arms(&Part::ALL, &Setting::big(), Some(5));
        for method in Method::ALL {
            let seeds = arms.iter().filter(|arm| arm.row() == format!("{method}-exact-never")).count();
            assert_eq!(seeds, 5, "{method}");
        }
        for numerics in ["noise(0.05,1)", "noise(0.1,1)", "bf16-head", "int8", "int4", "int3"] {
            assert!(arms.iter().any(|arm| arm.numerics == numerics), "{numerics}");
        }
    }

    #[test]
    fn an_arm_reads_back() {
        for arm in arms(&Part::ALL, &Setting::big(), None) {
            let json = serde_json::to_string(&arm).unwrap();
            assert_eq!(serde_json::from_str::<Arm>(&json).unwrap(), arm);
        }
    }
}
