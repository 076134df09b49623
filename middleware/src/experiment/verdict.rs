//! What the numbers say of the claims and of the bars. A claim that the setting cannot test is vacuous, one whose arms are not
//! done is not measured; neither counts as reproduced.

use super::{
    claims,
    outcome::{Results, mean},
    search,
};
use serde::Serialize;
use std::fmt;

/// The never-trained control must be at least this many floors away, or closeness means nothing.
pub const FAR_ENOUGH: f64 = 3.0;

/// What is said of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// The numbers say what the claim says.
    Reproduced,
    /// They do not.
    NotReproduced,
    /// Standing still would pass too.
    Vacuous,
    /// Its arms are not done, or not part of this extent.
    NotMeasured,
}

/// A claim, or a bar, with its numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// `E1` .. `E9`, `bar 1` .. `bar 7`, `default, int8`.
    pub id: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// What is said of it.
    pub ruling: Ruling,
    /// The numbers behind that.
    pub numbers: String,
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Vacuous => "vacuous",
            Self::NotMeasured => "not measured",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<13} {:<14} {}; {}", self.id, self.ruling.to_string(), self.claim, self.numbers)
    }
}

/// The claims, then the bars, then what the search for a default found.
pub fn judge(results: &Results) -> Vec<Verdict> {
    claims::all(results).into_iter().chain(bars(results)).chain(search::verdicts(results)).collect()
}

/// A ruling with its numbers, or why there is none.
pub(super) type Judged = Option<(Ruling, String)>;

pub(super) fn verdict(id: &'static str, claim: &'static str, judged: Judged) -> Verdict {
    let not = || (Ruling::NotMeasured, "not all of its arms are done, or in this extent".to_owned());
    let (ruling, numbers) = judged.unwrap_or_else(not);
    Verdict { id, claim, ruling, numbers }
}

pub(super) fn ruled(holds: bool) -> Ruling {
    if holds { Ruling::Reproduced } else { Ruling::NotReproduced }
}

/// Closeness counts only where the never-trained control is far away.
pub(super) fn close(results: &Results, holds: bool) -> Ruling {
    match control(results) {
        Some(smallest) if smallest >= FAR_ENOUGH => ruled(holds),
        _ => Ruling::Vacuous,
    }
}

/// The control's smallest distance in the second half, in floors.
pub(super) fn control(results: &Results) -> Option<f64> {
    let half = results.plan.setting.steps / 2;
    let curve = results.curve(claims::UNTRAINED);
    curve.into_iter().filter(|(step, _)| *step >= half).map(|(_, floors)| floors).reduce(f64::min)
}

/// The look nearest to a share of the run.
pub(super) fn look_at(results: &Results, share: f64) -> Option<u64> {
    let wanted = share * results.plan.setting.steps as f64;
    let off = |step: &u64| (*step as f64 - wanted).abs();
    results.plan.setting.evaluations().into_iter().min_by(|a, b| off(a).total_cmp(&off(b)))
}

/// The largest distance of a row, in floors.
pub(super) fn largest(results: &Results, row: &str) -> Option<f64> {
    results.curve(row).into_iter().map(|(_, floors)| floors).reduce(f64::max)
}

/// Mean distance of a row from 0.4 of the run on, in floors.
pub(super) fn late(results: &Results, row: &str) -> Option<f64> {
    let from = 0.4 * results.plan.setting.steps as f64;
    let late: Vec<f64> =
        results.curve(row).into_iter().filter(|(step, _)| *step as f64 >= from).map(|(_, floors)| floors).collect();
    mean(&late)
}

/// The directional bars.
fn bars(results: &Results) -> Vec<Verdict> {
    use claims::{CENTRING_INT4, CENTRING_STALE, DLC, DLC_STALE, IS_STALE, NONE_INT4, NONE_STALE};
    let at = |row: &str, share: f64| results.floors(row, look_at(results, share)?);
    let far = |row: &str, wanted: f64| {
        let floors = at(row, 0.6)?;
        Some((ruled(floors > wanted), format!("{floors:.2} floors at 0.6 of the run")))
    };
    let control = control(results).map(|floors| {
        let ruling = if floors >= FAR_ENOUGH { Ruling::Reproduced } else { Ruling::Vacuous };
        (ruling, format!("at least {floors:.2} floors in the second half"))
    });
    let dlc = || {
        let (worst, without, with) = (largest(results, DLC)?, at(DLC_STALE, 0.6)?, at(DLC, 0.6)?);
        let numbers = format!("at most {worst:.2} floors; at 0.6 of the run {with:.2} with and {without:.2} without");
        Some((close(results, worst < 2.5 && without - with >= 1.0), numbers))
    };
    let stale = || {
        let (centring, is) = (at(CENTRING_STALE, 1.0)?, at(IS_STALE, 1.0)?);
        Some((ruled(centring > 2.0 * is), format!("{centring:.2} against {is:.2} floors at the end")))
    };
    let coarse = || {
        let (centring, none) = (late(results, CENTRING_INT4)?, late(results, NONE_INT4)?);
        Some((ruled(centring < none), format!("{centring:.2} against {none:.2} floors, mean from 0.4 of the run on")))
    };
    vec![
        verdict("bar 1", "the never-trained control is at 3 floors or more in the second half", control),
        verdict("bar 2", "none, stale: above 5 floors by 0.6 of the run", far(NONE_STALE, 5.0)),
        verdict("bar 3", "IS, stale: above 2 floors by 0.6 of the run", far(IS_STALE, 2.0)),
        verdict("bar 4", "DLC-A with the trigger: below 2.5 floors, and 1 below DLC-A without it", dlc()),
        verdict("bar 5", "centring, stale: more than twice IS, stale, at the end", stale()),
        verdict("bar 6", "centring, int4 fresh: below none, int4 fresh", coarse()),
        verdict("bar 7", "PPO on q, int4 fresh: above 5 floors, its own-prefix KL within 3 times the first", {
            claims::ppo_on_q(results).map(|(floors, first, last)| {
                let holds = floors > 5.0 && last <= 3.0 * first;
                (ruled(holds), format!("{floors:.2} floors at the end; own-prefix KL {first:.4}, then {last:.4}"))
            })
        }),
    ]
}

#[cfg(test)]
mod tests;
