//! `sample_report` at a vocabulary of 151,936.
//!
//! `reference ROWS`: supports and log-probs of that many random rows of each shape against a full sort in f64; 4,096 draws of one
//! row of each against its report; the refusal of as many rows that hold NaN, nothing finite, or nothing.
//! `time ROWS FILE`: writes one row's worth of random logits for another program, and prints the seconds a row takes here.

#![expect(clippy::print_stdout, reason = "a program for people")]

use lockstep_kernels::{Chain, Draw, Filter, philox, sample_report};
use rayon::prelude::*;
use std::{error::Error, time::Instant};

const VOCABULARY: usize = 151_936;

fn normal(seed: u64, scale: f64) -> Vec<f32> {
    (0..VOCABULARY as u64).map(|id| (scale * philox::normal(17, seed, id)) as f32).collect()
}

/// A shape of rows: its name, and the row of a seed.
type Shape = (&'static str, fn(u64) -> Vec<f32>);

const SHAPES: [Shape; 5] = [
    ("peaked", |seed| normal(seed, 6.4)),
    ("flat", |seed| normal(seed, 1.0)),
    ("ties", |seed| normal(seed, 3.0).into_iter().map(|x| (x * 2.0).round() / 2.0).collect()),
    ("one finite entry", |seed| {
        let mut row = vec![f32::NEG_INFINITY; VOCABULARY];
        row[seed as usize % VOCABULARY] = -2.0;
        row
    }),
    ("rows with -inf", |seed| {
        let mut row = normal(seed, 3.0);
        row.iter_mut().skip(seed as usize % 3).step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
        row
    }),
];

/// Ids and log-probs by a full sort in f64 with compensated sums; also how near, relative, a boundary came to a sum.
fn by_sorting(row: &[f32], temperature: f64, top_k: usize, top_p: f64) -> (Vec<u32>, Vec<f64>, f64) {
    let mut order: Vec<u32> = (0..row.len() as u32).filter(|id| row[*id as usize].is_finite()).collect();
    let value = |id: &u32| f64::from(row[*id as usize]);
    order.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.cmp(b)));
    let max = value(&order[0]);
    let weight = |id: &u32| ((value(id) - max) / temperature).exp();
    if top_k > 0 {
        order.truncate(top_k);
    }
    let total: f64 = order.iter().rev().map(weight).sum();
    let (mut sum, mut kept, mut nearest) = (0.0, 0, f64::INFINITY);
    while kept < order.len() && sum < top_p * total {
        sum += weight(&order[kept]);
        kept += 1;
        nearest = nearest.min((sum / (top_p * total) - 1.0).abs());
    }
    order.truncate(kept);
    order.sort_unstable();
    let log_kept = order.iter().map(weight).sum::<f64>().ln();
    let log_q = order.iter().map(|id| (value(id) - max) / temperature - log_kept).collect();
    (order, log_q, nearest)
}

/// Rows whose support differs, rows too near a boundary for f64 to say, and the largest relative error of a log-prob.
fn reference(shape: Shape, rows: u64) -> Result<(u64, u64, f64), lockstep_kernels::Error> {
    let row = |seed: u64| {
        let logits = shape.1(seed);
        let (temperature, top_k, top_p) = [(0.7, 0, 0.95), (1.0, 50, 0.9), (1.0, 0, 0.8)][seed as usize % 3];
        let filters = [Filter::Temperature(temperature), Filter::TopK(top_k), Filter::TopP(top_p)];
        let draw = Draw { seed, request: 0, position: 0 };
        let report = sample_report(&logits, &Chain::new(filters)?, draw, VOCABULARY)?;
        let (ids, log_q, nearest) = by_sorting(&logits, temperature, top_k, top_p);
        let (got_ids, got) = report.support.unwrap_or_default();
        let unsure = u64::from(nearest < 1e-12);
        let differs = u64::from(ids != got_ids && unsure == 0);
        let error = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
        let worst = if ids == got_ids { got.iter().zip(&log_q).map(error).fold(0.0, f64::max) } else { 0.0 };
        Ok((differs, unsure, worst))
    };
    let join = |a: (u64, u64, f64), b: (u64, u64, f64)| Ok((a.0 + b.0, a.1 + b.1, a.2.max(b.2)));
    (0..rows).into_par_iter().map(row).try_reduce(|| (0, 0, 0.0), join)
}

/// Draws of the frequency test, and the z beyond which it fails: once in 10,000 honest runs.
const DRAWS: u64 = 4096;
const FARTHEST: f64 = 3.72;

/// How the draws of a shape's first row stand to its report, and to the report at a temperature half as high again, as
/// `z = ((G/d)^(1/3) - (1 - 2/(9d))) / sqrt(2/(9d))` (Wilson and Hilferty) of `G = 2 sum n ln(n / (N q))` over `d + 1` cells, each of
/// ids of neighbouring q with at least five draws expected. `None` where the row leaves no choice.
fn frequencies(shape: Shape) -> Result<Option<(f64, f64)>, lockstep_kernels::Error> {
    let logits = shape.1(0);
    let chain = |temperature| Chain::new([Filter::Temperature(temperature), Filter::TopP(0.95)]);
    let draw = |position| Draw { seed: 5, request: 0, position };
    let honest = chain(1.0)?;
    let token = |position| Ok(sample_report(&logits, &honest, draw(position), 0)?.token);
    let tokens: Vec<u32> = (0..DRAWS).into_par_iter().map(token).collect::<Result<_, lockstep_kernels::Error>>()?;
    let z = |chain: &Chain| -> Result<Option<f64>, lockstep_kernels::Error> {
        let (ids, log_q) = sample_report(&logits, chain, draw(0), VOCABULARY)?.support.unwrap_or_default();
        Ok(z_of(&tokens, &ids, &log_q))
    };
    Ok(z(&honest)?.zip(z(&chain(1.5)?)?))
}

