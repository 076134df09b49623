//! verl's rollout corrections by their preset names (`RolloutCorrectionConfig`).
//!
//! Decoupled recipes hold p_s against q and leave the lag to PPO; bypass recipes take q for the old policy.

use super::{
    batch::{Batch, Ratio},
    bounds::{Band, Cap},
    importance::{Level, normalised, policy_gradient, truncated},
    ppo::{Ppo, Surrogate},
    rejection::{Criterion, Over, Statistic, reject},
    selects::{Selection, Selects, Weights},
};

/// Which loss a recipe corrects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// PPO on `p_theta / p_s`, times the weight of `p_s / q`.
    Decoupled,
    /// PPO on `p_theta / q`; no weight.
    BypassPpo,
    /// Policy gradient, weighted by `p_theta / q`.
    BypassReinforce,
}

/// One of verl's recipes.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Which loss.
    pub objective: Objective,
    /// `rollout_is` and its threshold.
    pub truncation: Option<(Level, Cap)>,
    /// `rollout_is_batch_normalize`.
    pub normalise: bool,
    /// `rollout_rs` with thresholds; all must hold.
    pub rejection: Vec<Criterion>,
}

/// Every preset's name.
pub const PRESETS: [&str; 18] = [
    "decoupled_token_is",
    "decoupled_seq_is",
    "decoupled_seq_is_rs",
    "decoupled_geo_rs",
    "decoupled_geo_rs_seq_tis",
    "decoupled_geo_rs_token_tis",
    "decoupled_k3_rs",
    "decoupled_k3_rs_seq_tis",
    "decoupled_k3_rs_token_tis",
    "bypass_ppo_clip",
    "bypass_ppo_clip_geo_rs",
    "bypass_ppo_clip_k3_rs",
    "bypass_pg_is",
    "bypass_pg_geo_rs",
    "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis",
    "disabled",
    "default",
];

/// No such preset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("verl has no rollout correction preset {0:?}")]
pub struct UnknownPreset(String);

impl Recipe {
    /// A preset with its own thresholds: C = 2, `seq_sum_k1` 0.5_2.0, `seq_mean_k1` 0.999_1.001, `seq_mean_k3` 0.01.
    ///
    /// "default" is the bare class: sequence-level weights, decoupled, nothing rejected.
    ///
    /// # Errors
    /// A name that is none of [`PRESETS`].
    pub fn preset(name: &str) -> Result<Self, UnknownPreset> {
        let unknown = || UnknownPreset(name.into());
        let cap = Cap::new(2.0).map_err(|_| unknown())?;
        let band = |low, high| Band::new(low, high).map_err(|_| unknown());
        let sum = Criterion { statistic: Statistic::K1(band(0.5, 2.0)?), over: Over::SeqSum };
        let geometric = Criterion { statistic: Statistic::K1(band(0.999, 1.001)?), over: Over::SeqMean };
        let k3 = Criterion { statistic: Statistic::K3(0.01), over: Over::SeqMean };
        let (token, sequence) = (Some((Level::Token, cap)), Some((Level::Sequence, cap)));
        use Objective::{BypassPpo, BypassReinforce, Decoupled};
        let (objective, truncation, rejection) = match name {
            "decoupled_token_is" => (Decoupled, token, vec![]),
            "decoupled_seq_is" | "default" => (Decoupled, sequence, vec![]),
            "decoupled_seq_is_rs" => (Decoupled, sequence, vec![sum]),
            "decoupled_geo_rs" => (Decoupled, None, vec![geometric]),
            "decoupled_geo_rs_seq_tis" => (Decoupled, sequence, vec![geometric]),
            "decoupled_geo_rs_token_tis" => (Decoupled, token, vec![geometric]),
            "decoupled_k3_rs" => (Decoupled, None, vec![k3]),
            "decoupled_k3_rs_seq_tis" => (Decoupled, sequence, vec![k3]),
            "decoupled_k3_rs_token_tis" => (Decoupled, token, vec![k3]),
            "disabled" => (Decoupled, None, vec![]),
            "bypass_ppo_clip" => (BypassPpo, None, vec![]),
            "bypass_ppo_clip_geo_rs" => (BypassPpo, None, vec![geometric]),
            "bypass_ppo_clip_k3_rs" => (BypassPpo, None, vec![k3]),
            "bypass_pg_is" => (BypassReinforce, sequence, vec![]),
            "bypass_pg_geo_rs" => (BypassReinforce, None, vec![geometric]),
            "bypass_pg_geo_rs_seq_tis" => (BypassReinforce, sequence, vec![geometric]),
            "bypass_pg_geo_rs_token_tis" => (BypassReinforce, token, vec![geometric]),
            _ => return Err(unknown()),
        };
        Ok(Self { objective, truncation, normalise: false, rejection })
    }

