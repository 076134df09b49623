//! A file of recorded exchanges as a target: its requests are read back and answered from the file, through the adapter that
//! speaks that engine. What a recording cannot show, a check says it could not run.

use super::unreachable::Unreachable;
use crate::record::{self, Chunk, Exchange, Replayer};
use futures_util::TryStreamExt;
use lockstep_adapters::{OnFinding, Options};
use lockstep_conformance::Target;
use lockstep_core::{
    Batch, BatchPlan, Delta, Rollout, RolloutId, SamplingParams, TokenId,
    ports::{PortError, SampleRequest, Sampler},
    rollout::Request,
    sampling::{Limits, Truncation},
};
use serde_json::Value;
use std::{collections::BTreeSet, error::Error, path::Path, sync::Arc};
use tokio::{net::TcpListener, sync::oneshot};

/// Prompts that questions are asked after, which a recording does not answer.
const PROMPTS: usize = 4;

type Failure = Box<dyn Error + Send + Sync>;

/// A target without ports but for answers that were recorded, and what could not be read of the file.
#[expect(missing_debug_implementations, reason = "a target's ports are trait objects")]
pub struct Recording {
    /// The target.
    pub target: Target,
    /// Exchanges that are no request for tokens, or that another client than Lockstep's made.
    pub foreign: usize,
}

/// Reads a file that `lockstep record` wrote.
///
/// # Errors
/// A file that cannot be read, without what a connection asks an engine first, or without an answer.
pub async fn recording(path: &Path) -> Result<Recording, Failure> {
    let exchanges = read(path)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let (ended, end) = oneshot::channel::<()>();
    let serving = record::serve(Replayer::load(path)?.router(), listener, async {
        let _ = end.await;
    });
    let serving = tokio::spawn(serving);
    let taken = taken(&address, &exchanges).await;
    drop(ended);
    serving.await??;
    taken.map_err(|error| format!("{}: {error}", path.display()).into())
}

fn read(path: &Path) -> Result<Vec<Exchange>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("line {} of {}: {error}", at + 1, path.display()).into())
    };
    text.lines().enumerate().map(line).collect()
}

/// Asks again what the file holds the answers to.
async fn taken(address: &str, exchanges: &[Exchange]) -> Result<Recording, Failure> {
    let options = Options { on_finding: OnFinding::Report, ..Options::default() };
    let engine = lockstep_adapters::connect(address, &options).await?;
    let (mut answers, mut foreign, mut broken) = (Vec::<(Request, Vec<Delta>)>::new(), 0, Vec::new());
    let mut seen = BTreeSet::new();
    for exchange in exchanges {
        // What is asked twice in the same words has one answer here.
        let Some(asked) = asked(exchange).filter(|_| seen.insert(exchange_key(exchange))) else {
            foreign += 1;
            continue;
        };
        let request = asked.request.clone();
        match answer(&*engine.sampler, asked).await {
            Ok(deltas) => answers.push((request, deltas)),
            Err(PortError::Failed(why)) => broken.push(format!("exchange {}: {why}", exchange.number)),
            Err(_) => foreign += 1,
        }
    }
    let batch = batch(answers)?;
    let prompts = batch.rollouts().iter().take(PROMPTS).map(|answer| answer.prompt().to_vec()).collect();
    let gone = PortError::Unavailable("a recording gives no new answers".into());
    let mut target = Target { recorded: Some(Arc::new(batch)), ..Target::default() };
    target.sampler = Some(Arc::new(Unreachable::because(gone)));
    (target.ask.vocabulary, target.ask.prompts) = (engine.vocabulary, prompts);
    target.contradictions = broken;
    Ok(Recording { target, foreign })
}

fn exchange_key(exchange: &Exchange) -> (String, String) {
    let body = match &exchange.request {
        Chunk::Text(text) | Chunk::Base64(text) => text.clone(),
    };
    (exchange.path.clone(), body)
}

async fn answer(sampler: &dyn Sampler, asked: SampleRequest) -> Result<Vec<Delta>, PortError> {
    sampler.generate(vec![asked]).await?.try_collect().await
}

/// One plan of all answers that are whole; answers to the same prompt are a group.
fn batch(answers: Vec<(Request, Vec<Delta>)>) -> Result<Batch, Failure> {
    let whole = answers.into_iter().filter(|(_, deltas)| deltas.last().is_some_and(|delta| delta.finish.is_some()));
    let (mut prompts, mut requests, mut deltas) = (Vec::<Vec<TokenId>>::new(), Vec::new(), Vec::new());
    for (index, (request, own)) in whole.enumerate() {
        let group = prompts.iter().position(|prompt| *prompt == request.prompt).unwrap_or(prompts.len());
        if group == prompts.len() {
            prompts.push(request.prompt.clone());
        }
        let id = RolloutId { plan: 0, index: index as u32 };
        requests.push(Request { id, group: group as u32, ..request });
        deltas.push(own.into_iter().map(|delta| Delta { rollout: id, ..delta }).collect::<Vec<_>>());
    }
    if requests.is_empty() {
        return Err("it holds no answer that Lockstep asked for and can read".into());
    }
    let mut plan = BatchPlan::restore(0, requests.clone())?;
    for (request, deltas) in requests.into_iter().zip(deltas) {
        plan.arrive(Rollout::fold(request, deltas)?)?;
    }
    Ok(plan.seal()?)
}

/// The request of an exchange, as one of Lockstep's adapters wrote it; `None` for anything else.
fn asked(exchange: &Exchange) -> Option<SampleRequest> {
    let body: Value = serde_json::from_slice(&exchange.request.bytes().ok()?).ok()?;
    let words = match exchange.path.as_str() {
        "/inference/v1/generate" => ("token_ids", Some("sampling_params"), "seed", "max_tokens"),
        "/v1/completions" => ("prompt", None, "seed", "max_tokens"),
        "/generate" => ("input_ids", Some("sampling_params"), "sampling_seed", "max_new_tokens"),
        "/completion" => ("prompt", None, "seed", "n_predict"),
        _ => return None,
    };
    let (prompt, sampling, seed, limit) = words;
    let sampling = sampling.map_or(&body, |name| &body[name]);
    let ids = |value: &Value| -> Option<Vec<TokenId>> {
        value.as_array()?.iter().map(|id| Some(TokenId(u32::try_from(id.as_u64()?).ok()?))).collect()
    };
    let truncation = Truncation {
        top_k: u32::try_from(sampling["top_k"].as_i64()?).unwrap_or(0),
        top_p: sampling["top_p"].as_f64()?,
        min_p: sampling["min_p"].as_f64()?,
    };
    let stop = ids(&sampling["stop_token_ids"]).unwrap_or_default();
    let limits = Limits { stop, max_new_tokens: u32::try_from(sampling[limit].as_u64()?).ok()? };
    let params = SamplingParams::new(sampling["temperature"].as_f64()?, truncation, limits, sampling[seed].as_u64()?);
    let request = Request { id: rollout(&body), group: 0, prompt: ids(&body[prompt])?, params: params.ok()? };
    Some(SampleRequest { request, resumed: vec![] })
}

/// The rollout that SGLang's request id names; any other for engines that are told none.
fn rollout(body: &Value) -> RolloutId {
    let named = body["rid"].as_str().and_then(|rid| {
        let (plan, rest) = rid.strip_prefix('p')?.split_once(".r")?;
        let index = rest.split('.').next()?;
        Some(RolloutId { plan: plan.parse().ok()?, index: index.parse().ok()? })
    });
    named.unwrap_or(RolloutId { plan: 0, index: 0 })
}

#[cfg(test)]
mod tests;
