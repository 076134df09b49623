//! Every kernel beside the copy bandwidth of the same run. A floor is the bytes a kernel must move, at that bandwidth.

use super::parity::normal;
use super::{median, median_us};
use half::bf16;
use lockstep_kernels::adamw::AdamW;
use lockstep_kernels::cuda::cudarc::driver::{CudaSlice, sys::CUevent_flags};
use lockstep_kernels::cuda::{CudaResult, HeadLogits, HeadRow, Kernels, Q8, UpdateSlot};
use lockstep_kernels::{Chain, Draw, Filter};
use serde_json::{Value, json};

const VOCABULARY: usize = 151_936;
const ROWS: usize = 256;

/// Copy bandwidth, and every kernel against it.
pub(crate) fn all(kernels: &Kernels) -> CudaResult<Value> {
    let copy = copy_bandwidth(kernels)?;
    let mut rows = Vec::new();
    for (name, bytes, time) in
        [sample(kernels)?, scores(kernels)?, backward(kernels)?, ratios(kernels)?, q8(kernels)?, adamw(kernels)?]
    {
        let floor_us = bytes / copy * 1e6;
        rows.push(json!({"kernel": name, "bytes": bytes, "median_us": time, "floor_us": floor_us,
            "share_of_copy": floor_us / time}));
    }
    Ok(json!({"copy_bytes_per_second": copy, "kernels": rows}))
}

/// Bytes read and written in a second by a copy of 1 GiB.
fn copy_bandwidth(kernels: &Kernels) -> CudaResult<f64> {
    let n = 1usize << 28;
    let from = kernels.stream().alloc_zeros::<f32>(n)?;
    let mut to = kernels.stream().alloc_zeros::<f32>(n)?;
    let (stream, mut times) = (kernels.stream(), Vec::new());
    for _ in 0..23 {
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        stream.memcpy_dtod(&from, &mut to)?;
        let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        times.push(f64::from(start.elapsed_ms(&end)?) * 1e3);
    }
    Ok(8.0 * n as f64 / median(times.split_off(3)) * 1e6)
}

type Timed = (&'static str, f64, f64);

/// 256 rows of one row's logits.
fn logits(kernels: &Kernels) -> CudaResult<CudaSlice<f32>> {
    Ok(kernels.stream().clone_htod(&normal(0, VOCABULARY, 6.4).repeat(ROWS))?)
}

fn sample(kernels: &Kernels) -> CudaResult<Timed> {
    let logits = logits(kernels)?;
    let chain = Chain::new([Filter::Temperature(0.7), Filter::TopP(0.95)])?;
    let draws: Vec<Draw> = (0..ROWS as u64).map(|request| Draw { seed: 1, request, position: 0 }).collect();
    let time = median_us(kernels, || {
        kernels.sample_report((&logits.as_view(), VOCABULARY), (&chain, 4096), &draws).map(drop)
    })?;
    Ok(("sample_report, 256 rows, top-p 0.95", 4.0 * (ROWS * VOCABULARY) as f64, time))
}

fn scores(kernels: &Kernels) -> CudaResult<Timed> {
    let logits = logits(kernels)?;
    let row = |at: usize| HeadRow {
        start: (at * VOCABULARY) as u64,
        len: VOCABULARY as u32,
        inv_t: 1.0,
        ..HeadRow::default()
    };
    let rows: Vec<HeadRow> = (0..ROWS).map(row).collect();
    let time = median_us(kernels, || kernels.head_scores((&logits.as_view(), None), &rows, &[]).map(drop))?;
    Ok(("head_scores, 256 rows", 4.0 * (ROWS * VOCABULARY) as f64, time))
}

fn backward(kernels: &Kernels) -> CudaResult<Timed> {
    let mut logits = logits(kernels)?;
    let row = |at: usize| HeadRow {
        start: (at * VOCABULARY) as u64,
        len: VOCABULARY as u32,
        lse: 30.0,
        inv_t: 1.0,
        w: 1.0,
        factor: -1.0,
        ..HeadRow::default()
    };
    let rows: Vec<HeadRow> = (0..ROWS).map(row).collect();
    let time = median_us(kernels, || {
        let now = HeadLogits { now: &mut logits.as_view_mut(), sampler: None };
        kernels.head_backward(now, &rows, (&[], &[])).map(drop)
    })?;
    Ok(("head_backward, 256 rows", 8.0 * (ROWS * VOCABULARY) as f64, time))
}

fn ratios(kernels: &Kernels) -> CudaResult<Timed> {
    let n = 524_288;
    let log_ratios = kernels.stream().alloc_zeros::<f64>(n)?;
    let time = median_us(kernels, || kernels.ratio_sums(&log_ratios, (-0.5, 0.5)).map(drop))?;
    Ok(("ratio_sums, 524,288 tokens", 8.0 * n as f64, time))
}

/// The matrices of a decode step of Qwen3-1.7B's feed-forward layer, one after the other.
fn q8(kernels: &Kernels) -> CudaResult<Timed> {
    let (width, out) = (2048, 6144 * 28);
    let values = kernels.stream().alloc_zeros::<i8>(width * out)?;
    let scales = kernels.stream().alloc_zeros::<u16>(width * out / 32)?;
    let x = kernels.stream().alloc_zeros::<bf16>(width)?;
    let weights = Q8 { values, scales, width };
    let time = median_us(kernels, || kernels.q8_gemv(&weights, &x.as_view(), 1).map(drop))?;
    Ok(("q8_gemv, one row", (width * out) as f64 * 34.0 / 32.0, time))
}

fn adamw(kernels: &Kernels) -> CudaResult<Timed> {
    let n = 1usize << 27;
    let stream = kernels.stream();
    let (mut param, grad) = (stream.alloc_zeros::<f32>(n)?, stream.alloc_zeros::<f32>(n)?);
    let (mut m, mut v) = (stream.alloc_zeros::<f32>(n)?, stream.alloc_zeros::<f32>(n)?);
    let rule = AdamW { lr: 1e-5, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
    let time = median_us(kernels, || {
        let slot = UpdateSlot { param: &mut param.as_view_mut(), grad: &grad.as_view(), m: &mut m, v: &mut v };
        kernels.adamw(slot, rule.constants(1, 1.0))
    })?;
    Ok(("adamw, 2^27 parameters", 28.0 * n as f64, time))
}
