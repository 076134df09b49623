//! The head against its formulas in f64, and against itself on other threads and in other chunks.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use lockstep_kernels::head::{
    Correction, Gradient, HeadLoss, LogProbs, Row, RowError, Scores, Side, Sides, Tail, Weighed, head_backward,
    head_logprob, logits_gradient,
};
use lockstep_kernels::philox::{normal, uniform};
use lockstep_kernels::rows::Over;

const T: f64 = 0.8;

/// Hidden states and heads of two sets of weights, and positions of every kind.
struct Problem {
    vocab: usize,
    width: usize,
    now: [Vec<f32>; 2],
    older: [Vec<f32>; 2],
    positions: Vec<Position>,
}

struct Position {
    over: Over,
    ids: Vec<u32>,
    known: usize,
    drawn: u32,
    older: Option<usize>,
    correction: Correction,
}

fn noise(n: usize, seed: u64, scale: f64) -> Vec<f32> {
    (0..n as u64).map(|i| (scale * normal(seed, 9, i)) as f32).collect()
}

/// Distinct ids of position `at`.
fn ids(at: usize, n: usize, vocab: usize) -> Vec<u32> {
    let first = (uniform(1, 2, at as u64) * vocab as f64) as usize;
    (0..n).map(|i| ((first + i * (vocab / n.max(1)).max(1)) % vocab) as u32).collect()
}

fn position(at: usize, vocab: usize) -> Position {
    let draw = |i: u64| uniform(3, at as u64, i);
    let (over, n, known) = match at % 6 {
        0 => (Over::Listed, 9, 9),
        1 => (Over::Listed, 12, 3),
        2 => (Over::Listed, 1, 1),
        3 => (Over::Vocabulary, 8, 8),
        4 => (Over::Vocabulary, 0, 0),
        _ => (Over::Vocabulary, 5, 5),
    };
    let ids = ids(at, n, vocab);
    let drawn = match over {
        Over::Listed => ids[(draw(0) * n as f64) as usize],
        Over::Vocabulary if at.is_multiple_of(2) => ids.first().copied().unwrap_or((draw(1) * vocab as f64) as u32),
        Over::Vocabulary => (draw(1) * vocab as f64) as u32,
    };
    let tail = matches!(at % 6, 1 | 3).then_some(Tail { scale: 0.9, low: 0.4, high: 1.7 });
    let (w, mut c) = (1.3 * draw(3), (0..known as u64).map(|i| 0.3 * draw(10 + i)).collect::<Vec<_>>());
    if at % 12 == 5 {
        // Centred: the gradient is that of a few ids, where they are few.
        let scale = w / c.iter().sum::<f64>();
        c.iter_mut().for_each(|c| *c *= scale);
    }
    let advantage = if at % 11 == 10 { 0.0 } else { draw(2) - 0.5 };
    let correction = Correction { w, c, tail, advantage };
    Position { over, ids, known, drawn, older: tail.map(|_| 0), correction }
}

impl Problem {
    fn new(n: usize, width: usize, vocab: usize) -> Self {
        let matrices =
            |seed| [noise(n * width, seed, 1.0), noise(vocab * width, seed + 1, 2.0 / (width as f64).sqrt())];
        let now = matrices(1);
        let mut older = now.clone();
        for (matrix, seed) in older.iter_mut().zip(5..) {
            matrix.iter_mut().zip(noise(n.max(vocab) * width, seed, 0.05)).for_each(|(x, by)| *x += by);
        }
        Self { vocab, width, now, older, positions: (0..n).map(|at| position(at, vocab)).collect() }
    }

