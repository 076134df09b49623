//! Every correction a training step can be asked for by name, with the constants it was published with.
//!
//! A method gives each position its `(w, c)`. Most need no more than the position and the sign of its advantage; some weigh a
//! token by its whole answer or by the whole batch, and are [prepared](Method::prepare) first. Denominators are those of the
//! batch before anything is dropped, whatever the method.

use super::{
    batch::{Batch, BatchError, PerToken, Ratio, Token},
    bounds::{Band, Cap},
    centred::{CentreError, CentredPpo, CentredPpoError, TokenWeight, centre},
    importance::{Level, clamped_exp, importance, truncated},
    m2po,
    ppo::Ppo,
    reduction::{Counts, Reduction},
    selects::{Selects, Weights},
    sequence_ratio::{GSPO_CLIP, GSPO_REDUCTION, gspo, off_policy_mask},
    vcpo,
};
use crate::dlc::{
    LagClip, PpoClip, TailModel, TokenCorrection, Variant, VariantError, VariantWeighError,
    weigh::{Position, WeighError},
    wrong_on_purpose,
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Half-widths of PPO's clip.
const PPO: (f64, f64) = (0.2, 0.2);

/// C of truncated importance sampling, of form F and of centred truncation.
const TIS: f64 = 2.0;

/// C of VCPO's sequence weights.
const VCPO: f64 = 8.0;

/// C of decoupled PPO's behaviour weight.
const BEHAVIOUR: f64 = 5.0;

/// Largest mean `log q - log p` of a bad answer that off-policy sequence masking keeps.
const OFF_POLICY: f64 = 0.03;

/// A correction by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is its name; `Method::about` says the rest")]
pub enum Method {
    DlcB,
    DlcE,
    DlcF,
    Is,
    IsSequence,
    Tis,
    TisSequence,
    IcePop,
    Mis,
    PpoLag,
    PpoFull,
    DecoupledPpo,
    M2po,
    M2poHarmfulOnly,
    M2poOfficial,
    Vcpo,
    Gspo,
    Cispo,
    Opsm,
    Centring,
    CentringTis,
    CentringMis,
    CentringPpo,
    WrongUnweightedCentring,
    WrongWeightedCentring,
    WrongLagAgainstQ,
}

/// No such method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no correction {0:?}; there are {names}", names = Method::ALL.map(Method::name).join(", "))]
pub struct UnknownMethod(pub String);

/// A position, or a batch, that a method cannot correct.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum MethodError {
    /// One of DLC's forms.
    #[error(transparent)]
    Variant(#[from] VariantWeighError),
    /// Its constants.
    #[error(transparent)]
    Constants(#[from] VariantError),
    /// A ratio.
    #[error(transparent)]
    Weigh(#[from] WeighError),
    /// Score centring.
    #[error(transparent)]
    Centre(#[from] CentreError),
    /// Centred PPO.
    #[error(transparent)]
    CentredPpo(#[from] CentredPpoError),
    /// The log-probs of the batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A weight that the batch must give, and did not.
    #[error("{0} weighs a token by its batch, and no batch was given")]
    Unprepared(Method),
    /// A weight that is no number.
    #[error("weight {0} of the drawn token is not a finite number")]
    Weight(f64),
    /// A correction wrong on purpose needs the whole of q.
    #[error("{0} is defined on exact supports alone, q has unknown entries of log mass {1}")]
    NotExact(Method, f64),
}

/// What a method makes of a whole batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Weight of each drawn token, `[sequence][token]`; `None` where the position alone decides.
    pub w: Option<PerToken<f64>>,
    /// What each token counts for in the loss of the batch, `[sequence][token]`.
    pub coefficients: PerToken<f64>,
    /// Factor of the learning rate for this step.
    pub rate: f64,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::DlcB,
        Self::DlcE,
        Self::DlcF,
        Self::Is,
        Self::IsSequence,
        Self::Tis,
        Self::TisSequence,
        Self::IcePop,
        Self::Mis,
        Self::PpoLag,
        Self::PpoFull,
        Self::DecoupledPpo,
        Self::M2po,
        Self::M2poHarmfulOnly,
        Self::M2poOfficial,
        Self::Vcpo,
        Self::Gspo,
        Self::Cispo,
        Self::Opsm,
        Self::Centring,
        Self::CentringTis,
        Self::CentringMis,
        Self::CentringPpo,
        Self::WrongUnweightedCentring,
        Self::WrongWeightedCentring,
        Self::WrongLagAgainstQ,
    ];

    /// Its name, and what it computes.
    fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::DlcB => ("dlc_b", "DLC, form B: the numeric term alone is centred"),
            Self::DlcE => ("dlc_e", "DLC, form E: centred, PPO's clip of 0.2 on p_theta/p_s"),
            Self::DlcF => ("dlc_f", "DLC, form F: centred, p_s/q truncated at 2, lag clipped at 2"),
            Self::Is => ("is", "w = p_theta/q of the token"),
            Self::IsSequence => ("is_sequence", "w = p_theta/q of the answer"),
            Self::Tis => ("tis", "w = min(p_theta/q, 2) of the token"),
            Self::TisSequence => ("tis_sequence", "w = min(p_theta/q, 2) of the answer"),
            Self::IcePop => ("icepop", "w = p_theta/q within [0.5, 2], else 0"),
            Self::Mis => ("mis", "w = p_theta/q within [0.5, 5], else 0"),
            Self::PpoLag => ("ppo_s", "PPO's clip of 0.2 on p_theta/p_s"),
            Self::PpoFull => ("ppo_q", "PPO's clip of 0.2 on p_theta/q"),
            Self::DecoupledPpo => ("decoupled_ppo", "min(p_s/q, 5) times PPO's clip of 0.2 on p_theta/p_s"),
            Self::M2po => ("m2po", "w = p_theta/q; tokens fall until the mean of (log r)^2 is below 0.04"),
            Self::M2poHarmfulOnly => ("m2po_harmful_only", "as m2po, harmful tokens alone are counted and fall"),
            Self::M2poOfficial => {
                ("m2po_official", "PPO on p_theta/q, its clip wide enough for a second moment of 0.04")
            }
            Self::Vcpo => ("vcpo", "min(p_theta/q, 8) of the answer, rate times sqrt(ESS); group-mean baseline"),
            Self::Gspo => ("gspo", "the answer's geometric mean p_theta/p_s, clipped at 3e-4/4e-4"),
            Self::Cispo => ("cispo", "w = min(p_theta/q, 1.28), detached"),
            Self::Opsm => ("opsm", "ppo_s without bad answers of mean log q/p_theta above 0.03"),
            Self::Centring => ("centring", "score centring: w = 1, c = q"),
            Self::CentringTis => ("centring_tis", "score centring of min(p_theta/q, 2)"),
            Self::CentringMis => ("centring_mis", "score centring of p_theta/q within [0.5, 5]"),
            Self::CentringPpo => ("centring_ppo", "score centring of min(p_s/q, 2) and PPO's clip of 0.2"),
            Self::WrongUnweightedCentring => {
                ("wrong_unweighted_centring", "wrong on purpose: lag weight, centred without it")
            }
            Self::WrongWeightedCentring => {
                ("wrong_weighted_centring", "wrong on purpose: lag weight times the centred score")
            }
            Self::WrongLagAgainstQ => {
                ("wrong_lag_against_q", "wrong on purpose: PPO's lag ratio taken against q, and c = q")
            }
        }
    }

    /// Its name on the command line, on the wire and in reports.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// What it computes, in one line.
    pub fn about(self) -> &'static str {
        self.entry().1
    }

    /// By what it leaves tokens out of a batch.
    pub fn selects(self) -> Selects {
        match self {
            Self::IcePop | Self::Mis | Self::M2po | Self::CentringMis => Selects::ByToken,
            Self::M2poHarmfulOnly | Self::Opsm => Selects::ByOutcome,
            _ => Selects::Nothing,
        }
    }

    /// How its loss is reduced.
    pub fn reduction(self) -> Reduction {
        match self {
            Self::Gspo => GSPO_REDUCTION,
            Self::Vcpo => vcpo::REDUCTION,
            _ => Reduction::TokenMean,
        }
    }

    /// True where a token's weight depends on more than its own position, so that the log-probs of the batch under the
    /// weights now must be there before the first gradient.
    pub fn needs_batch(self) -> bool {
        matches!(
            self,
            Self::IsSequence
                | Self::TisSequence
                | Self::M2po
                | Self::M2poHarmfulOnly
                | Self::M2poOfficial
                | Self::Vcpo
                | Self::Gspo
                | Self::Opsm
        )
    }

    /// Bounds of its lag ratio, where it clips one.
    pub fn lag_clip(self) -> Option<LagClip> {
        matches!(self, Self::DlcB | Self::DlcF).then(LagClip::default)
    }

    /// True where it needs p_s on entries that are not known.
    pub fn dense_tail(self) -> bool {
        matches!(self, Self::DlcB | Self::DlcF)
    }

    /// Weights of the tokens and what each counts for, from the log-probs of the whole batch.
    ///
    /// # Errors
    /// Constants that bound nothing.
    pub fn prepare(self, batch: &Batch) -> Result<Prepared, MethodError> {
        let (cap, ppo) = (|cap| Cap::new(cap).unwrap_or(Cap::NONE), ppo(PPO)?);
        let sequence = |c| truncated(batch, Ratio::Full, (Level::Sequence, c));
        let token = || importance(batch, Ratio::Full, Level::Token);
        let w = match self {
            Self::IsSequence => Some(sequence(Cap::NONE)),
            Self::TisSequence => Some(sequence(cap(TIS))),
            Self::Vcpo => Some(sequence(cap(VCPO))),
            Self::M2po => Some(token().within(&m2po::areal(batch, Ratio::Full, m2po::THRESHOLD))),
            Self::M2poHarmfulOnly => Some(token().within(&m2po::harmful_only(batch, Ratio::Full, m2po::THRESHOLD))),
            Self::M2poOfficial => {
                let clip = m2po::official(batch, Ratio::Full, m2po::THRESHOLD, m2po::MINICLIP)?;
                Some(Weights { w: Ppo { clip, dual: None }.surrogate(batch, Ratio::Full).w })
            }
            Self::Gspo => {
                let ppo = Ppo { clip: PpoClip::new(GSPO_CLIP.0, GSPO_CLIP.1)?, dual: None };
                Some(Weights { w: gspo(batch, Ratio::Lag, &ppo).w })
            }
            Self::Opsm => {
                let w = Weights { w: ppo.surrogate(batch, Ratio::Lag).w };
                Some(w.within(&off_policy_mask(batch, Ratio::Full, OFF_POLICY)))
            }
            _ => None,
        };
        let rate = match self {
            Self::Vcpo => vcpo_rate(batch),
            _ => 1.0,
        };
        let mask = batch.mask();
        let coefficients = self.reduction().coefficients(&mask, Counts::of(&mask));
        Ok(Prepared { w: w.map(|weights| weights.w), coefficients, rate })
    }

    /// The `(w, c)` of one position, at its advantage, of which only the sign is used; `prepared` is its weight where
    /// [`Method::needs_batch`] says so.
    ///
    /// # Errors
    /// A ratio or weight that is not finite, scores that do not cover the support, no `prepared` where one is needed.
    pub fn weigh(
        self,
        position: &Position<'_>,
        advantage: f64,
        prepared: Option<f64>,
    ) -> Result<TokenCorrection, MethodError> {
        if self.needs_batch() {
            return uncentred(position, prepared.ok_or(MethodError::Unprepared(self))?);
        }
        let clip = LagClip::default();
        let centred = |weight| Ok(centre(position.support, position.log_theta, &weight)?);
        let variant = |variant: Variant| Ok(variant.weigh(position, advantage)?);
        match self {
            Self::DlcB => variant(Variant::b(clip, TailModel::SamplerWeights)),
            Self::DlcE => variant(Variant::e(PpoClip::new(PPO.0, PPO.1)?)),
            Self::DlcF => variant(Variant::f(clip, TIS, TailModel::SamplerWeights)?),
            Self::Centring => centred(TokenWeight::One),
            Self::CentringTis => centred(TokenWeight::Truncated(Cap::new(TIS).unwrap_or(Cap::NONE))),
            Self::CentringMis => centred(TokenWeight::Masked(band((0.5, 5.0)))),
            Self::CentringPpo => Ok(CentredPpo::new(PpoClip::new(PPO.0, PPO.1)?, TIS)?.weigh(position, advantage)?),
            Self::WrongUnweightedCentring => {
                self.exact(position)?;
                Ok(wrong_on_purpose::centring_without_the_weight(position, clip)?)
            }
            Self::WrongWeightedCentring => {
                self.exact(position)?;
                Ok(wrong_on_purpose::centring_with_the_drawn_tokens_weight(position, clip)?)
            }
            Self::WrongLagAgainstQ => {
                self.exact(position)?;
                let c = position.support.log_q().iter().map(|log_q| log_q.exp()).collect();
                Ok(TokenCorrection { c, ..uncentred(position, self.token_weight(&token(position, advantage)?)?)? })
            }
            _ => uncentred(position, self.token_weight(&token(position, advantage)?)?),
        }
    }

    /// The weight of a token that its own ratios decide.
    fn token_weight(self, token: &Token) -> Result<f64, MethodError> {
        let ratio = |ratio: Ratio| clamped_exp(ratio.log(token));
        let ppo = |of: Ratio| Ok::<_, MethodError>(ppo(PPO)?.token(ratio(of), token.advantage).w);
        Ok(match self {
            Self::Tis => ratio(Ratio::Full).min(TIS),
            Self::IcePop => band((0.5, 2.0)).mask(ratio(Ratio::Full)),
            Self::Mis => band((0.5, 5.0)).mask(ratio(Ratio::Full)),
            Self::PpoLag => ppo(Ratio::Lag)?,
            Self::PpoFull | Self::WrongLagAgainstQ => ppo(Ratio::Full)?,
            Self::DecoupledPpo => ratio(Ratio::Numeric).min(BEHAVIOUR) * ppo(Ratio::Lag)?,
            Self::Cispo => PpoClip::new(1.0, 0.28)?.clip(ratio(Ratio::Full)),
            _ => ratio(Ratio::Full),
        })
    }

    fn exact(self, position: &Position<'_>) -> Result<(), MethodError> {
        position.support.log_rest().map_or(Ok(()), |rest| Err(MethodError::NotExact(self, rest)))
    }
}

