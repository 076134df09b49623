//! The CUDA kernels of the head, the ratios and the Q8_0 product, compiled as C++ on the fiber shim, against their formulas in
//! f64. Needs a C++ compiler.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use lockstep_kernels::{philox, rows};
use shim::{run, success, words};

mod shim;

const VOCABULARY: usize = 151_936;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn normal(seed: u64, stream: u64, n: usize, scale: f64) -> Vec<f32> {
    (0..n).map(|i| (scale * philox::normal(seed, stream, i as u64)) as f32).collect()
}

/// The answer in three orders of the threads, which has to be one.
fn in_every_order(kernel: &str, problem: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let [first, second, third] = [0, 1, 2].map(|order| success(run(kernel, &problem(order))));
    assert!(first == second && second == third, "{kernel}: the order of the threads shows");
    first
}

/// One row of the loss at the head.
struct Row {
    logits: Vec<f32>,
    sampler: Vec<f32>,
    sampled: usize,
    places: Vec<u32>,
    c: Vec<f64>,
    w: f64,
    factor: f64,
    tail: Option<f64>,
}

const TEMPERATURE: f64 = 0.7;
const BOUNDS: [f64; 2] = [0.25, 1.5];

impl Row {
    fn log_probs(&self, logits: &[f32]) -> Vec<f64> {
        let total = rows::log_sum_exp(logits, 1.0 / TEMPERATURE).unwrap();
        logits.iter().map(|z| f64::from(*z) / TEMPERATURE - total).collect()
    }

    /// `-A [ w log p_a - sum c log p ]`.
    fn loss(&self) -> f64 {
        let log_p = self.log_probs(&self.logits);
        let centring = self.centring();
        let centred: f64 = centring.iter().zip(&log_p).filter(|(c, _)| **c != 0.0).map(|(c, p)| c * p).sum();
        self.factor * TEMPERATURE * (self.w * log_p[self.sampled] - centred)
    }

    /// c over the whole row.
    fn centring(&self) -> Vec<f64> {
        let (log_p, log_s) = (self.log_probs(&self.logits), self.log_probs(&self.sampler));
        let tail = |(p, s): (&f64, &f64)| match self.tail {
            Some(scale) if s.is_finite() => scale * s.exp() * (p - s).exp().clamp(BOUNDS[0], BOUNDS[1]),
            _ => 0.0,
        };
        let mut c: Vec<f64> = log_p.iter().zip(&log_s).map(tail).collect();
        self.places.iter().zip(&self.c).for_each(|(place, known)| c[*place as usize] = *known);
        c
    }

    /// `-(A/T) [ w e_a - c - (w - sum c) p ]`.
    fn gradient(&self) -> Vec<f64> {
        let (log_p, c) = (self.log_probs(&self.logits), self.centring());
        let beta = self.w - c.iter().sum::<f64>();
        let drawn = |v| if v == self.sampled { self.w } else { 0.0 };
        c.iter().zip(&log_p).enumerate().map(|(v, (c, p))| self.factor * (drawn(v) - c - beta * p.exp())).collect()
    }