    fn rows(&self) -> Vec<Row<'_>> {
        self.positions.iter().enumerate().map(|(at, position)| self.row(at, position)).collect()
    }

    fn row<'a>(&self, at: usize, position: &'a Position) -> Row<'a> {
        let Position { over, known, drawn, older, .. } = *position;
        // The rows of the hidden states in another order than the positions.
        let at = (at + 3) % self.positions.len();
        Row { at, over, ids: &position.ids, known, drawn, inv_t: 1.0 / T, older }
    }

    fn with_sides<R>(&self, logits_bytes: usize, f: impl FnOnce(Sides<'_>) -> R) -> R {
        let [now, older] = [&self.now, &self.older].map(|[hidden, head]| Side::new(hidden, head, self.width).unwrap());
        f(Sides { now, older: &[older], logits_bytes })
    }

    fn scores(&self, logits_bytes: usize) -> Vec<Scores> {
        self.with_sides(logits_bytes, |sides| head_logprob(sides, &self.rows()).unwrap())
    }

    /// Loss, dh and dW.
    fn backward(&self, logits_bytes: usize) -> (f64, Vec<f32>, Vec<f32>) {
        let (mut hidden, mut head) = (vec![0.0; self.now[0].len()], vec![0.0; self.now[1].len()]);
        let objective = |at: usize, _: LogProbs| -> Result<Weighed<usize>, RowError> {
            Ok(Weighed { correction: self.positions[at].correction.clone(), seen: at })
        };
        let gradient = Gradient { hidden: &mut hidden, head: &mut head };
        let HeadLoss { loss, seen, reached } =
            self.with_sides(logits_bytes, |sides| head_backward(sides, &self.rows(), objective, gradient).unwrap());
        assert!(reached && seen.into_iter().eq(0..self.positions.len()));
        (loss, hidden, head)
    }
}

/// One position by its formulas.
struct Reference {
    domain: Vec<usize>,
    log_p: Vec<f64>,
    log_s: Vec<f64>,
}

fn log_softmax(side: &[Vec<f32>; 2], at: usize, width: usize, domain: &[usize]) -> Vec<f64> {
    let row = |matrix: &[f32], at: usize| matrix[at * width..(at + 1) * width].iter().map(|x| f64::from(*x)).collect();
    let h: Vec<f64> = row(&side[0], at);
    let dot = |id: usize| row(&side[1], id).iter().zip(&h).map(|(w, h): (&f64, _)| w * h).sum::<f64>() / T;
    let z: Vec<f64> = domain.iter().map(|id| dot(*id)).collect();
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    z.iter().map(|z| z - log_sum).collect()
}

impl Reference {
    fn new(problem: &Problem, row: &Row<'_>) -> Self {
        let domain: Vec<usize> = match row.over {
            Over::Listed => row.ids.iter().map(|id| *id as usize).collect(),
            Over::Vocabulary => (0..problem.vocab).collect(),
        };
        let [log_p, log_s] =
            [&problem.now, &problem.older].map(|side| log_softmax(side, row.at, problem.width, &domain));
        Self { domain, log_p, log_s }
    }

    fn place(&self, id: u32) -> usize {
        self.domain.iter().position(|v| *v == id as usize).unwrap()
    }

    fn known(&self, row: &Row<'_>) -> Vec<usize> {
        row.ids[..row.known].iter().map(|id| self.place(*id)).collect()
    }

    /// Loss, and its gradient with respect to the logits of the domain.
    fn loss(&self, row: &Row<'_>, by: &Correction) -> (f64, Vec<f64>) {
        let known = self.known(row);
        let off_head = |tail: &Tail, v: usize| {
            tail.scale * self.log_s[v].exp() * (self.log_p[v] - self.log_s[v]).exp().clamp(tail.low, tail.high)
        };
        let all = 0..self.domain.len();
        let mut c: Vec<f64> = all.clone().map(|v| by.tail.as_ref().map_or(0.0, |tail| off_head(tail, v))).collect();
        known.iter().zip(&by.c).for_each(|(v, value)| c[*v] = *value);
        let sum: f64 = c.iter().sum();
        let centring: f64 = c.iter().zip(&self.log_p).map(|(c, log_p)| c * log_p).sum();
        let drawn = self.place(row.drawn);
        let gradient = all.map(|v| {
            let e = if v == drawn { by.w } else { 0.0 };
            -by.advantage / T * (e - c[v] - (by.w - sum) * self.log_p[v].exp())
        });
        (-by.advantage * (by.w * self.log_p[drawn] - centring), gradient.collect())
    }
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |max: f64, x| max.max(x.abs()))
}

