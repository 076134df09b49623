//! Every kernel against its definition, at full vocabulary.

use super::Fault;
use half::bf16;
use lockstep_kernels::adamw::{AdamW, Slot};
use lockstep_kernels::cuda::{HeadLogits, HeadRow, Kernels, Listed, Q8_BATCH, Runs, UpdateSlot};
use lockstep_kernels::rows::Over;
use lockstep_kernels::{Chain, Draw, Filter, philox, q8, rows, sample_report};

const VOCABULARY: usize = 151_936;

type Check = fn(&Kernels) -> Result<(), Fault>;

/// The name of every kernel, and what is wrong with it.
pub(crate) fn all(kernels: &Kernels) -> Vec<(&'static str, Option<String>)> {
    let checks: [(&str, Check); 6] = [
        ("sample_report", sample),
        ("head_scores, head_backward", head),
        ("head_listed", listed),
        ("ess", ratios),
        ("q8_gemv", q8),
        ("adamw", adamw),
    ];
    checks.map(|(name, check)| (name, check(kernels).err().map(|error| error.to_string()))).into()
}

pub(crate) fn normal(stream: u64, n: usize, scale: f64) -> Vec<f32> {
    (0..n as u64).map(|i| (scale * philox::normal(11, stream, i)) as f32).collect()
}

fn near(what: &str, got: f64, want: f64, tolerance: f64) -> Result<(), Fault> {
    if (got - want).abs() <= tolerance {
        Ok(())
    } else {
        Err(format!("{what} is {got}, by its definition {want}").into())
    }
}

/// A row that is as it should be.
fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Fault> {
    if got == want { Ok(()) } else { Err(format!("{what} is {got:?}, by its definition {want:?}").into()) }
}

/// Wide, flat, tied, one finite entry, and banned entries.
fn five_rows() -> Vec<f32> {
    let mut single = vec![f32::NEG_INFINITY; VOCABULARY];
    single[777] = -3.5;
    let mut banned = normal(1, VOCABULARY, 2.0);
    banned.iter_mut().step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
    [normal(0, VOCABULARY, 6.4), normal(2, VOCABULARY, 0.7), vec![0.25; VOCABULARY], single, banned].concat()
}

fn sample(kernels: &Kernels) -> Result<(), Fault> {
    use Filter::{MinP, Temperature, TopK, TopP};
    let logits = five_rows();
    let device = kernels.stream().clone_htod(&logits)?;
    let draws: Vec<Draw> = (0..5).map(|request| Draw { seed: 3, request, position: 9 }).collect();
    let chains: [&[Filter]; 4] = [
        &[Temperature(0.7), TopP(0.95)],
        &[Temperature(1.0), TopK(50)],
        &[Temperature(0.6), MinP(0.02), TopK(20), TopP(0.95)],
        &[],
    ];
    for filters in chains {
        let chain = Chain::new(filters)?;
        let cap = 4096;
        let first = kernels.sample_report((&device.as_view(), VOCABULARY), (&chain, cap), &draws)?;
        let again = kernels.sample_report((&device.as_view(), VOCABULARY), (&chain, cap), &draws)?;
        equal("a second run", &again, &first)?;
        for ((row, got), draw) in logits.chunks_exact(VOCABULARY).zip(first).zip(&draws) {
            let (got, want) = (got?, sample_report(row, &chain, *draw, cap)?);
            equal("the token", got.token, want.token)?;
            equal("the count", got.kept, want.kept)?;
            equal("the kept mass", got.kept_mass.to_bits(), want.kept_mass.to_bits())?;
            near("log q", got.log_q, want.log_q, 1e-12 * (1.0 + want.log_q.abs()))?;
            near("log p", got.log_p, want.log_p, 1e-12 * (1.0 + want.log_p.abs()))?;
            equal("the support", got.support.map(|s| s.0), want.support.map(|s| s.0))?;
        }
    }
    Ok(())
}