    fn header(&self, start: usize, known: usize) -> Vec<u8> {
        let mut bytes = (start as u64).to_le_bytes().to_vec();
        for n in [self.logits.len(), self.sampled, known, known + self.places.len()] {
            bytes.extend((n as u32).to_le_bytes());
        }
        let total = |logits| rows::log_sum_exp(logits, 1.0 / TEMPERATURE).unwrap();
        let [low, high] = BOUNDS;
        let scale = self.tail.unwrap_or(0.0);
        let doubles =
            [total(&self.logits), total(&self.sampler), 1.0 / TEMPERATURE, self.w, self.factor, scale, low, high];
        bytes.extend(doubles.iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }
}

/// Rows over `vocabulary` ids with the known places of a head, one with a tail, one whose c sums to w, one over listed ids.
fn head_rows(vocabulary: usize) -> Vec<Row> {
    let places = |step: usize| (0..vocabulary as u32).step_by(step).collect::<Vec<u32>>();
    let known = |row: &mut Row, share: f64| {
        let log_p = row.log_probs(&row.logits);
        row.c = row.places.iter().map(|place| share * log_p[*place as usize].exp()).collect();
    };
    let row = |seed, n: usize, places: Vec<u32>| {
        let sampler = normal(seed, 1, n, 3.0);
        let logits = sampler.iter().zip(normal(seed, 2, n, 0.1)).map(|(z, noise)| z + noise).collect();
        let sampled = places.get(1).map_or(0, |place| *place as usize);
        Row { logits, sampler, sampled, c: vec![0.0; places.len()], places, w: 1.3, factor: -0.8, tail: None }
    };
    let mut plain = row(1, vocabulary, Vec::new());
    plain.sampled = vocabulary - 1;
    let mut headed = row(2, vocabulary, places(vocabulary / 50));
    known(&mut headed, 0.9);
    let mut tailed = row(3, vocabulary, places(vocabulary / 100));
    known(&mut tailed, 1.1);
    (tailed.tail, tailed.sampler[5]) = (Some(0.6), f32::NEG_INFINITY);
    let mut balanced = row(4, vocabulary, places(vocabulary / 20));
    let share = balanced.w / balanced.places.len() as f64;
    balanced.c.fill(share);
    let mut listed = row(5, 37, (0..37).collect());
    known(&mut listed, 1.0);
    vec![plain, headed, tailed, balanced, listed]
}

/// What both kernels give: scores, losses, log-probs of the known places under both sides, gradient.
struct Answer {
    scores: Vec<Vec<f64>>,
    losses: Vec<f64>,
    log_p: Vec<f64>,
    log_s: Vec<f64>,
    gradient: Vec<f32>,
}

fn head(rows: &[Row]) -> Answer {
    let bytes = |order: u32| {
        let entries: usize = rows.iter().map(|row| row.logits.len()).sum();
        let known: usize = rows.iter().map(|row| row.places.len()).sum();
        let mut bytes: Vec<u8> = Vec::new();
        for n in [rows.len() as u32, entries as u32, known as u32, order, 1, 0] {
            bytes.extend(n.to_le_bytes());
        }
        let (mut start, mut first) = (0, 0);
        for row in rows {
            bytes.extend(row.header(start, first));
            (start, first) = (start + row.logits.len(), first + row.places.len());
        }
        bytes.extend(rows.iter().flat_map(|row| &row.logits).flat_map(|x| x.to_le_bytes()));
        bytes.extend(rows.iter().flat_map(|row| &row.sampler).flat_map(|x| x.to_le_bytes()));
        bytes.extend(rows.iter().flat_map(|row| &row.places).flat_map(|x| x.to_le_bytes()));
        bytes.extend(rows.iter().flat_map(|row| &row.c).flat_map(|x| x.to_le_bytes()));
        bytes
    };
    let got = in_every_order("head_backward", bytes);
    let known: usize = rows.iter().map(|row| row.places.len()).sum();
    let (doubles, gradient) = got.split_at(rows.len() * 88 + known * 16);
    let doubles: Vec<f64> = words(doubles).into_iter().map(f64::from_bits).collect();
    let (scores, rest) = doubles.split_at(rows.len() * 10);
    let (losses, rest) = rest.split_at(rows.len());
    let (log_p, log_s) = rest.split_at(known);
    let scores = scores.chunks_exact(10).map(<[f64]>::to_vec).collect();
    Answer { scores, losses: losses.to_vec(), log_p: log_p.to_vec(), log_s: log_s.to_vec(), gradient: floats(gradient) }
}

/// `lse, entropy, rest, drawn` of one side.
fn side(row: &Row, logits: &[f32]) -> [f64; 4] {
    let log_p = row.log_probs(logits);
    let known: std::collections::BTreeSet<usize> = row.places.iter().map(|place| *place as usize).collect();
    let rest = (0..log_p.len()).filter(|v| !known.contains(v)).map(|v| log_p[v].exp()).sum();
    let entropy = rows::entropy(logits, 1.0 / TEMPERATURE).unwrap();
    [rows::log_sum_exp(logits, 1.0 / TEMPERATURE).unwrap(), entropy, rest, log_p[row.sampled]]
}

#[test]
fn head_scores_are_those_of_both_sides() {
    for vocabulary in [1000, VOCABULARY] {
        let rows = head_rows(vocabulary);
        let answer = head(&rows);
        let mut known = 0;
        for (number, row) in rows.iter().enumerate() {
            let got = &answer.scores[number];
            let want = [side(row, &row.logits), side(row, &row.sampler)].concat();
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got - want).abs() <= 1e-6 * want.abs().max(1e-30), "row {number}, sum {at}: {got} {want}");
            }
            let (log_p, log_s) = (row.log_probs(&row.logits), row.log_probs(&row.sampler));
            let kl: f64 = log_s.iter().zip(&log_p).filter(|(s, _)| s.is_finite()).map(|(s, p)| s.exp() * (s - p)).sum();
            assert!((got[8] - kl).abs() <= 1e-6 * kl.abs().max(1e-3), "row {number}: {} {kl}", got[8]);
            assert_eq!(got[9].to_bits(), 0, "row {number} has a status");
            for place in &row.places {
                let want = [log_p[*place as usize], log_s[*place as usize]];
                let got = [answer.log_p[known], answer.log_s[known]];
                assert!(got.iter().zip(&want).all(|(a, b)| a == b || (a - b).abs() <= 1e-10), "{got:?} {want:?}");
                known += 1;
            }
            let loss = row.loss();
            assert!((answer.losses[number] - loss).abs() <= 1e-6 * loss.abs().max(1.0), "row {number}: {loss}");
        }
    }
}