/// Largest difference relative to the largest entry.
fn error(found: &[f32], wanted: &[f64]) -> f64 {
    let worst = found.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    worst / largest(wanted)
}

/// Loss, dh and dW by the formulas.
fn reference(problem: &Problem) -> (f64, Vec<f64>, Vec<f64>) {
    let (width, mut total) = (problem.width, 0.0);
    let (mut hidden, mut head) = (vec![0.0; problem.now[0].len()], vec![0.0; problem.now[1].len()]);
    for (row, position) in problem.rows().iter().zip(&problem.positions) {
        let reference = Reference::new(problem, row);
        let (loss, gradient) = reference.loss(row, &position.correction);
        total += loss;
        for (v, g) in reference.domain.iter().zip(gradient) {
            for i in 0..width {
                hidden[row.at * width + i] += g * f64::from(problem.now[1][v * width + i]);
                head[v * width + i] += g * f64::from(problem.now[0][row.at * width + i]);
            }
        }
    }
    (total, hidden, head)
}

#[test]
fn gradients_are_those_of_the_formulas() {
    for problem in [Problem::new(60, 16, 500), Problem::new(7, 8, 151_936)] {
        let (loss, hidden, head) = problem.backward(1 << 24);
        let wanted = reference(&problem);
        assert!((loss - wanted.0).abs() < 1e-5 * (1.0 + wanted.0.abs()), "loss {loss}, wanted {}", wanted.0);
        let (of_hidden, of_head) = (error(&hidden, &wanted.1), error(&head, &wanted.2));
        assert!(of_hidden < 1e-5 && of_head < 1e-5, "dh {of_hidden:e}, dW {of_head:e}");
    }
}

/// The bars above are not met by accident: a coefficient that is one part in a thousand off shows.
#[test]
fn another_coefficient_has_another_gradient() {
    let mut problem = Problem::new(60, 16, 500);
    let (_, hidden, head) = problem.backward(1 << 20);
    problem.positions.iter_mut().for_each(|position| position.correction.w *= 1.001);
    let wanted = reference(&problem);
    assert!(error(&hidden, &wanted.1) > 1e-4 && error(&head, &wanted.2) > 1e-4);
}

/// No more is taken for centred than rounding loses: a weight that is off its centre by one part in a million has a gradient
/// at every id.
#[test]
fn what_is_nearly_centred_reaches_the_whole_vocabulary() {
    let mut problem = Problem::new(12, 16, 500);
    let untouched = |problem: &Problem| {
        let (_, _, head) = problem.backward(1 << 20);
        head.chunks_exact(problem.width).filter(|row| row.iter().all(|x| *x == 0.0)).count()
    };
    problem.positions.iter_mut().enumerate().filter(|(at, _)| *at != 5).for_each(|(_, p)| p.correction.advantage = 0.0);
    let few = problem.positions[5].ids.len() + 1;
    assert_eq!(untouched(&problem), 500 - few);
    problem.positions[5].correction.w *= 1.000_001;
    assert_eq!(untouched(&problem), 0);
}

#[test]
fn log_probs_are_those_of_the_formulas() {
    for problem in [Problem::new(60, 16, 500), Problem::new(7, 8, 151_936)] {
        for (row, scores) in problem.rows().iter().zip(problem.scores(1 << 24)) {
            let reference = Reference::new(&problem, row);
            let close = |name: &str, found: f64, wanted: f64| {
                assert!(found == wanted || (found - wanted).abs() < 2e-5, "{name}: {found}, wanted {wanted}");
            };
            let check = |found: &LogProbs, log_p: &[f64]| {
                let known = reference.known(row);
                known.iter().zip(&found.known).for_each(|(v, found)| close("known", *found, log_p[*v]));
                close("drawn", found.drawn, log_p[reference.place(row.drawn)]);
                let rest = (0..log_p.len()).filter(|v| !known.contains(v)).map(|v| log_p[v].exp()).sum::<f64>().ln();
                close("rest", found.rest, rest);
                close("entropy", found.entropy, -log_p.iter().map(|log_p| log_p * log_p.exp()).sum::<f64>());
            };
            check(&scores.now, &reference.log_p);
            let Some(older) = scores.older else { continue };
            check(&older.log_probs, &reference.log_s);
            let kl = reference.log_s.iter().zip(&reference.log_p).map(|(s, p)| s.exp() * (s - p)).sum();
            close("kl", older.kl, kl);
        }
    }
}