fn head(kernels: &Kernels) -> Result<(), Fault> {
    let (logits, older) = (normal(3, VOCABULARY, 3.0), normal(4, VOCABULARY, 3.0));
    let places: Vec<u32> = (0..VOCABULARY as u32).step_by(1500).collect();
    let c: Vec<f64> = places.iter().map(|_| 1.2 / places.len() as f64).collect();
    let n = places.len() as u32;
    let lse = rows::log_sum_exp(&logits, 1.0)?;
    let (w, factor) = (1.3, -0.8);
    let row = HeadRow {
        len: VOCABULARY as u32,
        sampled: 1500,
        known_end: n,
        lse,
        inv_t: 1.0,
        w,
        factor,
        ..HeadRow::default()
    };
    let mut device = kernels.stream().clone_htod(&logits)?;
    let sampler = kernels.stream().clone_htod(&older)?;
    let (scores, (known, _)) = kernels.head_scores((&device.as_view(), Some(&sampler.as_view())), &[row], &places)?;
    near("the log-sum-exp", scores[0].lse, lse, 1e-10)?;
    near("the older log-sum-exp", scores[0].lse_s, rows::log_sum_exp(&older, 1.0)?, 1e-10)?;
    let want = rows::log_probs(&logits, &places, 1.0, Over::Vocabulary)?;
    known.iter().zip(&want).try_for_each(|(got, want)| near("log p", *got, *want, 1e-10))?;
    kernels.head_backward(HeadLogits { now: &mut device.as_view_mut(), sampler: None }, &[row], (&places, &c))?;
    let got = kernels.stream().clone_dtoh(&device)?;
    let beta = w - c.iter().sum::<f64>();
    let mut want: Vec<f64> = logits.iter().map(|z| -factor * beta * (f64::from(*z) - lse).exp()).collect();
    places.iter().zip(&c).for_each(|(place, c)| want[*place as usize] -= factor * c);
    want[1500] += factor * w;
    let largest = want.iter().fold(0f64, |most, g| most.max(g.abs()));
    got.iter().zip(&want).try_for_each(|(got, want)| near("a gradient", f64::from(*got), *want, 1e-6 * largest))
}

fn listed(kernels: &Kernels) -> Result<(), Fault> {
    let width = 1024;
    let (hidden, weights) = (normal(5, 3 * width, 1.0), normal(6, 40 * width, 0.1));
    let (rows, ids) = ([0u32, 0, 2, 2, 2], [7u32, 39, 0, 7, 11]);
    let gradients = normal(7, ids.len(), 1.0);
    let stream = kernels.stream();
    let (h, w, g) = (stream.clone_htod(&hidden)?, stream.clone_htod(&weights)?, stream.clone_htod(&gradients)?);
    let entries = Listed { rows: &rows, ids: &ids };
    let logits = stream.clone_dtoh(&kernels.listed_logits((&h.as_view(), &w.as_view(), width), entries)?)?;
    let at = |values: &[f32], row: u32, i: usize| f64::from(values[row as usize * width + i]);
    for ((row, id), got) in rows.iter().zip(&ids).zip(&logits) {
        let want: f64 = (0..width).map(|i| at(&hidden, *row, i) * at(&weights, *id, i)).sum();
        near("a logit", f64::from(*got), want, 1e-4)?;
    }
    let mut sums = stream.alloc_zeros::<f32>(3 * width)?;
    let runs = Runs { starts: &[0, 2, 5], into: &[0, 2], of: &ids };
    kernels.listed_sums((&w.as_view(), width), (runs, &g.as_view()), &mut sums.as_view_mut())?;
    let sums = stream.clone_dtoh(&sums)?;
    for (place, got) in sums.iter().enumerate() {
        let (row, i) = ((place / width) as u32, place % width);
        let of_row = rows.iter().zip(&ids).zip(&gradients).filter(|((at, _), _)| **at == row);
        let want: f64 = of_row.map(|((_, id), g)| f64::from(*g) * at(&weights, *id, i)).sum();
        near("a sum", f64::from(*got), want, 1e-5)?;
    }
    Ok(())
}

