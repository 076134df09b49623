//! The forward pass: gradients reach every parameter, the cache changes nothing, and another implementation agrees.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use candle_core::{Device, Tensor};
use common::{device, floats, ids, largest, model, worst};
use lockstep_engine::{Error, Pass, Qwen3, Weights};
use std::collections::HashMap;

/// candle_transformers' Qwen3 gives a gradient to 1 of 24 parameters and says nothing; this is the test it would fail.
#[test]
fn every_parameter_has_a_gradient() {
    for tied in [true, false] {
        let model = model(tied, 1);
        let rows = [ids(9, 1, 40), ids(4, 2, 40)];
        let hidden = model.hidden_packed(&[&rows[0], &rows[1]], Pass::Train).unwrap();
        let loss = model.logits(&hidden).unwrap().sqr().unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        for (name, var) in model.weights().iter() {
            let grad = grads.get(var).unwrap_or_else(|| panic!("{name} has no gradient"));
            assert!(largest(&floats(grad)) > 0.0, "{name} has a gradient of zeros");
        }
    }
}

/// A packed batch is the sum of its rows, in the loss and in every gradient.
#[test]
fn packed_rows_do_not_see_each_other() {
    let model = model(false, 8);
    let rows: Vec<Vec<u32>> = [5, 1, 11].iter().map(|n| ids(*n, *n as u64, 40)).collect();
    let grads = |rows: &[&[u32]]| {
        let logits = model.logits(&model.hidden_packed(rows, Pass::Train).unwrap()).unwrap();
        logits.sqr().unwrap().sum_all().unwrap().backward().unwrap()
    };
    let packed = grads(&[&rows[0], &rows[1], &rows[2]]);
    let alone: Vec<_> = rows.iter().map(|row| grads(&[row])).collect();
    for (name, var) in model.weights().iter() {
        let sum = alone.iter().map(|grads| grads.get(var).unwrap().clone()).reduce(|a, b| (a + b).unwrap()).unwrap();
        let (got, want) = (floats(packed.get(var).unwrap()), floats(&sum));
        assert!(worst(&got, &want) <= 2e-5 * largest(&want), "{name}");
    }
}

fn last_logits(model: &Qwen3, row: &[u32]) -> Vec<f32> {
    let hidden = model.hidden_packed(&[row], Pass::Score).unwrap();
    floats(&model.logits(&hidden.narrow(0, row.len() - 1, 1).unwrap()).unwrap())
}

/// Rows of different lengths, decoded in steps of different lengths, rows leaving on the way.
#[test]
fn cached_ragged_decoding_equals_the_full_forward() {
    let model = model(true, 2);
    let rows: Vec<Vec<u32>> = [7, 1, 12, 5].iter().map(|n| ids(n + 20, *n as u64, 40)).collect();
    let mut held = [7, 1, 12, 5];
    let mut live: Vec<usize> = (0..4).collect();
    let mut cache = model.cache(4);
    let mut new: Vec<&[u32]> = live.iter().map(|r| &rows[*r][..held[*r]]).collect();
    for step in 0..8 {
        let logits = model.logits(&model.hidden_cached(&new, &mut cache).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        for (got, row) in logits.iter().zip(&live) {
            let want = last_logits(&model, &rows[*row][..held[*row]]);
            let worst = worst(got, &want);
            assert!(worst <= 5e-5, "row {row}, {} tokens: {worst:e} of {}", held[*row], largest(&want));
        }
        if step == 3 {
            cache.keep(|place| place != 1);
            live.remove(1);
        }
        new = live.iter().map(|r| &rows[*r][held[*r]..held[*r] + 1 + r % 2]).collect();
        live.iter().for_each(|r| held[*r] += 1 + r % 2);
    }
    assert_eq!(cache.len(0), held[0] - 1);
}

#[test]
fn padding_behind_a_row_changes_nothing_before_it() {
    let model = model(false, 3);
    let row = ids(6, 1, 40);
    let mut batch = row.clone();
    batch.extend([0; 4]);
    batch.extend(ids(10, 2, 40));
    let batch = Tensor::from_vec(batch, (2, 10), &device()).unwrap();
    let padded = model.hidden(&batch).unwrap().narrow(0, 0, 1).unwrap().narrow(1, 0, 6).unwrap();
    let alone = model.hidden_packed(&[&row], Pass::Score).unwrap();
    assert!(worst(&floats(&padded), &floats(&alone)) <= 5e-6);
}

/// On the CPU, wherever the model is.
fn theirs(model: &Qwen3) -> candle_transformers::models::qwen3::ModelForCausalLM {
    let c = model.config();
    let config = candle_transformers::models::qwen3::Config {
        vocab_size: c.vocab,
        hidden_size: c.hidden,
        intermediate_size: c.inter,
        num_hidden_layers: c.layers,
        num_attention_heads: c.heads,
        head_dim: c.head_dim,
        attention_bias: false,
        num_key_value_heads: c.kv_heads,
        max_position_embeddings: c.max_positions,
        sliding_window: None,
        max_window_layers: c.layers,
        tie_word_embeddings: c.tied,
        rope_theta: c.rope_theta,
        rms_norm_eps: c.rms_eps,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    };
    let on_cpu = |var: &candle_core::Var| var.as_detached_tensor().to_device(&Device::Cpu).unwrap();
    let tensors: HashMap<_, _> = model.weights().iter().map(|(name, var)| (name.to_owned(), on_cpu(var))).collect();
    let vars = candle_nn::VarBuilder::from_tensors(tensors, candle_core::DType::F32, &Device::Cpu);
    candle_transformers::models::qwen3::ModelForCausalLM::new(&config, vars).unwrap()
}

#[test]
fn another_implementation_agrees() {
    for tied in [true, false] {
        let model = model(tied, 4);
        let row = ids(30, 5, 40);
        let batch = Tensor::from_slice(&row, (1, 30), &Device::Cpu).unwrap();
        let want = floats(&theirs(&model).forward(&batch, 0).unwrap());
        let worst = worst(&last_logits(&model, &row), &want);
        assert!(worst <= 5e-5, "{worst:e} of {}", largest(&want));
    }
}

#[test]
fn updates_in_place_reach_both_readings() {
    let model = model(true, 5);
    let row = ids(5, 1, 40);
    let before = last_logits(&model, &row);
    let kept = model.weights().snapshot().unwrap();
    model.weights().assign(&Weights::random(model.config(), 6, 0.3).unwrap()).unwrap();
    let after = last_logits(&model, &row);
    assert!(worst(&before, &after) > 0.1);
    let tracked = model.logits(&model.hidden_packed(&[&row], Pass::Train).unwrap().narrow(0, 4, 1).unwrap()).unwrap();
    assert_eq!(floats(&tracked), after);
    model.weights().assign(&kept).unwrap();
    assert_eq!(last_logits(&model, &row), before);
}

#[test]
fn refusals_carry_the_numbers() {
    let model = model(true, 1);
    let message = |rows: &[&[u32]]| model.hidden_packed(rows, Pass::Score).unwrap_err().to_string();
    assert_eq!(message(&[&[1], &[2, 40]]), "token 40 at place 1 of row 1 is outside a vocabulary of 40");
    assert_eq!(message(&[&[]]), "row 0 has no tokens");
    assert_eq!(message(&[&[0; 65]]), "position 64 of row 0 is beyond max_position_embeddings 64");
    let rows = model.hidden_cached(&[&[1]], &mut model.cache(3)).unwrap_err();
    assert!(matches!(rows, Error::Rows { got: 1, want: 3 }));
}
