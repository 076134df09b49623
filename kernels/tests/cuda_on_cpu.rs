//! The CUDA kernels, compiled as C++ on a fiber shim, against their definitions: the same support, counts and token, bit for
//! bit, whatever the order of the threads. Needs a C++ compiler.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use lockstep_kernels::{
    Chain, Draw, Filter, SampleReport,
    adamw::{AdamW, Slot},
    philox, sample_report,
};
use shim::{run, success, words};
use std::process::Output;

mod shim;

const VOCABULARY: usize = 151_936;
const CAP: usize = 4096;

struct Problem {
    rows: Vec<Vec<f32>>,
    chain: Chain,
    seed: u64,
}

impl Problem {
    fn bytes(&self, order: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in [self.rows.len() as u32, self.rows[0].len() as u32, CAP as u32, order] {
            bytes.extend(n.to_le_bytes());
        }
        bytes.extend((self.chain.filters().len() as u64).to_le_bytes());
        for place in 0..4 {
            let (filter, value) = match self.chain.filters().get(place) {
                None => (0, 1.0),
                Some(Filter::Temperature(t)) => (0, *t),
                Some(Filter::TopK(k)) => (1, *k as f64),
                Some(Filter::TopP(p)) => (2, *p),
                Some(Filter::MinP(p)) => (3, *p),
            };
            bytes.extend(u64::to_le_bytes(filter));
            bytes.extend(f64::to_le_bytes(value));
        }
        self.rows.iter().flatten().for_each(|x| bytes.extend(x.to_le_bytes()));
        for draw in (0..self.rows.len()).map(|row| self.draw(row)) {
            [draw.seed, draw.request, draw.position].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        }
        bytes
    }

    fn draw(&self, row: usize) -> Draw {
        Draw { seed: self.seed, request: row as u64 + (1 << 40), position: 77 }
    }

    fn definition(&self) -> Vec<lockstep_kernels::Result<SampleReport>> {
        let rows = self.rows.iter().enumerate();
        rows.map(|(i, row)| sample_report(row, &self.chain, self.draw(i), CAP)).collect()
    }
}

/// What the kernel wrote, in the words of the definition; the status of a refused row is its error.
fn answers(output: &Output, rows: usize) -> Vec<Result<SampleReport, u32>> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (reports, rest) = output.stdout.split_at(rows * 48);
    let (ids, log_q) = rest.split_at(rows * CAP * 4);
    let ids: Vec<u32> = ids.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
    let log_q: Vec<f64> = words(log_q).into_iter().map(f64::from_bits).collect();
    let report = |(row, report): (usize, &[u8])| {
        let word = words(report);
        let [f, g] = [word[4], word[5]].map(|word| [word as u32, (word >> 32) as u32]);
        let ([token, kept], [status, overflow]) = (f, g);
        if status != 0 {
            return Err(status);
        }
        let listed = row * CAP..row * CAP + kept as usize;
        Ok(SampleReport {
            token,
            log_q: f64::from_bits(word[0]),
            log_p: f64::from_bits(word[1]),
            log_sum_exp: f64::from_bits(word[2]),
            kept,
            kept_mass: f64::from_bits(word[3]),
            support: (overflow == 0).then(|| (ids[listed.clone()].to_vec(), log_q[listed].to_vec())),
        })
    };
    reports.chunks_exact(48).enumerate().map(report).collect()
}

/// Peaked, flat, tied, one finite entry, banned entries, rising, few values.
fn rows(vocabulary: usize, seed: u64) -> Vec<Vec<f32>> {
    let normal = |row: u64, scale: f64| -> Vec<f32> {
        (0..vocabulary).map(|id| (scale * philox::normal(seed, row, id as u64)) as f32).collect()
    };
    let mut single = vec![f32::NEG_INFINITY; vocabulary];
    single[vocabulary / 2] = -3.5;
    let mut banned = normal(1, 2.0);
    banned.iter_mut().step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
    let coarse = normal(2, 3.0).into_iter().map(|x| (x * 2.0).round() / 2.0).collect();
    let rising = (0..vocabulary).map(|id| id as f32 * 1e-4).collect();
    vec![normal(0, 6.4), normal(3, 0.7), vec![0.25; vocabulary], single, banned, coarse, rising]
}

fn chains() -> Vec<Chain> {
    use Filter::{MinP, Temperature, TopK, TopP};
    let chains: [&[Filter]; 8] = [
        &[],
        &[Temperature(0.7), TopP(0.95)],
        &[Temperature(1.0), TopK(50)],
        &[Temperature(0.6), MinP(0.02), TopK(20), TopP(0.95)],
        &[TopK(40), TopP(0.95), MinP(0.05), Temperature(0.8)],
        &[Temperature(1.3), TopP(0.9), MinP(0.05)],
        &[TopP(1e-9)],
        &[Temperature(2.0), TopP(0.5), TopK(3000)],
    ];
    chains.iter().map(|filters| Chain::new(*filters).unwrap()).collect()
}

