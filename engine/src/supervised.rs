//! A warm start by cross-entropy on given answers, with the forward, the head and the optimiser of the trainer. Comes
//! before a trainer exists: it counts no version and keeps no snapshot.

use crate::head::{Asked, LOGITS_BYTES, Weighed};
use crate::optimiser::Gradients;
use crate::train_error::{Place, TrainError, TrainResult};
use crate::trainer::{TOKENS_PER_PASS, Tokens, backward, cut};
use crate::{Optimiser, Qwen3};
use lockstep_core::dlc::TokenCorrection;
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::{Domain, Reported, Sampled, Support};
use lockstep_core::token::TokenId;

/// An answer to be learnt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Ids before the answer; not trained.
    pub prompt: Vec<u32>,
    /// Ids of the answer.
    pub answer: Vec<u32>,
}

/// One update on the mean of `-log p` over all answer tokens of the batch, at temperature 1; gives that mean in nats, under
/// the weights before the update.
///
/// # Errors
/// A batch without answer tokens, an example without prompt, ids or positions the model does not have, a loss or a gradient
/// that is no finite number; then nothing has changed.
pub fn supervised_step(model: &Qwen3, optimiser: &mut Optimiser, examples: &[Example]) -> TrainResult<f64> {
    let tokens: usize = examples.iter().map(|example| example.answer.len()).sum();
    if tokens == 0 {
        return Err(TrainError::Empty);
    }
    let advantage = 1.0 / tokens as f64;
    let objective = |_, _: RowLogProbs| {
        Ok(Weighed { correction: TokenCorrection { w: 1.0, c: Vec::new(), tail: None }, advantage, seen: () })
    };
    let mut gradients = Gradients::zeros(model.weights());
    let mut mean = 0.0;
    for range in cut(examples.iter().map(|example| example.prompt.len() + example.answer.len()), TOKENS_PER_PASS) {
        let (rows, asked) = pack(&examples[range.clone()], range.start, model.config().vocab as u32)?;
        let tokens = Tokens { rows: &rows, asked: &asked, older: &[] };
        mean += backward(model, LOGITS_BYTES, (&tokens, objective), &mut gradients)?.0;
    }
    if !mean.is_finite() {
        return Err(TrainError::Loss(mean));
    }
    optimiser.update(model.weights(), &gradients)?;
    Ok(mean)
}

/// Rows for the model, and every answer token as drawn from the whole vocabulary.
fn pack(examples: &[Example], first: usize, vocabulary: u32) -> TrainResult<(Vec<Vec<u32>>, Vec<Asked>)> {
    let (mut rows, mut asked, mut start) = (Vec::new(), Vec::new(), 0);
    for (example, Example { prompt, answer }) in (first..).zip(examples) {
        if prompt.is_empty() {
            return Err(TrainError::NoPrefix(Place::Example { example, position: 0 }));
        }
        for (position, &token) in answer.iter().enumerate() {
            let place = Place::Example { example, position };
            let support = whole(TokenId(token), vocabulary);
            let support = support.map_err(|source| TrainError::Support { place, source })?;
            let row = start + prompt.len() - 1 + position;
            asked.push(Asked { place, row, support, temperature: 1.0, sampler: None });
        }
        let mut row = [prompt.as_slice(), answer].concat();
        row.pop();
        start += row.len();
        rows.push(row);
    }
    rows.retain(|row| !row.is_empty());
    Ok((rows, asked))
}

/// A q over the whole vocabulary of which no entry is known.
fn whole(token: TokenId, vocabulary: u32) -> Result<Support, lockstep_core::support::SupportError> {
    let domain = Domain::Vocabulary(vocabulary);
    let nothing = Reported { ids: Vec::new(), log_q: Vec::new(), log_rest: Some(0.0), domain };
    Support::new(Sampled { token, log_q: 0.0 }, nothing)
}
