//! The rivals by name: where each comes from, what it drops, how its loss is reduced.

use super::{reduction::Reduction, selects::Selects, sequence_ratio::GSPO_REDUCTION, vcpo};
use std::fmt;

/// A rule of this directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is its name, and its file says the rest")]
pub enum Rival {
    PolicyGradient,
    ImportanceSampling,
    TokenTis,
    SequenceTis,
    IcePop,
    SequenceMask,
    GeometricRejection,
    PpoClip,
    Decoupled,
    M2po,
    M2poHarmfulOnly,
    M2poOfficial,
    Vcpo,
    Gspo,
    Cispo,
    OffPolicyMask,
    KeepSamplingMask,
    ScoreCentring,
    CentredPpo,
}

impl Rival {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::PolicyGradient,
        Self::ImportanceSampling,
        Self::TokenTis,
        Self::SequenceTis,
        Self::IcePop,
        Self::SequenceMask,
        Self::GeometricRejection,
        Self::PpoClip,
        Self::Decoupled,
        Self::M2po,
        Self::M2poHarmfulOnly,
        Self::M2poOfficial,
        Self::Vcpo,
        Self::Gspo,
        Self::Cispo,
        Self::OffPolicyMask,
        Self::KeepSamplingMask,
        Self::ScoreCentring,
        Self::CentredPpo,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PolicyGradient => "pg",
            Self::ImportanceSampling => "is",
            Self::TokenTis => "tis_token",
            Self::SequenceTis => "tis_sequence",
            Self::IcePop => "icepop",
            Self::SequenceMask => "sequence_mask",
            Self::GeometricRejection => "geo_rs",
            Self::PpoClip => "ppo_clip",
            Self::Decoupled => "decoupled_ppo",
            Self::M2po => "m2po",
            Self::M2poHarmfulOnly => "m2po_harmful_only",
            Self::M2poOfficial => "m2po_official",
            Self::Vcpo => "vcpo",
            Self::Gspo => "gspo",
            Self::Cispo => "cispo",
            Self::OffPolicyMask => "opsm",
            Self::KeepSamplingMask => "keep_sampling_mask",
            Self::ScoreCentring => "sc",
            Self::CentredPpo => "sc_ppo_tis",
        }
    }

    /// By what it leaves tokens out. A clip that stops a gradient (PPO, GSPO) leaves nothing out of the batch.
    pub fn selects(self) -> Selects {
        match self {
            Self::IcePop | Self::M2po => Selects::ByToken,
            Self::GeometricRejection => Selects::BySequence,
            Self::SequenceMask => Selects::ByLength,
            Self::M2poHarmfulOnly | Self::OffPolicyMask => Selects::ByOutcome,
            _ => Selects::Nothing,
        }
    }

    /// How its loss is reduced: as its authors do where the rule fixes it, token-mean where it does not.
    pub fn reduction(self) -> Reduction {
        match self {
            Self::Gspo => GSPO_REDUCTION,
            Self::Vcpo => vcpo::REDUCTION,
            _ => Reduction::TokenMean,
        }
    }

    /// True where the published code divides by the tokens that were kept, which inflates the gradient of each.
    pub fn counts_after_selection(self) -> bool {
        self == Self::M2po
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name(), self.selects(), self.reduction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_shows_what_it_drops() {
        assert_eq!(Rival::OffPolicyMask.to_string(), "opsm (drops by the sign of the advantage, token-mean)");
        assert_eq!(Rival::Gspo.to_string(), "gspo (drops nothing, seq-mean-token-mean)");
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = Rival::ALL.iter().map(|rival| rival.name()).collect();
        assert_eq!(names.len(), Rival::ALL.len());
    }
}