fn ratios(kernels: &Kernels) -> Result<(), Fault> {
    let log_ratios: Vec<f64> = (0..10_000).map(|i| 0.3 * philox::normal(8, 0, i)).collect();
    let device = kernels.stream().clone_htod(&log_ratios)?;
    let pieces = kernels.ratio_sums(&device, (-0.5, 0.5))?;
    let sum: f64 = pieces.iter().map(|piece| piece.sum * piece.max.exp()).sum();
    near("the sum", sum, log_ratios.iter().map(|x| x.exp()).sum(), 1e-9 * sum)?;
    let k3: f64 = pieces.iter().map(|piece| piece.k3).sum();
    near("k3", k3, log_ratios.iter().map(|x| x.exp() - 1.0 - x).sum(), 1e-9 * k3)?;
    let clipped: u32 = pieces.iter().map(|piece| piece.clipped).sum();
    equal("the count of clipped", clipped as usize, log_ratios.iter().filter(|x| x.abs() > 0.5).count())?;
    let offsets = [0u32, 100, 100, 10_000];
    let sums = kernels.sequence_log_ratios(&device, &offsets)?;
    for (got, run) in sums.iter().zip(offsets.windows(2)) {
        near("a sequence", *got, log_ratios[run[0] as usize..run[1] as usize].iter().sum(), 1e-9)?;
    }
    Ok(())
}

fn q8(kernels: &Kernels) -> Result<(), Fault> {
    let (width, out, batch) = (1024usize, 500usize, Q8_BATCH);
    let bytes = q8::quantise(&normal(9, width * out, 1.0))?;
    let matrix = q8::Q8::new(&bytes, width)?;
    let x: Vec<bf16> = normal(10, width * batch, 1.0).into_iter().map(bf16::from_f32).collect();
    let (stream, weights) = (kernels.stream(), kernels.q8(matrix)?);
    let got = stream.clone_dtoh(&kernels.q8_gemv(&weights, &stream.clone_htod(&x)?.as_view(), batch)?)?;
    let x: Vec<f32> = x.into_iter().map(bf16::to_f32).collect();
    let mut want = vec![0.0; batch * out];
    q8::q8_gemv(matrix, &x, &mut want)?;
    let all = matrix.weights();
    for (place, (got, want)) in got.iter().zip(want).enumerate() {
        let (b, o) = (place / out, place % out);
        let terms = all[o * width..(o + 1) * width].iter().zip(&x[b * width..(b + 1) * width]);
        let size: f64 = terms.map(|(w, x)| f64::from((w * x).abs())).sum();
        near("a product", f64::from(*got), f64::from(want), 1e-6 * size)?;
    }
    Ok(())
}

fn adamw(kernels: &Kernels) -> Result<(), Fault> {
    let n = 100_003;
    let rule = AdamW { lr: 3e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
    let (mut param, grad, mut m) = (normal(20, n, 1.0), normal(21, n, 1.0), normal(22, n, 1.0));
    let mut v: Vec<f32> = normal(23, n, 1.0).into_iter().map(f32::abs).collect();
    let stream = kernels.stream();
    let (mut on_card, g) = (stream.clone_htod(&param)?, stream.clone_htod(&grad)?);
    let (mut first, mut second) = (stream.clone_htod(&m)?, stream.clone_htod(&v)?);
    let slot = UpdateSlot { param: &mut on_card.as_view_mut(), grad: &g.as_view(), m: &mut first, v: &mut second };
    kernels.adamw(slot, rule.constants(7, 0.5))?;
    rule.update(Slot { param: &mut param, grad: &grad, m: &mut m, v: &mut v }, 7, 0.5)?;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    for (name, got, want) in [("weights", &on_card, param), ("m", &first, m), ("v", &second, v)] {
        if bits(stream.clone_dtoh(got)?) != bits(want) {
            return Err(format!("{name} differ from their definition in some bit").into());
        }
    }
    Ok(())
}
