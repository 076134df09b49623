//! The engine against torch: logits and the gradient of every parameter. Reads the committed fixtures, or those in
//! `LOCKSTEP_PARITY_DIR`. At |logit| ~ 10 torch's own f32 is 1.3e-5 from its f64 in the logits, and its two attention
//! implementations are 1.6e-6 apart in the gradients; over 36 random models this engine was at most 1.4e-5 and 5.6e-6 from
//! torch.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the figures are what this test is run for")]

mod common;

use candle_core::{D, DType, Tensor};
use common::{device, floats, here, largest, worst};
use lockstep_engine::{Config, Pass, Qwen3, Weights};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const LOGITS: f32 = 5e-5;
const GRADIENTS: f32 = 2e-5;

fn fixtures() -> PathBuf {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/testdata/qwen3");
    std::env::var_os("LOCKSTEP_PARITY_DIR").map_or(committed, PathBuf::from)
}

/// `log p(ids[t + 1] | ids[..= t])`: `[B, L - 1]`.
fn token_log_probs(logits: &Tensor, ids: &Tensor) -> Tensor {
    let l = ids.dim(1).unwrap();
    let all = candle_nn::ops::log_softmax(&logits.narrow(1, 0, l - 1).unwrap(), D::Minus1).unwrap();
    let next = ids.narrow(1, 1, l - 1).unwrap().unsqueeze(2).unwrap().contiguous().unwrap();
    all.gather(&next, D::Minus1).unwrap().squeeze(2).unwrap()
}

fn compare_gradients(model: &Qwen3, want: &HashMap<String, Tensor>, loss: &Tensor) -> (f32, String) {
    let grads = loss.backward().unwrap();
    let expected = want.keys().filter(|name| name.starts_with("grad.")).count();
    assert_eq!(model.weights().iter().count(), expected, "parameters");
    let relative = model.weights().iter().map(|(name, var)| {
        let got = grads.get(var).unwrap_or_else(|| panic!("{name} has no gradient"));
        let want = floats(&want[&format!("grad.{name}")]);
        (worst(&floats(got), &want) / largest(&want), name.to_owned())
    });
    relative.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

fn compare(name: &str) {
    let dir = fixtures().join(name);
    let config = Config::load(&dir).unwrap();
    let model = here(&Qwen3::new(config.clone(), Weights::load(&dir, &config).unwrap()).unwrap());
    let want = candle_core::safetensors::load(dir.join("reference.safetensors"), &device()).unwrap();
    let ids = want["ids"].to_dtype(DType::U32).unwrap();
    let logits = model.logits(&model.hidden(&ids).unwrap()).unwrap();
    let logit = worst(&floats(&logits), &floats(&want["logits"]));
    let logp = token_log_probs(&logits, &ids);
    let log_prob = worst(&floats(&logp), &floats(&want["logp"]));
    let loss = (logp * &want["coef"]).unwrap().sum_all().unwrap();
    let (gradient, at) = compare_gradients(&model, &want, &loss);
    let scale = largest(&floats(&want["logits"]));
    println!(
        "{name}: max |logit| {scale:.2}, worst logit {logit:.2e}, log-prob {log_prob:.2e}, gradient {gradient:.2e} ({at})"
    );
    assert!(logit <= LOGITS, "{name}: logits differ by {logit:e}");
    assert!(log_prob <= LOGITS, "{name}: log-probs differ by {log_prob:e}");
    assert!(gradient <= GRADIENTS, "{name}: gradient of {at} differs by {gradient:e} of its largest entry");
    let rows = ids.to_vec2::<u32>().unwrap();
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let scored = model.logits(&model.hidden_packed(&rows, Pass::Score).unwrap()).unwrap();
    assert!(!scored.track_op());
    assert_eq!(floats(&scored), floats(&logits), "scoring and training run the same numbers");
}

#[test]
fn tied_model_in_one_file() {
    compare("tied");
}

#[test]
fn untied_model_in_two_files() {
    compare("untied");
}
