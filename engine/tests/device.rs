//! The operations a card runs, on the device that `LOCKSTEP_DEVICE` names, against the fused ones on the CPU: one body, two
//! devices. Without the variable the CPU runs both.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use candle_core::{DType, Device, Tensor};
use common::{device, floats, ids, largest, on_cpu, worst};
use lockstep_core::dlc::TailModel;
use lockstep_core::ports::Control;
use lockstep_core::sampling::Truncation;
use lockstep_engine::generate::{Drawing, Filters, Request, generate, greedy};
use lockstep_engine::memory::{self, Load};
use lockstep_engine::supervised::{Example, supervised_step};
use lockstep_engine::{
    AdamW, Config, Numerics, Optimiser, Pass, Qwen3, Qwen3Sampler, Qwen3Trainer, SamplerPort, Weights,
};
use lockstep_kernels::q8;
use pair::*;
use std::ops::ControlFlow;
use tempfile::tempdir;

/// The model with candle's own operations on the device under test.
fn plain(fused: &Qwen3, dtype: DType) -> Qwen3 {
    fused.to_device(&device()).unwrap().with_plain_operations(dtype)
}

fn rows() -> Vec<Vec<u32>> {
    [5, 1, 11, 7].iter().map(|n| ids(*n, *n as u64, 40)).collect()
}

fn slices(rows: &[Vec<u32>]) -> Vec<&[u32]> {
    rows.iter().map(Vec::as_slice).collect()
}

fn hidden(model: &Qwen3) -> Vec<f32> {
    floats(&model.hidden_packed(&slices(&rows()), Pass::Score).unwrap())
}

#[test]
fn a_forward_agrees_with_the_fused_one() {
    for tied in [true, false] {
        let fused = on_cpu(tied, 8);
        let want = hidden(&fused);
        assert!(worst(&hidden(&plain(&fused, DType::F32)), &want) <= 2e-5 * largest(&want));
        let off = worst(&hidden(&plain(&fused, DType::BF16)), &want);
        assert!(off > 0.0 && off <= 0.1 * largest(&want), "bf16 is {off} off, of {}", largest(&want));
    }
}

#[test]
fn gradients_agree_with_the_fused_ones() {
    let fused = on_cpu(false, 8);
    let gradients = |model: &Qwen3| {
        let hidden = model.hidden_packed(&slices(&rows()), Pass::Train).unwrap();
        let grads = model.logits(&hidden).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let of = |(name, var): (&str, &candle_core::Var)| (name.to_owned(), floats(grads.get(var).unwrap()));
        model.weights().iter().map(of).collect::<Vec<_>>()
    };
    let want = gradients(&fused);
    for (dtype, tolerance) in [(DType::F32, 5e-5), (DType::BF16, 0.2)] {
        for ((name, got), (_, want)) in gradients(&plain(&fused, dtype)).iter().zip(&want) {
            assert!(largest(got) > 0.0, "{name} has a gradient of zeros");
            assert!(worst(got, want) <= tolerance * largest(want), "{name} in {dtype:?}: {}", worst(got, want));
        }
    }
}

/// Rows of different lengths, some leaving on the way, over more tokens than a first allocation holds.
#[test]
fn cached_decoding_equals_the_full_forward() {
    let model = plain(&on_cpu(true, 2), DType::F32);
    let rows: Vec<Vec<u32>> = [7, 1, 12, 5].iter().map(|n| ids(n + 20, *n as u64, 40)).collect();
    let mut held = [7, 1, 12, 5];
    let mut live: Vec<usize> = (0..4).collect();
    let mut cache = model.cache(4);
    let mut new: Vec<&[u32]> = live.iter().map(|row| &rows[*row][..held[*row]]).collect();
    for step in 0..6 {
        let got = model.hidden_cached(&new, &mut cache).unwrap();
        for (at, row) in live.iter().enumerate() {
            let full = model.hidden_packed(&[&rows[*row][..held[*row]]], Pass::Score).unwrap();
            let want = floats(&full.narrow(0, held[*row] - 1, 1).unwrap());
            let got = floats(&got.narrow(0, at, 1).unwrap());
            assert!(worst(&got, &want) <= 2e-5 * largest(&want), "step {step}, row {row}");
        }
        let goes_on = |row: usize| step != row + 2;
        let before = live.clone();
        cache.keep(|at| goes_on(before[at]));
        live.retain(|row| goes_on(*row));
        new = Vec::new();
        for row in &live {
            let more = 1 + (step + row) % 2;
            new.push(&rows[*row][held[*row]..held[*row] + more]);
            held[*row] += more;
        }
    }
}