#[test]
fn head_backward_is_the_gradient_of_every_row() {
    for vocabulary in [1000, VOCABULARY] {
        let rows = head_rows(vocabulary);
        let got = head(&rows);
        let mut got = &got.gradient[..];
        for (number, row) in rows.iter().enumerate() {
            let (here, rest) = got.split_at(row.logits.len());
            got = rest;
            let want = row.gradient();
            let largest = want.iter().fold(0.0f64, |most, g| most.max(g.abs()));
            for (v, (got, want)) in here.iter().zip(&want).enumerate() {
                let off = (f64::from(*got) - want).abs();
                assert!(off <= 1e-6 * largest, "row {number} of {vocabulary}, id {v}: {got} {want}");
                assert!(off <= 1e-5 * want.abs() + 1e-12 * largest, "row {number}, id {v}: {got} {want}");
            }
        }
    }
}

#[test]
fn the_head_over_listed_ids_is_its_products() {
    let (hidden_rows, vocabulary, width) = (6usize, 50usize, 200usize);
    let (hidden, head) = (normal(1, 0, hidden_rows * width, 1.0), normal(1, 1, vocabulary * width, 0.1));
    let lens = [3usize, 0, 40, 1, 2, 4];
    let entries: Vec<(u32, u32)> =
        (0u32..).zip(lens).flat_map(|(row, n)| (0..n as u32).map(move |k| (row, (k * 7 + row) % 50))).collect();
    let gradients = normal(1, 2, entries.len(), 1.0);
    let starts = lens.iter().scan(0u32, |end, n| {
        *end += *n as u32;
        Some(*end)
    });
    let starts: Vec<u32> = std::iter::once(0).chain(starts).collect();
    let problem = |order: u32| {
        let header =
            [entries.len() as u32, vocabulary as u32, hidden_rows as u32, width as u32, lens.len() as u32, order];
        let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.extend(hidden.iter().chain(&head).chain(&gradients).flat_map(|x| x.to_le_bytes()));
        let columns = entries.iter().map(|e| e.0).chain(entries.iter().map(|e| e.1));
        bytes.extend(columns.chain(starts.iter().copied()).chain(0..6).flat_map(u32::to_le_bytes));
        bytes
    };
    let got = floats(&in_every_order("head_listed", problem));
    let (logits, of_hidden) = got.split_at(entries.len());
    let mut want_hidden = vec![0f64; hidden.len()];
    for ((row, id), (got, g)) in entries.iter().zip(logits.iter().zip(&gradients)) {
        let (row, id) = (*row as usize * width, *id as usize * width);
        let want: f64 = (0..width).map(|i| f64::from(hidden[row + i]) * f64::from(head[id + i])).sum();
        assert!((f64::from(*got) - want).abs() <= 1e-5, "{got} {want}");
        (0..width).for_each(|i| want_hidden[row + i] += f64::from(*g) * f64::from(head[id + i]));
    }
    of_hidden.iter().zip(&want_hidden).for_each(|(got, want)| assert!((f64::from(*got) - want).abs() <= 1e-5));
}

