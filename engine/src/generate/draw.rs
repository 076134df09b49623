//! The draw as an operation on tensors: logits `[rows, V]` -> the drawn tokens, `[rows]`. Keeps with every token what it was
//! drawn from.

use super::{Drawing, Drawn, Live};
use crate::found::Found;
use crate::{Error, Result};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use lockstep_kernels::{Draw, Kept, head, sample_report};
use rayon::prelude::*;

/// [`lockstep_kernels::sample_report()`] of every row.
struct Draws<'a> {
    live: &'a [Live<'a>],
    listed: usize,
    drawn: Found<Vec<Drawn>, Error>,
}

fn tokens(drawn: &[Drawn]) -> Vec<u32> {
    drawn.iter().map(|drawn| drawn.token).collect()
}

impl CustomOp1 for Draws<'_> {
    fn name(&self) -> &'static str {
        "sample-report"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (rows, vocab) = layout.shape().dims2()?;
        let (logits, listed) = (crate::fused::floats(logits, layout)?.par_chunks_exact(vocab), self.listed);
        let drawn = self.live.par_iter().zip(logits).map(|(live, logits)| live.draw(logits, listed)).collect();
        let data = self.drawn.keep(drawn, |drawn: &Vec<Drawn>| Ok(CpuStorage::U32(tokens(drawn))))?;
        Ok((data, Shape::from(rows)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        let (device, (rows, vocab)) = (&logits.device, layout.shape().dims2()?);
        let (kernels, values) = (&crate::cuda::kernels(device), crate::cuda::floats(logits, layout)?);
        let drawn = super::card::draw_all(self.live, &super::card::Logits { kernels, values, vocab }, self.listed);
        let data = self.drawn.keep(drawn, |drawn| device.clone_htod(&tokens(drawn)))?;
        Ok((candle_core::CudaStorage::wrap_cuda_slice(data, device.clone()), Shape::from(rows)))
    }
}

/// One token for each row of `logits [rows, V]`.
pub(super) fn draw_all(live: &[Live<'_>], logits: &Tensor, listed: usize) -> Result<Vec<Drawn>> {
    let op = Draws { live, listed, drawn: Found::nothing() };
    let tokens = logits.contiguous()?.apply_op1_no_bwd(&op);
    Ok(op.drawn.take(tokens)?.1)
}

impl Live<'_> {
    /// Which draw of its run the next token is.
    pub(super) fn at(&self) -> Draw {
        Draw { seed: self.request.seed, request: self.request.number, position: self.generated().len() as u64 }
    }

    /// Draws the next token from one row of logits.
    pub(super) fn draw(&self, logits: &[f32], listed: usize) -> Result<Drawn> {
        let refused = |source| Error::Kernel { request: self.index, source };
        let report = sample_report(logits, &self.chain, self.at(), logits.len()).map_err(refused)?;
        let (ids, log_q) = report.support.ok_or(refused(lockstep_kernels::Error::EmptyRow))?;
        let drawing = if self.chain.truncates() {
            Drawing::Kept { ids, log_q }
        } else {
            let head = head(&Kept { ids, log_q, kept_mass: report.kept_mass }, listed);
            Drawing::Head { ids: head.ids, log_q: head.log_q, log_rest: head.log_rest }
        };
        Ok(Drawn { token: report.token, log_q: report.log_q, drawing })
    }
}