fn assert_same(got: &SampleReport, want: &SampleReport) {
    assert_eq!((got.token, got.kept), (want.token, want.kept));
    assert_eq!(got.kept_mass.to_bits(), want.kept_mass.to_bits(), "{} {}", got.kept_mass, want.kept_mass);
    let ids = |report: &SampleReport| report.support.as_ref().map(|(ids, _)| ids.clone());
    assert_eq!(ids(got), ids(want));
    let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{a} {b}");
    close(got.log_q, want.log_q);
    close(got.log_p, want.log_p);
    close(got.log_sum_exp, want.log_sum_exp);
    if let (Some((_, got)), Some((_, want))) = (&got.support, &want.support) {
        got.iter().zip(want).for_each(|(a, b)| close(*a, *b));
    }
}

fn compare(vocabulary: usize, chains: &[Chain], orders: &[u32]) {
    for (number, chain) in chains.iter().enumerate() {
        let problem = Problem { rows: rows(vocabulary, number as u64), chain: chain.clone(), seed: 9 };
        let want = problem.definition();
        for order in orders {
            let got = answers(&run("sample_report", &problem.bytes(*order)), problem.rows.len());
            for (got, want) in got.iter().zip(&want) {
                assert_same(got.as_ref().unwrap(), want.as_ref().unwrap());
            }
        }
    }
}

#[test]
fn sample_report_is_its_definition_in_three_thread_orders() {
    compare(997, &chains(), &[0, 1, 2]);
    compare(256, &chains(), &[0, 1, 2]);
}

#[test]
fn sample_report_is_its_definition_at_full_vocabulary() {
    let all = chains();
    compare(VOCABULARY, &all[1..2], &[0, 1, 2]);
    compare(VOCABULARY, &[all[3].clone(), all[5].clone()], &[2]);
}

#[test]
fn adamw_is_its_definition_bit_for_bit() {
    let n = 1000;
    let noise = |stream| (0..n).map(|i| philox::normal(3, stream, i) as f32).collect::<Vec<f32>>();
    let rule = AdamW { lr: 3e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
    let (mut param, grad, mut m) = (noise(0), noise(1), noise(2));
    let mut v: Vec<f32> = noise(3).into_iter().map(f32::abs).collect();
    let c = rule.constants(7, 0.5);
    let constants = [c.scale, c.b1, c.c1, c.b2, c.c2, c.keep, c.rate, c.root, c.eps];
    let mut bytes: Vec<u8> = [n as u32, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(constants.iter().chain(&param).chain(&grad).chain(&m).chain(&v).flat_map(|x| x.to_le_bytes()));
    let output = success(run("adamw", &bytes));
    rule.update(Slot { param: &mut param, grad: &grad, m: &mut m, v: &mut v }, 7, 0.5).unwrap();
    let (floats, copy) = output.split_at(3 * 4 * n as usize);
    let want: Vec<u8> = param.iter().chain(&m).chain(&v).flat_map(|x| x.to_le_bytes()).collect();
    assert!(floats == want, "weights and moments differ");
    for (got, p) in copy.chunks_exact(2).zip(&param) {
        let got = f32::from_bits(u32::from(u16::from_le_bytes(got.try_into().unwrap())) << 16);
        assert!((got - p).abs() <= p.abs() / 256.0, "{got} is not the bf16 of {p}");
    }
}

#[test]
fn rows_without_a_distribution_are_said() {
    let mut rows = vec![vec![0.0f32; 300]; 4];
    rows[1][299] = f32::NAN;
    rows[2][7] = f32::INFINITY;
    rows[3] = vec![f32::NEG_INFINITY; 300];
    let problem = Problem { rows, chain: chains()[1].clone(), seed: 1 };
    assert_eq!(problem.definition().iter().map(|row| row.is_err()).collect::<Vec<_>>(), [false, true, true, true]);
    let got = answers(&run("sample_report", &problem.bytes(0)), 4);
    let status: Vec<u32> = got.iter().map(|row| row.as_ref().err().copied().unwrap_or(0)).collect();
    assert_eq!(status, [0, 1, 1, 2]);
}

#[test]
fn the_shim_names_what_a_gpu_would_hide() {
    let named = |kernel| {
        let output = run(kernel, &[]);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let faults = [
        ("divergent-barrier", "barrier divergence: 48 of 64 threads did not reach __syncthreads()"),
        ("bad-mask", "a lane named in a mask never arrived"),
        ("unnamed-lane", "with a mask that does not name it"),
    ];
    for (kernel, fault) in faults {
        let (code, said) = named(kernel);
        assert!(code == Some(1) && said.contains(fault), "{kernel}: {said}");
    }
    let (code, said) = named("missing-barrier");
    assert!(code == Some(0) && said.starts_with("32 of 64 values were read before they were written"), "{said}");
}
