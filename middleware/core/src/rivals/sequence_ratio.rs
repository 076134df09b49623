//! Rules whose ratio is a sequence's geometric mean: GSPO, and DeepSeek-V3.2's off-policy sequence masking.

use super::{
    batch::{Batch, PerToken, Ratio, Token},
    ppo::{Ppo, Surrogate},
    reduction::Reduction,
    selects::{Selection, Selects},
};

/// verl's bound on the log of a sequence ratio, from above.
pub const GSPO_LOG_CLAMP: f64 = 10.0;

/// GSPO is a mean over sequences of means over tokens.
pub const GSPO_REDUCTION: Reduction = Reduction::SeqMeanTokenMean;

/// Half-widths of the paper.
pub const GSPO_CLIP: (f64, f64) = (3e-4, 4e-4);

/// `mean_t log r_t`; 0 without tokens.
pub fn mean_log_ratio(tokens: &[Token], ratio: Ratio) -> f64 {
    tokens.iter().map(|token| ratio.log(token)).sum::<f64>() / tokens.len().max(1) as f64
}

/// GSPO (arXiv 2507.18071), at [`GSPO_REDUCTION`]:
///
/// ```text
/// s_i = exp(min(mean_t log r_t, 10))        loss_it = max(-s_i A, -clip(s_i) A)
/// ```
///
/// The weight of a token's gradient is `s_i`: verl's `s_it = sg(s_i) p / sg(p)` has the same gradient.
pub fn gspo(batch: &Batch, ratio: Ratio, ppo: &Ppo) -> Surrogate {
    let ratios = batch.per_sequence(|tokens| mean_log_ratio(tokens, ratio).min(GSPO_LOG_CLAMP).exp());
    let row = |(s, tokens): (&f64, &Vec<Option<Token>>)| {
        tokens.iter().map(|token| token.as_ref().map(|t| ppo.token(*s, t.advantage)).unwrap_or_default()).collect()
    };
    let tokens: PerToken<_> = ratios.iter().zip(batch.sequences()).map(row).collect();
    Surrogate::of(&tokens)
}

/// Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556): a sequence falls iff `A < 0` and
/// `mean_t(log q - log p) > delta`. Depends on the outcome, so it is never a default.
///
/// The advantage of a sequence is the mean of its tokens'.
pub fn off_policy_mask(batch: &Batch, ratio: Ratio, delta: f64) -> Selection {
    let keep = batch.broadcast(|tokens| {
        let advantage: f64 = tokens.iter().map(|token| token.advantage).sum();
        !(advantage < 0.0 && -mean_log_ratio(tokens, ratio) > delta)
    });
    Selection::of(batch, &keep, Selects::ByOutcome)
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};
    use crate::dlc::PpoClip;

    #[test]
    fn a_sequence_ratio_is_clamped_from_above_alone() {
        let wide = batch(&[(&[30.0, 10.0], -1.0), (&[-30.0], 1.0)]);
        let ppo = Ppo { clip: PpoClip::new(1.0, 0.0).unwrap(), dual: None };
        let w = gspo(&wide, Ratio::Lag, &ppo).w;
        assert_eq!(w, [vec![10f64.exp(); 2], vec![(-30f64).exp()]]);
    }

    #[test]
    fn only_bad_answers_fall_and_a_tie_stays() {
        let two = batch(&[(&[-0.5, -0.5], 1.0), (&[-0.5, -0.5], -1.0), (&[0.5], -1.0)]);
        let kept = |delta| off_policy_mask(&two, Ratio::Full, delta).keep().iter().map(|k| k[0]).collect::<Vec<_>>();
        assert_eq!(kept(0.4), [true, false, true]);
        assert_eq!(kept(0.5), [true, true, true]);
        assert_eq!(off_policy_mask(&two, Ratio::Full, 0.0).selects(), Selects::ByOutcome);
    }
}