fn ppo((low, high): (f64, f64)) -> Result<Ppo, VariantError> {
    Ok(Ppo { clip: PpoClip::new(low, high)?, dual: None })
}

fn band((low, high): (f64, f64)) -> Band {
    Band::new(low, high).unwrap_or_else(|error| unreachable!("{error}"))
}

fn token(position: &Position<'_>, advantage: f64) -> Result<Token, MethodError> {
    position.decompose().map_err(WeighError::from)?;
    let (log_theta, log_s) = (position.log_theta.log_p_sampled, position.log_s.log_p_sampled);
    Ok(Token { log_theta, log_s, log_q: position.support.sampled().log_q, advantage })
}

fn uncentred(position: &Position<'_>, w: f64) -> Result<TokenCorrection, MethodError> {
    if !w.is_finite() {
        return Err(MethodError::Weight(w));
    }
    Ok(TokenCorrection { w, c: vec![0.0; position.support.known()], tail: None })
}

/// `sqrt(min(1, ESS / B))` of the answers' weights.
fn vcpo_rate(batch: &Batch) -> f64 {
    let log_weights = vcpo::log_weights(batch, Ratio::Full);
    let share = vcpo::ess(&log_weights, vcpo::GUARD).map(|ess| ess / log_weights.len() as f64);
    share.map_or(1.0, |rho| vcpo::RateRule::Sqrt.scale(rho, 1.0))
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        let known = Self::ALL.into_iter().find(|method| method.name() == name);
        known.ok_or_else(|| UnknownMethod(name.into()))
    }
}

#[cfg(test)]
mod tests;
