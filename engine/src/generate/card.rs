//! The draw on a card: the logits stay there, a report of every row comes back. A row that keeps more than [`CAP`] ids is
//! drawn on the CPU by the same chain.

use super::{Drawing, Drawn, Live};
use crate::cuda::refused;
use crate::{Error, Result};
use lockstep_kernels::cuda::cudarc::driver::CudaView;
use lockstep_kernels::cuda::{HeadRow, HeadScores, Kernels};
use lockstep_kernels::{Chain, Draw, Filter, SampleReport};

/// Most ids a truncated row may keep to be reported by the card.
const CAP: usize = 4096;

/// Logits of some rows on a card, `[rows, V]`.
pub(super) struct Logits<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) values: CudaView<'a, f32>,
    pub(super) vocab: usize,
}

impl Logits<'_> {
    fn rows(&self, start: usize, n: usize) -> Logits<'_> {
        let values = self.values.slice(start * self.vocab..(start + n) * self.vocab);
        Logits { kernels: self.kernels, values, vocab: self.vocab }
    }

    fn on_cpu(&self, row: usize) -> Result<Vec<f32>> {
        let row = self.rows(row, 1).values;
        Ok(self.kernels.stream().clone_dtoh(&row).map_err(candle_core::Error::wrap)?)
    }

    /// A report of every row, all by one chain.
    fn reports(&self, run: &[Live<'_>], chain: (&Chain, usize)) -> Result<Vec<SampleReport>> {
        let draws: Vec<Draw> = run.iter().map(Live::at).collect();
        let reports = self.kernels.sample_report((&self.values, self.vocab), chain, &draws).map_err(refused)?;
        let of_row = |(live, report): (&Live<'_>, lockstep_kernels::Result<_>)| {
            report.map_err(|source| Error::Kernel { request: live.index, source })
        };
        run.iter().zip(reports).map(of_row).collect()
    }
}

/// One token for each row.
pub(super) fn draw_all(live: &[Live<'_>], logits: &Logits<'_>, listed: usize) -> Result<Vec<Drawn>> {
    let mut drawn = Vec::with_capacity(live.len());
    for run in live.chunk_by(|a, b| a.chain == b.chain) {
        let logits = logits.rows(drawn.len(), run.len());
        drawn.extend(if run[0].chain.truncates() { kept(run, &logits)? } else { heads(run, &logits, listed)? });
    }
    Ok(drawn)
}

fn kept(run: &[Live<'_>], logits: &Logits<'_>) -> Result<Vec<Drawn>> {
    let reports = logits.reports(run, (&run[0].chain, CAP))?;
    let of_row = |(row, SampleReport { token, log_q, support, .. }): (usize, _)| match support {
        Some((ids, log_of_ids)) => Ok(Drawn { token, log_q, drawing: Drawing::Kept { ids, log_q: log_of_ids } }),
        None => run[row].draw(&logits.on_cpu(row)?, 0),
    };
    reports.into_iter().enumerate().map(of_row).collect()
}

/// Untruncated rows: the largest entries are those that top-k keeps, and the head's kernel sums the others.
fn heads(run: &[Live<'_>], logits: &Logits<'_>, listed: usize) -> Result<Vec<Drawn>> {
    let (chain, vocab) = (&run[0].chain, logits.vocab as u32);
    let reports = logits.reports(run, (chain, 1))?;
    let mut ids = vec![Vec::new(); run.len()];
    if listed > 0 {
        let largest = Chain::new([Filter::Temperature(chain.temperature()), Filter::TopK(listed)]);
        let largest = largest.map_err(|source| Error::Kernel { request: run[0].index, source })?;
        for (ids, report) in ids.iter_mut().zip(logits.reports(run, (&largest, listed))?) {
            *ids = report.support.map(|(ids, _)| ids).unwrap_or_default();
        }
    }
    let (mut rows, mut end) = (Vec::new(), 0);
    for (at, (report, ids)) in reports.iter().zip(&ids).enumerate() {
        let (known, start) = (end, at as u64 * u64::from(vocab));
        end += ids.len() as u32;
        let inv_t = chain.temperature().recip();
        let row =
            HeadRow { start, len: vocab, sampled: report.token, known, known_end: end, inv_t, ..HeadRow::default() };
        rows.push(row);
    }
    let (scores, (log_q, _)) =
        logits.kernels.head_scores((&logits.values, None), &rows, &ids.concat()).map_err(refused)?;
    let of_row = |((row, scores), ids): ((&HeadRow, HeadScores), Vec<u32>)| {
        let log_q = log_q[row.known as usize..row.known_end as usize].to_vec();
        let drawing = Drawing::Head { ids, log_q, log_rest: scores.rest.ln() };
        Drawn { token: row.sampled, log_q: scores.drawn, drawing }
    };
    Ok(rows.iter().zip(scores).zip(ids).map(of_row).collect())
}
