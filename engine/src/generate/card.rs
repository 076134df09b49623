//! The draw on a card: the logits stay there, a report of every row comes back. Untruncated rows, of which the largest entries
//! are listed, and rows that keep more than [`CAP`] ids are drawn on the CPU by the same chain.

use super::{Drawing, Drawn, Live};
use crate::{Error, Result};
use candle_core::Tensor;
use lockstep_kernels::{Chain, Draw, SampleReport};

/// Most ids a row may keep to be reported by the card.
const CAP: usize = 4096;

/// One token for each row of `logits [rows, V]`.
pub(super) fn draw_all(live: &[Live<'_>], logits: &Tensor, listed: usize) -> Result<Vec<Drawn>> {
    let mut drawn: Vec<Option<Drawn>> = live.iter().map(|_| None).collect();
    for (chain, rows) in by_chain(live) {
        let ids = Tensor::from_slice(&rows, rows.len(), logits.device())?;
        let draws: Vec<Draw> = rows.iter().map(|&row| draw_of(&live[row as usize])).collect();
        let reports = crate::cuda::sample_report(&logits.index_select(&ids, 0)?, (chain, CAP), &draws)?;
        for (&row, report) in rows.iter().zip(reports) {
            let request = live[row as usize].index;
            let report = report.map_err(|source| Error::Kernel { request, source })?;
            drawn[row as usize] = kept(report);
        }
    }
    let of_row = |(row, drawn): (usize, Option<Drawn>)| match drawn {
        Some(drawn) => Ok(drawn),
        None => live[row].draw(&logits.get(row)?.to_vec1::<f32>()?, listed),
    };
    drawn.into_iter().enumerate().map(of_row).collect()
}

/// Rows that truncate, by their chain.
fn by_chain<'a>(live: &'a [Live<'_>]) -> Vec<(&'a Chain, Vec<u32>)> {
    let mut groups: Vec<(&Chain, Vec<u32>)> = Vec::new();
    for (row, live) in live.iter().enumerate().filter(|(_, live)| live.chain.truncates()) {
        match groups.iter_mut().find(|(chain, _)| **chain == live.chain) {
            Some((_, rows)) => rows.push(row as u32),
            None => groups.push((&live.chain, vec![row as u32])),
        }
    }
    groups
}

fn draw_of(live: &Live<'_>) -> Draw {
    Draw { seed: live.request.seed, request: live.request.number, position: live.generated().len() as u64 }
}

fn kept(report: SampleReport) -> Option<Drawn> {
    let (ids, log_q) = report.support?;
    Some(Drawn { token: report.token, log_q: report.log_q, drawing: Drawing::Kept { ids, log_q } })
}