#[test]
fn ratio_statistics_are_those_of_all_ratios() {
    let n = 9_000usize;
    let log_ratios: Vec<f64> = (0..n as u64).map(|i| 0.3 * philox::normal(6, 0, i)).collect();
    let offsets: Vec<u32> = (0..=9).map(|s| s * 1000).collect();
    let (low, high) = (-0.5f64, 0.5f64);
    let problem = |order: u32| {
        let mut bytes: Vec<u8> = [n as u32, 9, order, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.extend([low, high].iter().chain(&log_ratios).flat_map(|x| x.to_le_bytes()));
        bytes.extend(offsets.iter().flat_map(|n| n.to_le_bytes()));
        bytes
    };
    let got = words(&in_every_order("ess", problem));
    let (pieces, by_sequence) = got.split_at(n.div_ceil(4096) * 6);
    let (mut sum, mut squares, mut k1, mut k3, mut clipped) = (0.0, 0.0, 0.0, 0.0, 0);
    for piece in pieces.chunks_exact(6) {
        let [max, s, q, first, third] = [0, 1, 2, 3, 4].map(|at| f64::from_bits(piece[at]));
        (sum, squares) = (sum + s * max.exp(), squares + q * (2.0 * max).exp());
        (k1, k3, clipped) = (k1 + first, k3 + third, clipped + (piece[5] & 0xffff_ffff));
        assert_eq!(piece[5] >> 32, 0);
    }
    let of = |f: &dyn Fn(f64) -> f64| log_ratios.iter().map(|x| f(*x)).sum::<f64>();
    let close = |got: f64, want: f64| assert!((got - want).abs() <= 1e-9 * want.abs(), "{got} {want}");
    close(sum * sum / squares, of(&f64::exp).powi(2) / of(&|x| (2.0 * x).exp()));
    close(k1, of(&|x| -x));
    close(k3, of(&|x| x.exp() - 1.0 - x));
    assert_eq!(clipped as usize, log_ratios.iter().filter(|x| **x > high || **x < low).count());
    for (got, tokens) in by_sequence.iter().zip(log_ratios.chunks(1000)) {
        close(f64::from_bits(*got), tokens.iter().sum());
    }
}

/// Round to bf16, to nearest even.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn q8_product_is_that_of_the_dequantised_weights() {
    let (width, out) = (1056usize, 30usize);
    for batch in [1usize, 3, 8] {
        let values: Vec<i8> = (0..(width * out) as u64).map(|i| (philox::normal(7, 0, i) * 50.0) as i8).collect();
        // f16 of 2^-10 (1 + k / 1024), one subnormal, one zero.
        let mut scales: Vec<u16> = (0..(width * out / 32) as u16).map(|k| (5 << 10) | (k % 1024)).collect();
        (scales[0], scales[1]) = (0x0155, 0);
        let scale = |bits: u16| match bits >> 10 {
            0 => f64::from(bits) * 2f64.powi(-24),
            exponent => (1.0 + f64::from(bits & 0x3ff) / 1024.0) * 2f64.powi(i32::from(exponent) - 15),
        };
        let x: Vec<u16> = normal(7, 1, width * batch, 1.0).into_iter().map(bf16).collect();
        let problem = |order: u32| {
            let header = [width as u32, out as u32, batch as u32, order];
            let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
            bytes.extend(values.iter().map(|v| *v as u8));
            bytes.extend(scales.iter().chain(&x).flat_map(|n| n.to_le_bytes()));
            bytes
        };
        let got = floats(&in_every_order("q8_gemv", problem));
        for (at, got) in got.iter().enumerate() {
            let (b, o) = (at / out, at % out);
            let term = |i: usize| {
                let weight = f64::from(values[o * width + i]) * scale(scales[(o * width + i) / 32]);
                weight * f64::from(f32::from_bits(u32::from(x[b * width + i]) << 16))
            };
            let (want, size): (f64, f64) = ((0..width).map(term).sum(), (0..width).map(|i| term(i).abs()).sum());
            assert!((f64::from(*got) - want).abs() <= 1e-6 * size, "row {b}, output {o}: {got} {want}");
        }
    }
}
