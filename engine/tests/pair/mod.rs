//! A sampler and a trainer on one small model, and batches that went from one to the other.

#![allow(dead_code, reason = "every test binary compiles this file and uses a part of it")]

use crate::common::{config, device, here, ids, is_plain, model};
use candle_core::DType;
use lockstep_core::delta::Delta;
use lockstep_core::dlc::{LagClip, Rule, TailModel};
use lockstep_core::plan::{Batch, BatchPlan, PromptGroup};
use lockstep_core::ports::{DeltaStream, PortResult, SampleRequest, Sampler, StepOptions};
use lockstep_core::reward::{RewardBook, ScoredBatch};
use lockstep_core::rollout::Rollout;
use lockstep_core::sampling::{Limits, SamplingParams, Truncation};
use lockstep_core::score::{RolloutLogProbs, select, versions};
use lockstep_core::token::TokenId;
use lockstep_core::version::WeightVersion;
use lockstep_engine::{
    Numerics, Optimiser, Qwen3, Qwen3Sampler, Qwen3Trainer, SamplerPort, TrainResult, Weights, optimiser::Gradients,
    trainer::Settings,
};
use lockstep_kernels::adamw::AdamW;
use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park};

pub(crate) const CUT: Truncation = Truncation { top_k: 9, top_p: 0.95, min_p: 0.0 };

pub(crate) const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<R>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
    let waker = Waker::from(Arc::new(Unpark(current())));
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => park(),
        }
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    wait(|context| future.as_mut().poll(context))
}

pub(crate) fn next(stream: &mut DeltaStream) -> Option<PortResult<Delta>> {
    wait(|context| Pin::as_mut(stream).poll_next(context))
}

pub(crate) fn collect(mut stream: DeltaStream) -> Vec<Delta> {
    std::iter::from_fn(|| next(&mut stream)).collect::<PortResult<_>>().unwrap()
}

pub(crate) fn params(truncation: Truncation, max_new_tokens: u32) -> SamplingParams {
    let limits = Limits { stop: vec![TokenId(3)], max_new_tokens };
    SamplingParams::new(0.8, truncation, limits, 5).unwrap()
}

/// `groups` prompts with 4 answers each.
pub(crate) fn plan(number: u64, groups: usize, params: &SamplingParams) -> BatchPlan {
    let group = |at: usize| PromptGroup {
        prompt: ids(2 + at % 4, 100 * number + at as u64, 40).into_iter().map(TokenId).collect(),
        answers: vec![params.clone(); 4],
    };
    BatchPlan::open(number, (0..groups).map(group).collect()).unwrap()
}

pub(crate) fn requests(plan: &BatchPlan) -> Vec<SampleRequest> {
    plan.requests().iter().map(|request| SampleRequest { request: request.clone(), resumed: vec![] }).collect()
}

pub(crate) fn seal(mut plan: BatchPlan, deltas: &[Delta]) -> Batch {
    for request in plan.requests().to_vec() {
        let id = request.id;
        let own = deltas.iter().filter(|delta| delta.rollout == id).cloned();
        plan.arrive(Rollout::fold(request, own).unwrap()).unwrap();
    }
    plan.seal().unwrap()
}

pub(crate) fn sample(sampler: &SamplerPort, plan: BatchPlan) -> Batch {
    let deltas = collect(block_on(sampler.generate(requests(&plan))).unwrap());
    seal(plan, &deltas)
}

/// Rewards that depend on the tokens.
pub(crate) fn reward(batch: Batch) -> ScoredBatch {
    let mut book = RewardBook::default();
    for rollout in batch.rollouts() {
        let reward = rollout.sampled().map(|token| f64::from(token.0 % 5)).sum::<f64>() / rollout.len() as f64;
        book.post(rollout.id(), reward).unwrap();
    }
    batch.with_rewards(&mut book).unwrap()
}

pub(crate) fn rule() -> AdamW {
    AdamW { lr: 3e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.01 }
}

/// Small passes and small chunks of logits, so that a test has several of each.
pub(crate) fn settings(directory: &Path) -> Settings {
    Settings { tokens_per_pass: 60, logits_bytes: 4 * 40 * 7, device: device(), ..Settings::new(directory) }
}

pub(crate) fn copy(model: &Qwen3) -> Qwen3 {
    model.with_weights(model.weights().snapshot().unwrap()).unwrap()
}

pub(crate) fn trainer(tied: bool, directory: &Path) -> Qwen3Trainer {
    let model = model(tied, 21);
    let optimiser = Optimiser::new(model.weights(), rule(), 1.0);
    Qwen3Trainer::new(model, optimiser, FIRST, settings(directory))
}

/// A sampler with a copy of a model's weights, where the model is.
pub(crate) fn drawing(model: &Qwen3, version: WeightVersion) -> Qwen3Sampler {
    Qwen3Sampler::on(model, version, &model.weights().device(), Numerics::Exact).unwrap()
}

pub(crate) fn sampler(trainer: &Qwen3Trainer, listed: usize) -> SamplerPort {
    SamplerPort::new(drawing(trainer.model(), trainer.version()).listing(listed)).unwrap()
}

pub(crate) fn log_s(trainer: &Qwen3Trainer, batch: &Batch) -> Vec<RolloutLogProbs> {
    let scored: Vec<_> = versions(batch).unwrap().into_iter().map(|v| trainer.score(batch, v).unwrap()).collect();
    select(batch, &scored).unwrap()
}

pub(crate) fn dlc(tail: TailModel) -> StepOptions {
    StepOptions { rule: Rule::Dlc { lag_clip: LagClip::new(0.0, 2.0).unwrap(), tail }, horizon: 24 }
}

/// Steps on a batch of its own, `times` over.
pub(crate) fn train(trainer: &mut Qwen3Trainer, times: usize) {
    let sampler = sampler(trainer, 128);
    let scored = reward(sample(&sampler, plan(77, 4, &params(CUT, 8))));
    for _ in 0..times {
        let log_s = log_s(trainer, scored.batch());
        trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
    }
}

pub(crate) fn values(gradients: &Gradients, name: &str) -> Vec<f32> {
    gradients.values(name).unwrap().unwrap()
}

/// What [`Qwen3Trainer::save`] wrote, as the tests compute.
pub(crate) fn restore(saved: &Path, published: &Path) -> TrainResult<Qwen3Trainer> {
    let trainer = Qwen3Trainer::restore(saved, (rule(), 1.0), settings(published))?;
    Ok(if is_plain() { trainer.with_plain_operations(DType::F32) } else { trainer })
}

pub(crate) fn bits(weights: &Weights) -> Vec<u8> {
    weights.digest().unwrap().to_vec()
}

pub(crate) fn load(path: &str, tied: bool) -> Qwen3 {
    let config = config(tied);
    let weights = Weights::load_file(Path::new(path), &config).unwrap();
    here(&Qwen3::new(config, weights).unwrap())
}
