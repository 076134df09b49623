//! The head at a vocabulary of 151,936 and 1,024 hidden: log-probs and gradients of a loss, score-centred or plain, for
//! `benches/head.py` to hold beside torch.
//!
//!     head FOLDER over-vocabulary|over-support centred|plain TEMPERATURE
//!
//! Reads `hidden.f32`, `head.f32`, `ids.u32`, `q.f32`, `drawn.u32` and `advantage.f32` from the folder, writes `log_p.f32`,
//! `of_hidden.f32` and `of_head.f32`, and prints seconds and the bytes it held beyond weights, hidden states and their gradients.

#![expect(clippy::print_stdout, reason = "a program for people")]

use lockstep_kernels::head::{Correction, Gradient, LogProbs, Row, RowError, Side, Sides, Weighed, head_backward};
use lockstep_kernels::rows::Over;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const USAGE: &str = "usage: head FOLDER over-vocabulary|over-support centred|plain TEMPERATURE";

const HIDDEN: usize = 1024;

/// Kept ids a row.
const KEPT: usize = 8;

fn words(path: &Path) -> Result<Vec<[u8; 4]>, Box<dyn Error>> {
    Ok(std::fs::read(path)?.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]).collect())
}

fn floats(folder: &Path, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    Ok(words(&folder.join(name))?.into_iter().map(f32::from_le_bytes).collect())
}

fn integers(folder: &Path, name: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    Ok(words(&folder.join(name))?.into_iter().map(u32::from_le_bytes).collect())
}

fn write(folder: &Path, name: &str, x: &[f32]) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(folder.join(name), x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?)
}

/// A line of `/proc/self/status`, in bytes.
fn status(name: &str) -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse::<usize>()? << 10)
}

/// What `head.py` wrote.
struct Problem {
    hidden: Vec<f32>,
    head: Vec<f32>,
    ids: Vec<u32>,
    q: Vec<f32>,
    drawn: Vec<u32>,
    advantage: Vec<f32>,
}

impl Problem {
    fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            hidden: floats(folder, "hidden.f32")?,
            head: floats(folder, "head.f32")?,
            ids: integers(folder, "ids.u32")?,
            q: floats(folder, "q.f32")?,
            drawn: integers(folder, "drawn.u32")?,
            advantage: floats(folder, "advantage.f32")?,
        })
    }

    fn rows(&self, over: Over, inv_t: f64) -> Vec<Row<'_>> {
        let row = |(at, ids)| Row { at, over, ids, known: KEPT, drawn: self.drawn[at], inv_t, older: None };
        self.ids.chunks_exact(KEPT).enumerate().map(row).collect()
    }

    /// `w = 1`, and where it is centred `c = q` of the kept ids, which has mass 1; the mean over all rows.
    fn correction(&self, at: usize, centred: bool) -> Correction {
        let q = self.q[at * KEPT..(at + 1) * KEPT].iter().map(|q| f64::from(*q));
        let mass = q.clone().sum::<f64>();
        let c = q.map(|q| if centred { q / mass } else { 0.0 }).collect();
        let advantage = f64::from(self.advantage[at]) / self.drawn.len() as f64;
        Correction { w: 1.0, c, tail: None, advantage }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, over, loss, temperature] = &arguments[..] else { return Err(USAGE.into()) };
    let over = match &over[..] {
        "over-vocabulary" => Over::Vocabulary,
        "over-support" => Over::Listed,
        _ => return Err(USAGE.into()),
    };
    let centred = match &loss[..] {
        "centred" => true,
        "plain" => false,
        _ => return Err(USAGE.into()),
    };
    let inv_t = temperature.parse::<f64>()?.recip();
    let folder = Path::new(folder);
    let problem = Problem::read(folder)?;
    let (mut of_hidden, mut of_head) = (vec![0f32; problem.hidden.len()], vec![0f32; problem.head.len()]);
    // Touched, so that the system has given the pages before the clock starts.
    of_hidden.iter_mut().chain(&mut of_head).step_by(1024).for_each(|x| *x = std::hint::black_box(0.0));
    let side = Side::new(&problem.hidden, &problem.head, HIDDEN)?;
    // The more rows at a time, the less often the head's gradient is read and written; torch holds thirteen times as much.
    let sides = Sides { now: side, older: &[], logits_bytes: 640 << 20 };
    let rows = problem.rows(over, inv_t);
    let objective = |at: usize, log_p: LogProbs| -> Result<_, RowError> {
        Ok(Weighed { correction: problem.correction(at, centred), seen: log_p.drawn as f32 })
    };
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = status("VmRSS")?;
    let clock = Instant::now();
    let gradient = Gradient { hidden: &mut of_hidden, head: &mut of_head };
    let found = head_backward(sides, &rows, objective, gradient)?;
    let seconds = clock.elapsed().as_secs_f64();
    println!("{seconds:.3} {}", status("VmHWM")?.saturating_sub(before));
    write(folder, "log_p.f32", &found.seen)?;
    write(folder, "of_hidden.f32", &of_hidden)?;
    write(folder, "of_head.f32", &of_head)
}
