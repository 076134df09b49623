//! Positions in the words of the core, and in those of the kernel.

use super::{Asked, Refusal};
use crate::train_error::{TrainError, TrainResult};
use lockstep_core::dlc::TokenCorrection;
use lockstep_core::dlc::weigh::WeighError;
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::{Domain, Support};
use lockstep_kernels::head::{Correction, LogProbs, Row, RowError, Tail};
use lockstep_kernels::rows::Over;

/// The ids of every asked position, one behind the other.
pub(super) struct Rows<'a> {
    asked: &'a [Asked],
    ids: Vec<u32>,
    older: bool,
}

impl<'a> Rows<'a> {
    /// With `older`, the kernel is asked for p_s where a position names its sampler's side.
    pub(super) fn new(asked: &'a [Asked], older: bool) -> Self {
        let ids = asked.iter().flat_map(|asked| asked.support.ids()).map(|id| id.0).collect();
        Self { asked, ids, older }
    }

    pub(super) fn kernel(&self) -> Vec<Row<'_>> {
        let mut start = 0;
        let row = |Asked { row, support, temperature, sampler, .. }: &Asked| {
            let ids = &self.ids[start..start + support.ids().len()];
            start += ids.len();
            let over = match support.domain() {
                Domain::Vocabulary(_) => Over::Vocabulary,
                Domain::Listed => Over::Listed,
            };
            let (known, drawn) = (support.known(), support.sampled().token.0);
            let older = sampler.filter(|_| self.older);
            Row { at: *row, over, ids, known, drawn, inv_t: 1.0 / temperature, older }
        };
        self.asked.iter().map(row).collect()
    }
}

/// Every id is a row of the head, every vocabulary is the head's.
pub(super) fn check(asked: &[Asked], vocab: usize) -> TrainResult<()> {
    for Asked { place, support, .. } in asked {
        let place = *place;
        if let Domain::Vocabulary(found) = support.domain()
            && found as usize != vocab
        {
            return Err(TrainError::OtherVocabulary { place, found, vocab });
        }
        let all = support.ids().iter().copied().chain([support.sampled().token]);
        if let Some(token) = all.into_iter().find(|id| id.0 as usize >= vocab) {
            return Err(TrainError::OutsideHead { place, token, vocab });
        }
    }
    Ok(())
}

/// The log-probs a scorer reports for a position, rounded as they travel.
pub(super) fn row_log_probs(support: &Support, log_probs: LogProbs) -> RowLogProbs {
    let LogProbs { known, drawn, rest, .. } = log_probs;
    RowLogProbs { log_p: known, log_p_sampled: drawn, log_rest: support.log_rest().map(|_| rest) }.rounded()
}

/// A tail on p_s needs a side of the sampler.
pub(super) fn check_tail(asked: &Asked, correction: &TokenCorrection) -> TrainResult<()> {
    if correction.tail.is_none() || asked.sampler.is_some() {
        return Ok(());
    }
    let source = WeighError::NoRest(asked.support.log_rest().unwrap_or(f64::NEG_INFINITY));
    Err(TrainError::Weigh { place: asked.place, source })
}

/// `(w, c)` as the kernel takes them.
pub(super) fn correction(TokenCorrection { w, c, tail }: TokenCorrection, advantage: f64) -> Correction {
    let tail = tail.map(|tail| Tail { scale: tail.scale, low: tail.clip.low(), high: tail.clip.high() });
    Correction { w, c, tail, advantage }
}

/// The refusal of a kernel with the place of its position.
pub(super) fn refusal(asked: &[Asked]) -> impl Fn(Refusal) -> TrainError + '_ {
    |refusal| match refusal {
        Refusal::Row(RowError { position, source }) => TrainError::Logits { place: asked[position].place, source },
        Refusal::Train(error) => error,
    }
}
