//! The sampler: what it reports is what it drew from, and equal arguments give equal answers.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use common::{device, ids, model};
use lockstep_engine::generate::{Drawing, Drawn, Filters, Finish, HEAD, Request, generate, greedy};
use lockstep_engine::{Pass, Qwen3};
use lockstep_kernels::rows::{Over, log_probs};
use std::ops::ControlFlow;

const PLAIN: Filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
const CUT: Filters = Filters { temperature: 0.8, top_k: 12, top_p: 0.9, min_p: 0.02 };

fn request(number: u64, filters: Filters) -> Request {
    let prompt = ids(3 + number as usize % 5, number, 40);
    Request { prompt, generated: Vec::new(), filters, seed: 9, number, stop: vec![3], max_new: 12 }
}

type Answers = (Vec<Vec<Drawn>>, Vec<Finish>);

fn run(model: &Qwen3, requests: &[Request], listed: usize) -> Answers {
    let mut answers = vec![Vec::new(); requests.len()];
    let finishes = generate(model, requests, listed, |index, drawn| {
        answers[index].push(drawn);
        ControlFlow::Continue(())
    });
    (answers, finishes.unwrap())
}

fn tokens(answer: &[Drawn]) -> Vec<u32> {
    answer.iter().map(|drawn| drawn.token).collect()
}

/// Logits `[V]` from which each token of the answer was drawn, by the full forward.
fn logits(model: &Qwen3, request: &Request, answer: &[u32]) -> Vec<Vec<f32>> {
    let all = [request.prompt.as_slice(), answer].concat();
    let logits = model.logits(&model.hidden_packed(&[&all], Pass::Score).unwrap()).unwrap();
    logits.to_vec2().unwrap()[request.prompt.len() - 1..][..answer.len()].to_vec()
}

#[test]
fn what_is_reported_is_the_distribution_of_the_full_forward() {
    let model = model(true, 11);
    let requests: Vec<Request> = (0..6).map(|n| request(n, if n % 2 == 0 { PLAIN } else { CUT })).collect();
    // The rest of a head is a sum of f32 exponentials on a card.
    let rest = if device().is_cpu() { 1e-12 } else { 1e-6 };
    let (answers, _) = run(&model, &requests, 7);
    for (request, answer) in requests.iter().zip(&answers) {
        let inverse = 1.0 / request.filters.temperature;
        for (drawn, row) in answer.iter().zip(logits(&model, request, &tokens(answer))) {
            let (ids, log_q, over) = match &drawn.drawing {
                Drawing::Kept { ids, log_q } => (ids, log_q, Over::Listed),
                Drawing::Head { ids, log_q, .. } => (ids, log_q, Over::Vocabulary),
            };
            let want = log_probs(&row, ids, inverse, over).unwrap();
            assert!(log_q.iter().zip(&want).all(|(a, b)| (a - b).abs() < 5e-5), "{log_q:?} {want:?}");
            let mass: f64 = log_q.iter().map(|x| x.exp()).sum();
            match drawn.drawing {
                Drawing::Kept { .. } => assert!(ids.len() <= 12 && (mass - 1.0).abs() < 1e-12),
                Drawing::Head { log_rest, .. } => {
                    assert!(ids.len() == 7 && (mass + log_rest.exp() - 1.0).abs() < rest)
                }
            }
            let own = log_probs(&row, &[drawn.token], inverse, Over::Vocabulary).unwrap()[0];
            let listed = ids.binary_search(&drawn.token).ok();
            assert_eq!(listed.map_or(drawn.log_q, |place| log_q[place]), drawn.log_q);
            assert!(over == Over::Listed || (own - drawn.log_q).abs() < 5e-5);
            assert!(over == Over::Vocabulary || listed.is_some());
        }
    }
}

#[test]
fn equal_arguments_give_equal_bits_and_another_seed_another_answer() {
    let model = model(false, 12);
    let requests: Vec<Request> = (0..8).map(|n| request(n, CUT)).collect();
    let first = run(&model, &requests, HEAD);
    assert_eq!(first, run(&model, &requests, HEAD));
    let other: Vec<Request> = requests.iter().map(|r| Request { seed: 10, ..r.clone() }).collect();
    assert_ne!(first, run(&model, &other, HEAD));
}

