//! The optimiser's state, the worker, and a warm start.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use candle_core::{D, Tensor};
use common::{config, ids, model};
use lockstep_core::ports::PortError;
use lockstep_engine::optimiser::Gradients;
use lockstep_engine::supervised::{Example, supervised_step};
use lockstep_engine::{Optimiser, Pass, Qwen3, Weights, Worker};
use pair::{block_on, copy, rule, values};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::tempdir;

/// A gradient that only depends on `seed`.
fn gradients(weights: &Weights, seed: u64) -> Gradients {
    let mut gradients = Gradients::zeros(weights);
    for ((name, _), stream) in weights.iter().zip(0..) {
        let n = values(&gradients, name).len() as u64;
        let noise = (0..n).map(|i| lockstep_kernels::philox::normal(seed, stream, i) as f32).collect();
        gradients.set(name, noise).unwrap();
    }
    gradients
}

#[test]
fn a_restored_optimiser_goes_on_with_the_same_bits() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("optimiser.safetensors");
    let whole = model(true, 1);
    let mut optimiser = Optimiser::new(whole.weights(), rule(), 1.0);
    for seed in 0..3 {
        optimiser.update(whole.weights(), &gradients(whole.weights(), seed)).unwrap();
    }
    optimiser.save(&path).unwrap();
    let other = copy(&whole);
    let mut restored = Optimiser::load(&path, other.weights(), (rule(), 1.0)).unwrap();
    assert_eq!(restored, optimiser);
    for seed in 3..6 {
        let norm = optimiser.update(whole.weights(), &gradients(whole.weights(), seed)).unwrap();
        assert_eq!(restored.update(other.weights(), &gradients(other.weights(), seed)).unwrap(), norm);
        assert!((norm / (whole.weights().floats() as f64).sqrt() - 1.0).abs() < 0.02, "norm before clipping {norm}");
    }
    assert_eq!(whole.weights().digest().unwrap(), other.weights().digest().unwrap());
    assert_eq!((restored.steps(), &restored), (6, &optimiser));
}

#[test]
fn state_of_another_model_and_damaged_files_are_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("optimiser.safetensors");
    let (tied, untied) = (model(true, 1), model(false, 1));
    let load = |model: &Qwen3| Optimiser::load(&path, model.weights(), (rule(), 1.0)).unwrap_err().to_string();
    assert!(load(&tied).contains("optimiser.safetensors: No such file"));
    Optimiser::new(tied.weights(), rule(), 1.0).save(&path).unwrap();
    assert_eq!(load(&untied), "tensor m.lm_head.weight of shape [1280] is missing");
    Optimiser::new(untied.weights(), rule(), 1.0).save(&path).unwrap();
    assert!(load(&tied).starts_with("2 unexpected tensors, the first is "), "{}", load(&tied));
    let narrow = lockstep_engine::Config { inter: 48, ..config(false) };
    let narrow = Qwen3::new(narrow.clone(), Weights::random(&narrow, 1, 0.1).unwrap()).unwrap();
    let shape = load(&narrow);
    assert_eq!(shape, "tensor m.model.layers.0.mlp.down_proj.weight has shape [2048], the config wants [1536]");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    assert!(load(&untied).contains("optimiser.safetensors: "));
    let mut optimiser = Optimiser::new(tied.weights(), rule(), 1.0);
    let before = tied.weights().digest().unwrap();
    let mut bad = gradients(tied.weights(), 1);
    let mut spoilt = values(&bad, "model.norm.weight");
    spoilt[3] = f32::NAN;
    bad.set("model.norm.weight", spoilt).unwrap();
    let refused = optimiser.update(tied.weights(), &bad).unwrap_err().to_string();
    assert_eq!(refused, "gradient of model.norm.weight has norm NaN; nothing was changed");
    assert!(optimiser.update(untied.weights(), &gradients(untied.weights(), 1)).is_err());
    assert_eq!((optimiser.steps(), tied.weights().digest().unwrap()), (0, before));
}

#[test]
fn clipping_scales_the_whole_gradient_as_one_vector() {
    let (clipped, scaled) = (model(true, 1), model(true, 1));
    let gradient = gradients(clipped.weights(), 4);
    let norm = gradient.norm().unwrap();
    let mut by_hand = gradient.clone();
    for (name, _) in scaled.weights().iter() {
        let scaled = values(&gradient, name).iter().map(|g| g * (1.0 / norm) as f32).collect();
        by_hand.set(name, scaled).unwrap();
    }
    Optimiser::new(clipped.weights(), rule(), 1.0).update(clipped.weights(), &gradient).unwrap();
    Optimiser::new(scaled.weights(), rule(), f64::INFINITY).update(scaled.weights(), &by_hand).unwrap();
    assert_eq!(clipped.weights().digest().unwrap(), scaled.weights().digest().unwrap());
}