#[test]
fn answers_and_their_distributions_agree_with_the_fused_ones() {
    let fused = on_cpu(true, 4);
    let other = plain(&fused, DType::F32);
    let prompts = [ids(6, 1, 40), ids(3, 2, 40)];
    let tokens = |model| greedy(model, &prompts, 12, &[3]).unwrap();
    for (got, want) in tokens(&other).iter().flatten().zip(tokens(&fused).iter().flatten()) {
        assert!(got.0 == want.0 && (got.1 - want.1).abs() < 1e-4, "{got:?} {want:?}");
    }
    let filters = Filters { temperature: 0.9, top_k: 12, top_p: 0.9, min_p: 0.0 };
    let request = |number: u64| Request {
        prompt: prompts[number as usize].clone(),
        generated: Vec::new(),
        filters,
        seed: 5,
        number,
        stop: vec![],
        max_new: 10,
    };
    let requests: Vec<Request> = (0..2).map(request).collect();
    let mut drawn = 0;
    generate(&other, &requests, 4, |_, token| {
        let Drawing::Kept { ids, log_q } = &token.drawing else { panic!("a truncated row without its support") };
        let place = ids.iter().position(|id| *id == token.token).unwrap();
        assert!((log_q[place] - token.log_q).abs() < 1e-12);
        assert!((log_q.iter().map(|x| x.exp()).sum::<f64>() - 1.0).abs() < 1e-9);
        drawn += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(drawn, 20);
}

/// The matrices of a model in Q8_0, against a model of floats that have the rounded values.
#[test]
fn a_model_in_q8_agrees_with_its_rounded_floats() {
    for tied in [true, false] {
        let exact = on_cpu(tied, 12);
        let rounded = Weights::random(exact.config(), 12, 0.3).unwrap();
        for (_, var) in rounded.iter().filter(|(_, var)| var.rank() == 2) {
            let bytes = q8::quantise(&floats(var.as_tensor())).unwrap();
            let values = q8::Q8::new(&bytes, var.dim(1).unwrap()).unwrap().weights();
            var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
        }
        let rounded = Qwen3::new(exact.config().clone(), rounded).unwrap();
        let in_q8 = Qwen3::in_q8(exact.config().clone(), exact.weights(), &device()).unwrap();
        // On a card between bf16 activations.
        let tolerance = if device().is_cpu() { 2e-5 } else { 0.1 };
        let (want, got) = (hidden(&rounded), hidden(&in_q8));
        assert!(worst(&got, &want) <= tolerance * largest(&want), "{}", worst(&got, &want));
        assert!(worst(&hidden(&exact), &want) > 1e-3 * largest(&want), "Q8_0 rounds nothing");
        let logits = |model: &Qwen3| {
            let states = model.hidden_packed(&slices(&rows()), Pass::Score).unwrap();
            floats(&model.logits(&states).unwrap())
        };
        assert!(worst(&logits(&in_q8), &logits(&rounded)) <= tolerance * largest(&logits(&rounded)));
        let refused = in_q8.hidden_packed(&slices(&rows()), Pass::Train).unwrap_err().to_string();
        assert!(refused.contains("Q8_0 is to sample with"), "{refused}");
        assert!(in_q8.weights().iter().all(|(_, var)| var.rank() == 1), "floats are kept beside the blocks");
    }
}

/// Some steps of the whole trainer: forward, head, backward, optimiser, against the fused one.
#[test]
fn supervised_steps_lead_to_the_fused_weights() {
    let fused = on_cpu(true, 6);
    let other = plain(&fused, DType::F32);
    let example = |seed| Example { prompt: ids(4, seed, 40), answer: ids(5, seed + 50, 40) };
    let examples: Vec<Example> = (0..6).map(example).collect();
    let rule = AdamW { lr: 1e-3, betas: (0.9, 0.99), eps: 1e-6, weight_decay: 0.1 };
    let losses = [&fused, &other].map(|model| {
        let mut optimiser = Optimiser::new(model.weights(), rule, 1.0);
        (0..5).map(|_| supervised_step(model, &mut optimiser, &examples).unwrap()).collect::<Vec<f64>>()
    });
    for (want, got) in losses[0].iter().zip(&losses[1]) {
        assert!((want - got).abs() <= 1e-4 * want, "{losses:?}");
    }
    assert!(losses[0][4] < losses[0][0]);
}

/// A pair on the device: answers drawn, scored at their version, trained on, weights published and loaded; against a trainer on
/// the CPU that sees the same batches.
#[test]
fn a_pair_draws_scores_steps_and_loads() {
    let card = !device().is_cpu();
    for (numerics, most) in [(Numerics::Exact, if card { 0.1 } else { 1e-5 }), (Numerics::Q8, 0.2)] {
        let folder = tempdir().unwrap();
        let on = |model: Qwen3| {
            let optimiser = Optimiser::new(model.weights(), rule(), 1.0);
            Qwen3Trainer::new(model, optimiser, FIRST, settings(folder.path()))
        };
        let fused = on_cpu(true, 21);
        let (mut here, mut on_cpu) = (on(fused.to_device(&device()).unwrap()), on(copy(&fused)));
        let sampler = Qwen3Sampler::on(here.model(), FIRST, &device(), numerics).unwrap().listing(12);
        let sampler = SamplerPort::new(sampler).unwrap();
        for truncation in [CUT, Truncation::NONE] {
            let scored = reward(sample(&sampler, plan(1, 5, &params(truncation, 9))));
            let step = |trainer: &mut Qwen3Trainer| {
                let log_s = log_s(trainer, scored.batch());
                trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap()
            };
            let (got, want) = (step(&mut here), step(&mut on_cpu));
            assert_eq!(
                (got.terms.lag.max_abs, got.ess[0].1.sequence),
                (0.0, 1.0),
                "{numerics}: fresh weights have no lag"
            );
            assert!(got.terms.numeric.mean_abs <= most, "{numerics}: {:?}", got.terms.numeric);
            assert_eq!(numerics == Numerics::Exact && !card, got.terms.numeric.mean_abs < 1e-5);
            let off = (got.loss - want.loss).abs().max((got.gradient_norm / want.gradient_norm - 1.0).abs());
            assert!(off <= if card { 0.05 } else { 0.0 }, "{numerics}: {got:?} {want:?}");
            let stale = step(&mut here);
            assert!(stale.terms.lag.max_abs > 0.0 && stale.ess[0].1.sequence < 1.0, "{stale:?}");
            step(&mut on_cpu);
            let published = here.publish(here.version()).unwrap();
            let stamp = block_on(Control::load_weights(&sampler, &published)).unwrap();
            assert_eq!(stamp.version(), Some(here.version()));
        }
    }
}

#[test]
fn a_sampler_on_a_card_takes_half_the_bytes_of_its_matrices() {
    for tied in [true, false] {
        let fused = on_cpu(tied, 1);
        let sampling = fused.weights().for_sampling(&Device::Cpu, tied).unwrap();
        let bytes: usize = sampling.iter().map(|(_, var)| var.elem_count() * var.dtype().size_in_bytes()).sum();
        let load =
            Load { sequences: 1, longest: 1, tokens_per_pass: 1, longest_trained: 1, snapshots: 0, logits_bytes: 0 };
        assert_eq!(memory::sampler(fused.config(), &load, Numerics::Exact)["weights"], bytes as u64);
        let in_layer = |(name, var): &(&str, &candle_core::Var)| name.starts_with("model.layers.") && var.rank() == 2;
        let (layers, rest): (Vec<_>, Vec<_>) = fused.weights().iter().partition(in_layer);
        let blocks = layers.iter().map(|(_, var)| q8::quantise(&floats(var.as_tensor())).unwrap().len()).sum::<usize>();
        let bytes = blocks + 4 * rest.iter().map(|(_, var)| var.elem_count()).sum::<usize>();
        assert_eq!(memory::sampler(fused.config(), &load, Numerics::Q8)["weights"], bytes as u64);
        // The digest is of what the weights are, and the bf16 ones are others.
        assert_ne!(sampling.digest().unwrap(), fused.weights().digest().unwrap());
        sampling.assign(fused.weights()).unwrap();
        let model = Qwen3::new(fused.config().clone(), sampling).unwrap().with_plain_operations(DType::BF16);
        let (got, want) = (hidden(&model), hidden(&fused.clone().with_plain_operations(DType::BF16)));
        assert_eq!(worst(&got, &want), 0.0, "bf16 weights are what a forward makes of the f32 ones");
    }
}

fn qwen3(hidden: usize, inter: usize) -> Config {
    Config {
        vocab: 151_936,
        hidden,
        inter,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        max_positions: 40_960,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        tied: true,
        eos: vec![151_645],
    }
}

#[test]
fn the_qwen3_pairs_fit_their_cards() {
    let load = Load {
        sequences: 64,
        longest: 1536,
        tokens_per_pass: 2048,
        longest_trained: 1024,
        snapshots: 2,
        logits_bytes: 256 << 20,
    };
    let pairs = [
        ("0.6B on 80 GB", qwen3(1024, 3072), 596_049_920u64, 80_000_000_000),
        ("1.7B on 141 GB", qwen3(2048, 6144), 1_720_574_976, 141_000_000_000),
    ];
    for (name, config, parameters, card) in pairs {
        let (sampler, trainer) = (memory::sampler(&config, &load, Numerics::Exact), memory::trainer(&config, &load));
        assert!(memory::sampler(&config, &load, Numerics::Q8)["weights"] < sampler["weights"]);
        assert_eq!(trainer["master weights"], 4 * parameters, "{name}");
        assert_eq!(trainer["moments"], 8 * parameters, "{name}");
        assert_eq!(sampler["cache"], 28 * 2 * 8 * 128 * 2 * 64 * 1792, "{name}");
        let all = memory::total(&sampler) + memory::total(&trainer);
        assert!(all < card, "{name} takes {all} bytes: {sampler:?} {trainer:?}");
    }
}