/// The company a request keeps in its batch does not enter its draws.
#[test]
fn a_resumed_answer_is_the_uninterrupted_one() {
    let model = model(true, 13);
    let requests: Vec<Request> = (0..8).map(|n| request(n, CUT)).collect();
    let (whole, finishes) = run(&model, &requests, HEAD);
    let mut cut = vec![Vec::new(); requests.len()];
    let stopped = generate(&model, &requests, HEAD, |index, drawn| {
        cut[index].push(drawn.token);
        if cut[index].len() > index { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(stopped.unwrap().contains(&Finish::Interrupted));
    for ((request, had), (answer, finish)) in requests.iter().zip(cut).zip(whole.iter().zip(finishes)) {
        let rest = Request { generated: had.clone(), ..request.clone() };
        let (more, finish_of_rest) = run(&model, &[rest], HEAD);
        assert_eq!([had, tokens(&more[0])].concat(), tokens(answer));
        assert_eq!(finish_of_rest, [finish]);
    }
}

#[test]
fn answers_end_where_they_should() {
    let model = model(true, 14);
    let requests: Vec<Request> = (0..40).map(|n| request(n, Filters { temperature: 1.5, ..PLAIN })).collect();
    let (answers, finishes) = run(&model, &requests, HEAD);
    for (answer, finish) in answers.iter().map(|a| tokens(a)).zip(&finishes) {
        let stops = answer.iter().filter(|token| **token == 3).count();
        match finish {
            Finish::Stop => assert!(stops == 1 && answer.last() == Some(&3)),
            _ => assert!(stops == 0 && answer.len() == 12),
        }
    }
    assert!(finishes.contains(&Finish::Stop) && finishes.contains(&Finish::Length), "{finishes:?}");
    let done =
        [Request { generated: vec![1; 12], ..request(0, CUT) }, Request { generated: vec![1, 3], ..request(1, CUT) }];
    let (answers, finishes) = run(&model, &done, HEAD);
    assert_eq!((answers.concat(), finishes), (Vec::new(), vec![Finish::Length, Finish::Stop]));
}

#[test]
fn refusals_name_the_request_before_anything_is_drawn() {
    let model = model(true, 15);
    let refused = |bad: Request| {
        let requests = [request(0, CUT), bad];
        let never = |_, _| -> ControlFlow<()> { panic!("a token was drawn") };
        generate(&model, &requests, HEAD, never).unwrap_err().to_string()
    };
    let cold = refused(request(1, Filters { temperature: 0.0, ..CUT }));
    assert_eq!(cold, "request 1 asks for temperature 0: greedy decoding is a point mass and has no ratio");
    let wide = refused(request(1, Filters { top_p: 1.1, ..CUT }));
    assert_eq!(wide, "request 1: top_p is 1.1, wanted a number in (0, 1]");
    let long = refused(Request { max_new: 61, ..request(1, CUT) });
    assert_eq!(long, "position 64 of row 1 is beyond max_position_embeddings 64");
    assert_eq!(refused(Request { prompt: Vec::new(), ..request(1, CUT) }), "row 1 has no tokens");
}

#[test]
fn greedy_takes_the_largest_and_says_how_likely_it_was() {
    let model = model(false, 16);
    let prompts = [ids(4, 1, 40), ids(9, 2, 40)];
    let answers = greedy(&model, &prompts, 6, &[]).unwrap();
    for (prompt, answer) in prompts.iter().zip(&answers) {
        let given: Vec<u32> = answer.iter().map(|(token, _)| *token).collect();
        let request = Request { prompt: prompt.clone(), ..request(0, PLAIN) };
        for ((token, log_p), row) in answer.iter().zip(logits(&model, &request, &given)) {
            let all: Vec<u32> = (0..40).collect();
            let want = log_probs(&row, &all, 1.0, Over::Vocabulary).unwrap();
            assert!((want[*token as usize] - log_p).abs() < 5e-5);
            assert!(want.iter().all(|x| *x <= log_p + 5e-5));
        }
    }
}