fn z_of(tokens: &[u32], ids: &[u32], log_q: &[f64]) -> Option<f64> {
    let mut drawn = vec![0.0; VOCABULARY];
    tokens.iter().for_each(|token| drawn[*token as usize] += 1.0);
    let mut cells = vec![(0.0, 0.0)];
    let mut by_q: Vec<(&u32, &f64)> = ids.iter().zip(log_q).collect();
    by_q.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    for (id, log_q) in by_q {
        if cells.last().is_some_and(|(_, expected)| *expected >= 5.0) {
            cells.push((0.0, 0.0));
        }
        if let Some((count, expected)) = cells.last_mut() {
            *count += std::mem::take(&mut drawn[*id as usize]);
            *expected += tokens.len() as f64 * log_q.exp();
        }
    }
    if drawn.iter().any(|count| *count > 0.0) {
        return Some(f64::INFINITY);
    }
    let of_cell = |(count, expected): &(f64, f64)| if *count > 0.0 { count * (count / expected).ln() } else { 0.0 };
    let (g, d) = (2.0 * cells.iter().map(of_cell).sum::<f64>(), (cells.len() - 1) as f64);
    let spread = 2.0 / (9.0 * d);
    (d > 0.0).then(|| ((g.max(0.0) / d).cbrt() - (1.0 - spread)) / spread.sqrt())
}

/// Rows that were not refused by name, of so many with a NaN, so many without anything finite, and an empty one.
fn accepted(rows: u64) -> Result<u64, lockstep_kernels::Error> {
    let chain = Chain::new([Filter::TopP(0.95)])?;
    let report = |row: &[f32], seed| sample_report(row, &chain, Draw { seed, request: 0, position: 0 }, 0);
    let wrong = |seed: u64| {
        let (place, mut row) = (philox::bits(18, seed, 0) as usize % VOCABULARY, SHAPES[seed as usize % 5].1(seed));
        row[place] = f32::NAN;
        let named =
            |error| matches!(error, lockstep_kernels::Error::BadLogit { id, value } if id == place && value.is_nan());
        let nan = report(&row, seed).is_err_and(named);
        let nothing = report(&row.iter().map(|_| f32::NEG_INFINITY).collect::<Vec<_>>(), seed);
        let nothing = nothing == Err(lockstep_kernels::Error::NoFiniteLogit { len: VOCABULARY });
        u64::from(!nan) + u64::from(!nothing)
    };
    let empty = report(&[], 0) != Err(lockstep_kernels::Error::EmptyRow);
    Ok((0..rows).into_par_iter().map(wrong).sum::<u64>() + u64::from(empty))
}

/// Seconds a row on the threads there are: temperature 1, top-p 0.95, the support reported whole.
fn time(rows: usize, file: &str) -> Result<f64, Box<dyn Error>> {
    let logits: Vec<Vec<f32>> = (0..rows as u64).map(|seed| normal(seed, 3.0)).collect();
    let bytes: Vec<u8> = logits.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(file, bytes)?;
    let chain = Chain::new([Filter::Temperature(1.0), Filter::TopP(0.95)])?;
    let mut best = f64::INFINITY;
    for repeat in 0..5 {
        let clock = Instant::now();
        let report = |(request, row): (usize, &Vec<f32>)| {
            sample_report(row, &chain, Draw { seed: repeat, request: request as u64, position: 0 }, VOCABULARY)
        };
        logits.par_iter().enumerate().map(report).collect::<Result<Vec<_>, _>>()?;
        best = best.min(clock.elapsed().as_secs_f64() / rows as f64);
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["reference", rows] => {
            let rows = rows.parse()?;
            let mut wrong = 0;
            for shape in SHAPES {
                let (differs, unsure, worst) = reference(shape, rows)?;
                wrong += differs + u64::from(worst > 2e-6);
                let frequencies = frequencies(shape)?;
                let told = frequencies.map(|(z, other)| format!("z = {z:.2}, {other:.0} against another temperature"));
                wrong += u64::from(frequencies.is_some_and(|(z, other)| z > FARTHEST || other <= FARTHEST));
                println!(
                    "{}: {differs} of {rows} supports differ, {unsure} too near to say, log-probs within {worst:.1e}; {DRAWS} draws: {}",
                    shape.0,
                    told.as_deref().unwrap_or("no choice")
                );
            }
            let accepted = accepted(rows)?;
            println!("{accepted} of {} rows with NaN, without anything finite, or empty were accepted", 2 * rows + 1);
            if wrong + accepted > 0 { Err("the definition and the sorted reference disagree".into()) } else { Ok(()) }
        }
        ["time", rows, file] => {
            println!("{:.6}", time(rows.parse()?, file)?);
            Ok(())
        }
        _ => Err("usage: sample_report reference ROWS | time ROWS FILE".into()),
    }
}
