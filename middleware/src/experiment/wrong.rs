//! An ESS that is taken too late: of the ratios after a clip, which no longer shows how far the weights have parted. For the
//! arm that is wrong on purpose.

use crate::step::Pair;
use lockstep_core::{
    Batch, Rollout,
    dlc::{
        EssLevel, EssReport, LagRatio, decompose,
        decompose::{RatioNotFinite, TokenLogProbs},
        ess::clamped_effective_sample_size,
    },
    ports::{PortError, PortResult},
    score::{RolloutLogProbs, ScoredAt, select},
};

/// The ratios are clipped to [1/C, C].
const C: f64 = 2.0;

/// The raw lag of every token, `[answer][token]`; before the step that trains on the batch.
///
/// # Errors
/// A scorer that fails, scores that do not fit the batch, a ratio that is not finite.
pub(super) async fn lags(pair: &Pair, batch: &Batch, scored: &[ScoredAt]) -> PortResult<Vec<Vec<LagRatio>>> {
    let theta = pair.scorer.score(batch, pair.trainer.version().await?).await?;
    let at_sampler = select(batch, scored).map_err(|error| PortError::Refused(error.to_string()))?;
    let answers = batch.rollouts().iter().zip(theta.rollouts.iter().zip(&at_sampler));
    let lags: Result<_, RatioNotFinite> = answers.map(|(rollout, scores)| of_answer(rollout, scores)).collect();
    lags.map_err(|error| PortError::Refused(error.to_string()))
}

fn of_answer(
    rollout: &Rollout,
    (theta, at_sampler): (&RolloutLogProbs, &RolloutLogProbs),
) -> Result<Vec<LagRatio>, RatioNotFinite> {
    let mut lags = Vec::new();
    for (segment, (theta, at_sampler)) in rollout.segments().iter().zip(theta.iter().zip(at_sampler)) {
        for (position, support) in segment.behavior.rows().enumerate() {
            let log_theta = theta.row(&segment.behavior, position).log_p_sampled;
            let log_s = at_sampler.row(&segment.behavior, position).log_p_sampled;
            let (lag, _) = decompose(TokenLogProbs { log_theta, log_s, sampled: support.sampled() })?;
            lags.push(lag);
        }
    }
    Ok(lags)
}

/// `ess` with each level's value replaced by that of the clipped weights.
pub(super) fn clipped_ess(lags: &[Vec<LagRatio>], ess: EssReport) -> EssReport {
    let of = |level: EssLevel, raw| clamped_effective_sample_size(&level.log_weights(lags), C).unwrap_or(raw);
    EssReport {
        token: of(EssLevel::Token, ess.token),
        sequence: of(EssLevel::Sequence, ess.sequence),
        horizon: of(EssLevel::Horizon { tokens: ess.horizon_tokens }, ess.horizon),
        ..ess
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::{TokenId, support::Sampled};

    #[test]
    fn a_clip_hides_any_lag_from_a_trigger_at_a_half() {
        let sampled = Sampled { token: TokenId(0), log_q: -5.0 };
        let lag = |log: f64| decompose(TokenLogProbs { log_theta: -5.0 + log, log_s: -5.0, sampled }).unwrap().0;
        let lags: Vec<Vec<LagRatio>> = (0..64).map(|at| vec![lag(if at == 0 { 4.9 } else { -0.5 })]).collect();
        let raw = EssReport::of(&lags, 24).unwrap();
        let clipped = clipped_ess(&lags, raw);
        assert!(raw.horizon < 0.2 && raw.token < 0.2, "{raw:?}");
        assert!(clipped.horizon > 0.64 && clipped.sequence > 0.64 && clipped.token > 0.64, "{clipped:?}");
    }
}
