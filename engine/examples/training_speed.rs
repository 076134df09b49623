//! How fast the trainer is: a tiny model, 512 answers of 9 tokens, and where the time goes; and what DLC costs of it: the
//! arithmetic of its coefficients, and the scoring pass at the sampler's weights.
//!
//!     RAYON_NUM_THREADS=2 CANDLE_NUM_THREADS=1 cargo run --release -p lockstep-engine --example training_speed
//!
//! candle's own pool (`CANDLE_NUM_THREADS`, by default as large as rayon's) spins while it waits: with two threads it burns as
//! much as the work itself, so it is kept at one here and passes run side by side instead.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use lockstep_core::behavior::BehaviorDistribution;
use lockstep_core::delta::{Delta, FinishReason, KvHistory};
use lockstep_core::dlc::Rule;
use lockstep_core::plan::{Batch, BatchPlan, PromptGroup};
use lockstep_core::ports::StepOptions;
use lockstep_core::reward::{RewardBook, ScoredBatch};
use lockstep_core::rollout::Rollout;
use lockstep_core::sampling::{Limits, SamplingParams, Truncation};
use lockstep_core::score::RolloutLogProbs;
use lockstep_core::support::{Domain, Reported, Sampled, Support};
use lockstep_core::token::TokenId;
use lockstep_core::version::WeightVersion;
use lockstep_engine::generate::{Drawing, Drawn, Filters, Request, generate};
use lockstep_engine::trainer::Settings;
use lockstep_engine::{Config, Optimiser, Pass, Qwen3, Qwen3Sampler, Qwen3Trainer, Weights};
use lockstep_kernels::adamw::AdamW;
use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

const CONFIG: Config = Config {
    vocab: 32,
    hidden: 64,
    inter: 192,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    max_positions: 64,
    rope_theta: 1e6,
    rms_eps: 1e-6,
    tied: true,
    eos: Vec::new(),
};

const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

/// Entries of an untruncated distribution that are reported.
const LISTED: usize = 8;

/// The median of nine runs in milliseconds.
fn time<T>(name: &str, mut run: impl FnMut() -> Result<T, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut millis = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        run()?;
        millis.push(start.elapsed().as_secs_f64() * 1e3);
    }
    millis.sort_by(f64::total_cmp);
    println!("{name:<44} {:8.2} ms (least {:.2})", millis[4], millis[0]);
    Ok(())
}

fn support(drawn: Drawn) -> Result<Support, Box<dyn Error>> {
    let tokens = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
    let token = TokenId(drawn.token);
    Ok(match drawn.drawing {
        Drawing::Kept { ids, log_q } => Support::exact(token, tokens(ids), log_q)?,
        Drawing::Head { ids, log_q, log_rest } => {
            let domain = Domain::Vocabulary(CONFIG.vocab as u32);
            let reported = Reported { ids: tokens(ids), log_q, log_rest: Some(log_rest), domain };
            Support::new(Sampled { token, log_q: drawn.log_q }, reported)?
        }
    })
}

fn batch(model: &Qwen3, truncation: Truncation) -> Result<Batch, Box<dyn Error>> {
    let params = SamplingParams::new(1.0, truncation, Limits { stop: vec![], max_new_tokens: 9 }, 1)?;
    let group = |at: u32| PromptGroup {
        prompt: (0..10).map(|i| TokenId((at * 7 + i * 3) % 32)).collect(),
        answers: vec![params.clone(); 16],
    };
    let mut plan = BatchPlan::open(0, (0..32).map(group).collect())?;
    let filters = Filters { temperature: 1.0, top_k: 0, top_p: truncation.top_p, min_p: 0.0 };
    let requests: Vec<Request> = plan
        .requests()
        .iter()
        .zip(0..)
        .map(|(request, number)| Request {
            prompt: request.prompt.iter().map(|id| id.0).collect(),
            generated: Vec::new(),
            filters,
            seed: 1,
            number,
            stop: Vec::new(),
            max_new: 9,
        })
        .collect();
    let mut answers = vec![Vec::new(); requests.len()];
    generate(model, &requests, LISTED, |index, drawn| {
        answers[index].push(drawn);
        ControlFlow::Continue(())
    })?;
    let sampler = Qwen3Sampler::new(model, FIRST)?;
    for (request, answer) in plan.requests().to_vec().into_iter().zip(answers) {
        let mut behavior = BehaviorDistribution::default();
        for drawn in answer {
            behavior.push(&support(drawn)?);
        }
        let (rollout, stamp) = (request.id, sampler.stamp());
        let (profile, finish) = (sampler.capabilities().profile, Some(FinishReason::Length));
        let delta = Delta { rollout, start: 0, behavior, stamp, kv: KvHistory::Fresh, profile, finish };
        plan.arrive(Rollout::fold(request, [delta])?)?;
    }
    Ok(plan.seal()?)
}

