//! Launches of the head: the gradient of its logits, and its products over listed ids.

use super::{CudaResult, HeadRow, HeadScores, Kernel, Kernels, WARPS, blocks, long_enough};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, PushKernelArg};

/// Logits of some rows, and the sampler's where a row has a tail.
#[derive(Debug)]
pub struct HeadLogits<'a, 'b> {
    /// Flat; becomes the gradient.
    pub now: &'b mut CudaViewMut<'a, f32>,
    /// Flat, the same places.
    pub sampler: Option<&'b CudaView<'a, f32>>,
}

/// Entries of the head over listed ids, `(row of the hidden states, row of the head)` each.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Row of the hidden states.
    pub rows: &'a [u32],
    /// Row of the head.
    pub ids: &'a [u32],
}

/// Runs of entries that are summed up: run r is `starts[r]..starts[r + 1]` and goes to row `into[r]`; no two to the same.
#[derive(Debug, Clone, Copy)]
pub struct Runs<'a> {
    /// `[runs + 1]`, ascending.
    pub starts: &'a [u32],
    /// `[runs]`.
    pub into: &'a [u32],
    /// The row every entry takes, `[entries]`.
    pub of: &'a [u32],
}

/// One behind the largest.
fn bound(values: &[u32]) -> usize {
    values.iter().max().map_or(0, |most| *most as usize + 1)
}

/// Known log-probabilities of some rows, place by place: under the weights now, and under the sampler's.
pub type Known = (Vec<f64>, Vec<f64>);

/// A row outside the logits, or a place outside its row.
fn check(
    kernel: &'static str,
    (len, sampler): (usize, Option<usize>),
    rows: &[HeadRow],
    places: &[u32],
) -> CudaResult<()> {
    for row in rows {
        let (end, known) = (row.start as usize + row.len as usize, row.known_end as usize);
        let inside = places.get(row.known as usize..known).unwrap_or_default();
        let place = inside.iter().chain([&row.sampled]).max().map_or(0, |most| *most as usize + 1);
        let checks = [
            ("logits", len, end),
            ("the sampler's logits", sampler.unwrap_or(end), end),
            ("places", places.len(), known),
            ("a row", row.len as usize, place),
            ("a row's marks", crate::mass::MAX_ROW, row.len as usize),
        ];
        long_enough(kernel, &checks)?;
    }
    Ok(())
}

impl Kernels {
    /// Sums of every row, and the log-probabilities of its known places.
    ///
    /// # Errors
    /// A row outside the logits, a place outside its row, what the driver refuses.
    pub fn head_scores(
        &self,
        (logits, sampler): (&CudaView<'_, f32>, Option<&CudaView<'_, f32>>),
        rows: &[HeadRow],
        places: &[u32],
    ) -> CudaResult<(Vec<HeadScores>, Known)> {
        if rows.is_empty() {
            return Ok(Default::default());
        }
        check("head_scores", (logits.len(), sampler.map(CudaView::len)), rows, places)?;
        let device_rows = self.stream.clone_htod(rows)?;
        let device_places = self.stream.clone_htod(if places.is_empty() { &[0][..] } else { places })?;
        let mut log_p = self.stream.alloc_zeros::<f64>(places.len().max(1))?;
        let mut log_s = self.stream.alloc_zeros::<f64>(places.len().max(1))?;
        let mut scores = self.stream.alloc_zeros::<HeadScores>(rows.len())?;
        let function = self.function(Kernel::HeadScores)?;
        let none = 0u64;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(logits);
        match sampler {
            Some(sampler) => launch.arg(sampler),
            None => launch.arg(&none),
        };
        launch.arg(&device_rows).arg(&device_places).arg(&mut log_p).arg(&mut log_s).arg(&mut scores);
        // SAFETY: one block a row; every row lies in both logits and every place in its row (checked above).
        unsafe { self.launch(launch, blocks(rows.len())) }?;
        let (mut log_p, mut log_s) = (self.stream.clone_dtoh(&log_p)?, self.stream.clone_dtoh(&log_s)?);
        log_p.truncate(places.len());
        log_s.truncate(places.len());
        Ok((self.stream.clone_dtoh(&scores)?, (log_p, log_s)))
    }