#[test]
fn neither_threads_nor_a_second_run_change_a_bit() {
    let problem = Problem::new(150, 32, 5000);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| (problem.scores(1 << 20), problem.backward(1 << 20)))
    };
    let one = on(1);
    assert!(one == on(1) && one == on(2) && one == on(3));
}

#[test]
fn chunks_change_rounding_alone() {
    let problem = Problem::new(60, 16, 500);
    let wanted = problem.backward(1 << 30);
    for bytes in [0, 4 * 300 * 7] {
        let (loss, hidden, head) = problem.backward(bytes);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        assert!((loss - wanted.0).abs() < 1e-6, "loss {loss}, wanted {}", wanted.0);
        assert!(error(&hidden, &wide(&wanted.1)) < 1e-6 && error(&head, &wide(&wanted.2)) < 1e-6);
    }
}

#[test]
fn the_gradient_of_logits_is_that_of_the_formula() {
    let problem = Problem::new(60, 16, 500);
    for (row, position) in problem.rows().iter().zip(&problem.positions) {
        let by = Correction { advantage: 0.7, ..position.correction.clone() };
        let found = problem.with_sides(0, |sides| logits_gradient(sides.now, &Row { older: None, ..*row }, &by));
        if row.over == Over::Vocabulary || row.known < row.ids.len() {
            assert!(found.is_err());
            continue;
        }
        let (_, wanted) = Reference::new(&problem, row).loss(row, &by);
        let worst = found.unwrap().iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-6, "{worst:e}");
    }
}

#[test]
fn refusals_name_the_position_and_the_numbers() {
    let problem = Problem::new(6, 8, 50);
    let refused = |change: &dyn Fn(&mut Row<'_>)| {
        let mut rows = problem.rows();
        change(&mut rows[3]);
        problem.with_sides(1 << 20, |sides| head_logprob(sides, &rows)).unwrap_err().to_string()
    };
    assert_eq!(refused(&|row| row.drawn = 50), "position 3: id 50 at place 8 is outside a row of 50");
    assert_eq!(refused(&|row| row.at = 6), "position 3: row 6 of 6 rows of hidden states");
    assert_eq!(refused(&|row| row.older = Some(1)), "position 3: older side 1 of 1");
    assert_eq!(refused(&|row| row.known = 9), "position 3: known ids: 9, wanted 8");
    let objective = |change: fn(&mut Correction)| {
        let weigh = |at: usize, _: LogProbs| -> Result<Weighed<()>, RowError> {
            let mut correction = problem.positions[at].correction.clone();
            if at == 0 {
                change(&mut correction);
            }
            Ok(Weighed { correction, seen: () })
        };
        let (mut hidden, mut head) = (problem.now[0].clone(), problem.now[1].clone());
        let gradient = Gradient { hidden: &mut hidden, head: &mut head };
        problem.with_sides(0, |sides| head_backward(sides, &problem.rows(), weigh, gradient)).unwrap_err().to_string()
    };
    assert_eq!(objective(|by| by.c.truncate(8)), "position 0: coefficients: 8, wanted 9");
    let tail = |by: &mut Correction| by.tail = Some(Tail { scale: 1.0, low: 0.0, high: 2.0 });
    assert_eq!(objective(tail), "position 0: a tail on p_s at a position without older weights");
    assert!(Side::new(&[0.0; 5], &[0.0; 4], 2).unwrap_err().to_string().contains("hidden states: 5"));
}
