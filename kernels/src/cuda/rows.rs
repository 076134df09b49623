//! Launches over rows: the draw from one of logits, and the sums of one of ratios.

use super::layout::{Report, Stage};
use super::{CudaResult, Kernel, Kernels, blocks, long_enough};
use crate::{Chain, Draw, Error, SampleReport, mass};
use cudarc::driver::{CudaSlice, CudaView, PushKernelArg};

/// What [`Kernels::sample_report`] gives for a row; an error is that of the row's own logits.
pub type Sampled = crate::Result<SampleReport>;

impl Kernels {
    /// [`crate::sample_report`] of every row of `logits [rows, V]`, one a draw.
    ///
    /// # Errors
    /// A row longer than can be summed, too few logits, what the driver refuses.
    pub fn sample_report(
        &self,
        (logits, vocabulary): (&CudaView<'_, f32>, usize),
        (chain, cap): (&Chain, usize),
        draws: &[Draw],
    ) -> CudaResult<Vec<Sampled>> {
        let rows = draws.len();
        if vocabulary > mass::MAX_ROW {
            return Err(Error::LongRow { len: vocabulary, most: mass::MAX_ROW }.into());
        }
        if vocabulary == 0 {
            return Err(Error::EmptyRow.into());
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        long_enough("sample_report", &[("logits", logits.len(), rows * vocabulary)])?;
        let mut stages: Vec<Stage> = chain.filters().iter().map(Stage::from).collect();
        let stages_len = stages.len() as i32;
        stages.resize(4, Stage::default());
        let stages = self.stream.clone_htod(&stages)?;
        let words: Vec<u64> = draws.iter().flat_map(|draw| [draw.seed, draw.request, draw.position]).collect();
        let words = self.stream.clone_htod(&words)?;
        let cap = cap.min(vocabulary).max(1);
        let mut ids = self.stream.alloc_zeros::<u32>(rows * cap)?;
        let mut log_q = self.stream.alloc_zeros::<f64>(rows * cap)?;
        let mut reports = self.stream.alloc_zeros::<Report>(rows)?;
        let function = self.function(Kernel::SampleReport)?;
        let (v, cap_arg) = (vocabulary as i32, cap as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(logits).arg(&v).arg(&stages).arg(&stages_len).arg(&words).arg(&cap_arg);
        launch.arg(&mut ids).arg(&mut log_q).arg(&mut reports);
        // SAFETY: one block a row; `logits` has rows * V entries (checked), `ids` and `log_q` rows * cap, `reports` rows.
        unsafe { self.launch(launch, blocks(rows)) }?;
        let (reports, ids, log_q) =
            (self.stream.clone_dtoh(&reports)?, self.stream.clone_dtoh(&ids)?, self.stream.clone_dtoh(&log_q)?);
        let listed = ids.chunks_exact(cap).zip(log_q.chunks_exact(cap));
        Ok(reports.iter().zip(listed).map(|(report, listed)| report.read(vocabulary, listed)).collect())
    }

    /// Sums of every piece of 4,096 log ratios; the caller adds them in order.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn ratio_sums(&self, log_ratios: &CudaSlice<f64>, bounds: (f64, f64)) -> CudaResult<Vec<super::RatioSums>> {
        let pieces = log_ratios.len().div_ceil(4096);
        if pieces == 0 {
            return Ok(Vec::new());
        }
        let mut sums = self.stream.alloc_zeros::<super::RatioSums>(pieces)?;
        let function = self.function(Kernel::RatioSums)?;
        let n = log_ratios.len() as u64;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(log_ratios).arg(&n).arg(&bounds.0).arg(&bounds.1).arg(&mut sums);
        // SAFETY: one block a piece, which stops at `n`, the length of `log_ratios`.
        unsafe { self.launch(launch, blocks(pieces)) }?;
        Ok(self.stream.clone_dtoh(&sums)?)
    }

    /// The log ratio of every sequence: the sum over its tokens, `offsets [sequences + 1]`.
    ///
    /// # Errors
    /// Offsets beyond the tokens, what the driver refuses.
    pub fn sequence_log_ratios(&self, log_ratios: &CudaSlice<f64>, offsets: &[u32]) -> CudaResult<Vec<f64>> {
        let sequences = offsets.len().saturating_sub(1);
        if sequences == 0 {
            return Ok(Vec::new());
        }
        let most = offsets.iter().max().map_or(0, |end| *end as usize);
        long_enough("sequence_log_ratios", &[("log ratios", log_ratios.len(), most)])?;
        let device_offsets = self.stream.clone_htod(offsets)?;
        let mut sums = self.stream.alloc_zeros::<f64>(sequences)?;
        let function = self.function(Kernel::SequenceLogRatios)?;
        let n = sequences as u32;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(log_ratios).arg(&device_offsets).arg(&n).arg(&mut sums);
        // SAFETY: one warp a sequence; no offset is beyond `log_ratios` (checked).
        unsafe { self.launch(launch, blocks(sequences.div_ceil(super::WARPS as usize))) }?;
        Ok(self.stream.clone_dtoh(&sums)?)
    }
}

impl Report {
    fn read(&self, vocabulary: usize, (ids, log_q): (&[u32], &[f64])) -> Sampled {
        match self.status {
            0 => {}
            1 => return Err(Error::NotLogits { len: vocabulary }),
            _ => return Err(Error::NoFiniteLogit { len: vocabulary }),
        }
        let kept = self.kept as usize;
        Ok(SampleReport {
            token: self.token,
            log_q: self.log_q,
            log_p: self.log_p,
            log_sum_exp: self.log_sum_exp,
            kept: self.kept,
            kept_mass: self.kept_mass,
            support: (self.overflow == 0).then(|| (ids[..kept].to_vec(), log_q[..kept].to_vec())),
        })
    }
}