fn measure(name: &str, truncation: Truncation) -> Result<(), Box<dyn Error>> {
    let model = Qwen3::new(CONFIG, Weights::random(&CONFIG, 1, 0.1)?)?;
    let rule = AdamW { lr: 1e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.0 };
    let optimiser = Optimiser::new(model.weights(), rule, 1.0);
    let batch = batch(&model, truncation)?;
    let mut book = RewardBook::default();
    for rollout in batch.rollouts() {
        book.post(rollout.id(), rollout.sampled().map(|token| f64::from(token.0 % 5)).sum())?;
    }
    let scored = batch.clone().with_rewards(&mut book)?;
    let entries: usize = scored.batch().rollouts().iter().map(|r| r.segments()[0].behavior.columns().ids.len()).sum();
    println!("{name}: {} tokens, {entries} support entries", batch.tokens());
    let rows: Vec<Vec<u32>> = batch
        .rollouts()
        .iter()
        .map(|rollout| {
            let row = rollout.prompt().iter().copied().chain(rollout.sampled());
            row.map(|id| id.0).take(18).collect()
        })
        .collect();
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    time("  forward alone, scoring", || Ok(model.hidden_packed(&rows, Pass::Score)?))?;
    time("  forward alone, training", || Ok(model.hidden_packed(&rows, Pass::Train)?))?;
    time("  forward and backward alone", || Ok(model.hidden_packed(&rows, Pass::Train)?.sum_all()?.backward()?))?;
    let mut trainer = Qwen3Trainer::new(model, optimiser, FIRST, Settings::new(std::env::temp_dir()));
    time("  score", || Ok(trainer.score(&batch, FIRST)?))?;
    let log_s = trainer.score(&batch, FIRST)?.rollouts;
    let options = StepOptions { rule: Rule::dlc(), horizon: 24 };
    cost("at the sampler's weights", &trainer, (&scored, &log_s))?;
    time("  gradient of a step", || Ok(trainer.gradient_of(&scored, &log_s, &options)?.0))?;
    time("  step", || {
        let report = trainer.step(&scored, &log_s, &options)?;
        trainer.retain(&[FIRST]);
        Ok(report)
    })?;
    cost("at later weights", &trainer, (&scored, &log_s))
}

/// What DLC adds to a step, in turns with what it is held against: the least of 25 each, so that a busy machine shows less.
///
/// At the sampler's own weights that is arithmetic alone. At later ones a tail on p_s wants a second forward, at the sampler's.
fn cost(
    weights: &str,
    trainer: &Qwen3Trainer,
    (scored, log_s): (&ScoredBatch, &[RolloutLogProbs]),
) -> Result<(), Box<dyn Error>> {
    let mut least = [f64::INFINITY; 3];
    for _ in 0..25 {
        for (least, rule) in least.iter_mut().zip([Rule::Uncorrected, Rule::dlc()]) {
            let start = Instant::now();
            trainer.gradient_of(scored, log_s, &StepOptions { rule, horizon: 24 })?;
            *least = least.min(start.elapsed().as_secs_f64() * 1e3);
        }
        let start = Instant::now();
        trainer.score(scored.batch(), FIRST)?;
        least[2] = least[2].min(start.elapsed().as_secs_f64() * 1e3);
    }
    let [plain, dlc, score] = least;
    let share = |part: f64| 100.0 * part / plain;
    println!("  {weights}:");
    println!("  gradient without a correction                {plain:8.2} ms");
    println!("  gradient with DLC                            {dlc:8.2} ms, {:+.1} %", share(dlc - plain));
    println!("  scoring pass at the sampler's weights        {score:8.2} ms, {:+.1} %", share(score));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    measure("top_p 0.9", Truncation { top_k: 0, top_p: 0.9, min_p: 0.0 })?;
    measure("untruncated, head of 8 and tail on p_s", Truncation::NONE)
}