    /// The ratio its weights and rejections look at.
    pub fn ratio(&self) -> Ratio {
        match self.objective {
            Objective::Decoupled => Ratio::Numeric,
            Objective::BypassPpo | Objective::BypassReinforce => Ratio::Full,
        }
    }

    /// By what it drops.
    pub fn selects(&self) -> Selects {
        self.rejection.iter().map(|criterion| criterion.over.selects()).max().unwrap_or(Selects::Nothing)
    }

    /// Weights of the drawn tokens and the edited mask.
    pub fn correct(&self, batch: &Batch) -> (Weights, Selection) {
        let weights = match self.truncation {
            None => policy_gradient(batch),
            Some((level, cap)) => {
                let weights = truncated(batch, self.ratio(), (level, cap));
                if self.normalise { normalised(weights, batch, level).0 } else { weights }
            }
        };
        (weights, reject(batch, self.ratio(), &self.rejection))
    }

    /// The coefficients `w` of each token's gradient `-A w s`: PPO's, weighted, or the weights themselves; 0 where rejected.
    pub fn gradient_weights(&self, batch: &Batch, ppo: &Ppo) -> (Weights, Selection) {
        let (weights, selection) = self.correct(batch);
        let of_ppo = |ratio| -> Surrogate { ppo.surrogate(batch, ratio) };
        let weights = match self.objective {
            Objective::Decoupled => Weights { w: of_ppo(Ratio::Lag).w }.times(&weights),
            Objective::BypassPpo => Weights { w: of_ppo(Ratio::Full).w },
            Objective::BypassReinforce => weights,
        };
        (weights.within(&selection), selection)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};
    use crate::dlc::PpoClip;

    #[test]
    fn every_preset_is_known_and_says_what_it_drops() {
        let selects = |name: &str| Recipe::preset(name).unwrap().selects();
        PRESETS.iter().for_each(|name| assert!(Recipe::preset(name).is_ok(), "{name}"));
        assert_eq!(selects("decoupled_token_is"), Selects::Nothing);
        assert_eq!(selects("decoupled_seq_is_rs"), Selects::ByLength);
        assert_eq!(selects("bypass_pg_geo_rs_seq_tis"), Selects::BySequence);
        let error = Recipe::preset("tis").unwrap_err().to_string();
        assert_eq!(error, "verl has no rollout correction preset \"tis\"");
    }

    #[test]
    fn bypass_ppo_applies_no_weight() {
        let one = batch(&[(&[0.1], 1.0)]);
        let ppo = Ppo { clip: PpoClip::new(0.2, 0.2).unwrap(), dual: None };
        let w = |name: &str| Recipe::preset(name).unwrap().gradient_weights(&one, &ppo).0.w[0][0];
        assert!((w("bypass_ppo_clip") - 0.1f64.exp()).abs() < 1e-12);
        assert!((w("bypass_pg_is") - 0.1f64.exp()).abs() < 1e-12);
        assert_eq!(w("bypass_pg_geo_rs"), 0.0);
    }
}