/// The answer repeats the prompt.
fn copying(n: u64) -> Vec<Example> {
    let example = |at| {
        let answer = ids(2, at, 12);
        Example { prompt: [answer.clone(), vec![20]].concat(), answer }
    };
    (0..n).map(example).collect()
}

#[test]
fn the_loss_falls_on_a_copy_task_from_the_value_of_a_plain_softmax() {
    let model = model(true, 8);
    let mut optimiser = Optimiser::new(model.weights(), rule(), 1.0);
    let examples = copying(16);
    let mut sum = 0.0;
    for Example { prompt, answer } in &examples {
        let row = [prompt.as_slice(), &answer[..1]].concat();
        let logits = model.logits(&model.hidden_packed(&[&row], Pass::Score).unwrap()).unwrap();
        let logits = logits.narrow(0, 2, 2).unwrap();
        let target = Tensor::from_slice(answer, (2, 1), &common::device()).unwrap();
        let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap().gather(&target, D::Minus1).unwrap();
        sum -= log_p.sum_all().unwrap().to_scalar::<f32>().unwrap();
    }
    let first = supervised_step(&model, &mut optimiser, &examples).unwrap();
    assert!((first - f64::from(sum) / 32.0).abs() < 1e-5 * first, "{first}");
    let last = (0..60).map(|_| supervised_step(&model, &mut optimiser, &examples).unwrap()).last().unwrap();
    assert!(last < 0.2 * first, "from {first} to {last}");
}

#[test]
fn examples_without_an_answer_or_a_prompt_are_refused() {
    let model = model(true, 8);
    let mut optimiser = Optimiser::new(model.weights(), rule(), 1.0);
    let mut refused = |prompt: &[u32], answer: &[u32]| {
        let example = Example { prompt: prompt.to_vec(), answer: answer.to_vec() };
        supervised_step(&model, &mut optimiser, &[example]).unwrap_err().to_string()
    };
    assert_eq!(refused(&[1], &[]), "the batch has no tokens to train on");
    assert_eq!(refused(&[], &[1]), "example 0, position 0: nothing stands before the token");
    assert_eq!(refused(&[1], &[2, 40]), "example 0, position 1: token 40 is outside the vocabulary of 40");
    assert_eq!(refused(&[50], &[2]), "token 50 at place 0 of row 0 is outside a vocabulary of 40");
}

#[test]
fn a_worker_does_its_jobs_in_order_and_a_panic_is_told() {
    let worker = Worker::start("counter", Vec::<u32>::new()).unwrap();
    let calls: Vec<_> = (0..20).map(|n| worker.call(move |seen| seen.push(n))).collect();
    calls.into_iter().for_each(|call| block_on(call).unwrap());
    assert_eq!(block_on(worker.call(|seen| seen.clone())).unwrap(), (0..20).collect::<Vec<_>>());
    let deep = |seen: &mut Vec<u32>| {
        fn down(n: u32) -> u32 {
            let pad = std::hint::black_box([n; 256]);
            if n == 0 { 0 } else { down(n - 1) + pad[7] - n }
        }
        seen.len() as u32 + down(20_000)
    };
    assert_eq!(block_on(worker.call(deep)).unwrap(), 20);
    let broken = block_on(worker.call(|seen: &mut Vec<u32>| -> u32 { panic!("after {} jobs", seen.len()) }));
    assert_eq!(broken, Err(PortError::Failed("worker counter panicked: after 20 jobs".into())));
    let stopped = block_on(worker.call(|seen: &mut Vec<u32>| seen.len()));
    assert_eq!(stopped, Err(PortError::Failed("worker counter has stopped".into())));
}

#[test]
fn dropping_a_worker_waits_for_its_jobs() {
    let done = Arc::new(AtomicBool::new(false));
    let worker = Worker::start("slow", done.clone()).unwrap();
    drop(worker.call(|done| {
        std::thread::sleep(std::time::Duration::from_millis(30));
        done.store(true, Ordering::SeqCst);
    }));
    drop(worker);
    assert!(done.load(Ordering::SeqCst));
}