    /// The logits of every row become the gradient of its loss, which is given; `places` and `c` are those the rows point into.
    ///
    /// # Errors
    /// A row outside the logits, a place outside its row, a tail without the sampler's logits, what the driver refuses.
    pub fn head_backward(
        &self,
        logits: HeadLogits<'_, '_>,
        rows: &[HeadRow],
        (places, c): (&[u32], &[f64]),
    ) -> CudaResult<Vec<f64>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let tails = rows.iter().any(|row| row.scale != 0.0);
        let sampler = logits.sampler.map(CudaView::len).or(tails.then_some(0));
        check("head_backward", (logits.now.len(), sampler), rows, places)?;
        long_enough("head_backward", &[("c", c.len(), places.len())])?;
        let device_rows = self.stream.clone_htod(rows)?;
        let places = self.stream.clone_htod(if places.is_empty() { &[0][..] } else { places })?;
        let c = self.stream.clone_htod(if c.is_empty() { &[0.0][..] } else { c })?;
        let mut losses = self.stream.alloc_zeros::<f64>(rows.len())?;
        let function = self.function(Kernel::HeadBackward)?;
        let none = 0u64;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(logits.now);
        match logits.sampler {
            Some(sampler) => launch.arg(sampler),
            None => launch.arg(&none),
        };
        launch.arg(&device_rows).arg(&places).arg(&c).arg(&mut losses);
        // SAFETY: one block a row; every row lies in the logits and every place in its row (checked above).
        unsafe { self.launch(launch, blocks(rows.len())) }?;
        Ok(self.stream.clone_dtoh(&losses)?)
    }

    /// `z_e = h_row . W_id` of every entry: hidden states `[N, H]`, head `[V, H]`, H is `width`.
    ///
    /// # Errors
    /// A row or an id that is not there, what the driver refuses.
    pub fn listed_logits(
        &self,
        (hidden, head, width): (&CudaView<'_, f32>, &CudaView<'_, f32>, usize),
        listed: Listed<'_>,
    ) -> CudaResult<CudaSlice<f32>> {
        let n = listed.ids.len();
        let checks = [
            ("rows", listed.rows.len(), n),
            ("the hidden states", hidden.len(), bound(listed.rows) * width),
            ("the head", head.len(), bound(listed.ids) * width),
        ];
        long_enough("listed_logits", &checks)?;
        let mut logits = self.stream.alloc_zeros::<f32>(n.max(1))?;
        if n == 0 {
            return Ok(logits);
        }
        let (rows, ids) = (self.stream.clone_htod(listed.rows)?, self.stream.clone_htod(listed.ids)?);
        let function = self.function(Kernel::ListedLogits)?;
        let (h, entries) = (width as i32, n as u32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(hidden).arg(head).arg(&h).arg(&rows).arg(&ids).arg(&entries).arg(&mut logits);
        // SAFETY: one warp an entry, which stops at `n`; rows and ids are inside (checked above).
        unsafe { self.launch(launch, blocks(n.div_ceil(WARPS as usize))) }?;
        Ok(logits)
    }

    /// Adds `sum_e g_e from[of_e]` of every run to its row of `sums`; rows are `width` long.
    ///
    /// # Errors
    /// A row or an entry that is not there, starts that do not ascend, what the driver refuses.
    pub fn listed_sums(
        &self,
        (from, width): (&CudaView<'_, f32>, usize),
        (runs, gradients): (Runs<'_>, &CudaView<'_, f32>),
        sums: &mut CudaViewMut<'_, f32>,
    ) -> CudaResult<()> {
        let n = runs.into.len();
        let end = runs.starts.iter().max().map_or(0, |end| *end as usize);
        let ascending = runs.starts.windows(2).filter(|pair| pair[0] <= pair[1]).count();
        let checks = [
            ("starts that ascend", ascending, n),
            ("entries", runs.of.len(), end),
            ("gradients", gradients.len(), end),
            ("the rows taken", from.len(), bound(runs.of) * width),
            ("the rows added to", sums.len(), bound(runs.into) * width),
        ];
        long_enough("listed_sums", &checks)?;
        let distinct: std::collections::BTreeSet<&u32> = runs.into.iter().collect();
        long_enough("listed_sums", &[("distinct rows added to", distinct.len(), n)])?;
        if n == 0 || end == 0 {
            return Ok(());
        }
        let starts = self.stream.clone_htod(runs.starts)?;
        let (into, of) = (self.stream.clone_htod(runs.into)?, self.stream.clone_htod(runs.of)?);
        let function = self.function(Kernel::ListedSums)?;
        let h = width as i32;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(from).arg(&h).arg(&starts).arg(&into).arg(&of).arg(gradients).arg(sums);
        // SAFETY: one block a run; runs are inside the entries, rows inside their matrices, no two runs share one (checked).
        unsafe { self.launch(launch, blocks(n)) }?;
        Ok(())
    }
}
