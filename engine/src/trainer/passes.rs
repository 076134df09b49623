//! A batch cut into forwards. The cut depends on lengths alone, so scoring and stepping run the same ones.

use crate::head::Asked;
use crate::train_error::{Place, TrainError, TrainResult};
use lockstep_core::plan::Batch;
use lockstep_core::rollout::Rollout;
use std::ops::Range;

/// Place of a token in its batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) rollout: usize,
    pub(super) segment: usize,
    pub(super) position: usize,
}

/// Some rollouts of a batch, packed: what goes through the model at once.
pub(super) struct Micro {
    /// One row a rollout: prompt and answer without the last token, which predicts nothing.
    pub(super) ids: Vec<Vec<u32>>,
    /// One entry a sampled token, rollouts and tokens in order.
    pub(super) asked: Vec<Asked>,
    /// Where each stands in the batch.
    pub(super) at: Vec<At>,
}

/// Cuts rows of these lengths into runs of at most `budget` tokens, a longer row alone.
pub(crate) fn cut(lens: impl IntoIterator<Item = usize>, budget: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut tokens, mut end) = (Vec::new(), 0, 0, 0);
    for (row, len) in lens.into_iter().enumerate() {
        if row > start && tokens + len > budget {
            ranges.push(start..row);
            (start, tokens) = (row, 0);
        }
        tokens += len;
        end = row + 1;
    }
    if end > start {
        ranges.push(start..end);
    }
    ranges
}

/// The forwards of a batch, as runs of its rollouts: `(start, end)`.
pub(super) fn ranges(batch: &Batch, budget: usize) -> Vec<(usize, usize)> {
    let lens = batch.rollouts().iter().map(|rollout| rollout.prompt().len() + rollout.len());
    cut(lens, budget).into_iter().map(|range| (range.start, range.end)).collect()
}

/// Rows as the model takes them.
pub(crate) fn ids(rows: &[Vec<u32>]) -> Vec<&[u32]> {
    rows.iter().map(Vec::as_slice).collect()
}

impl Micro {
    /// # Errors
    /// An answer without prompt: nothing stands before its first token.
    pub(super) fn new(batch: &Batch, range: Range<usize>) -> TrainResult<Self> {
        let mut micro = Self { ids: Vec::new(), asked: Vec::new(), at: Vec::new() };
        let mut start = 0;
        for index in range {
            let rollout = &batch.rollouts()[index];
            let mut row: Vec<u32> = rollout.prompt().iter().copied().chain(rollout.sampled()).map(|id| id.0).collect();
            row.pop();
            micro.ask(index, rollout, start)?;
            start += row.len();
            micro.ids.push(row);
        }
        Ok(micro)
    }

    /// Appends the sampled tokens of a rollout whose row begins at `start` of the hidden states.
    fn ask(&mut self, index: usize, rollout: &Rollout, start: usize) -> TrainResult<()> {
        let place = |segment, position| Place::Rollout { rollout: rollout.id(), segment, position };
        let temperature = rollout.params().temperature();
        let mut row = (start + rollout.prompt().len()).checked_sub(1);
        row = row.filter(|_| !rollout.prompt().is_empty());
        let mut row = row.ok_or(TrainError::NoPrefix(place(0, 0)))?;
        for (segment, part) in rollout.segments().iter().enumerate() {
            for (position, support) in part.behavior.rows().enumerate() {
                self.asked.push(Asked { place: place(segment, position), row, support, temperature, sampler: None });
                self.at.push(At { rollout: index, segment, position });
                row += 1;
            }
        }
        Ok(())
    }
}
