//! The sampler: a batch of requests, one token a step for each, and with every token the distribution it was drawn from.
//! The random bits of a token depend on its request and its position alone, so an answer resumed from the tokens it already
//! has goes on with the draws it would have had. Knows no text and no wire.

use crate::{Cache, Error, Qwen3, Result};
use candle_core::Tensor;
use lockstep_kernels::rows::{Over, log_probs};
use lockstep_kernels::{Chain, Filter};
use std::ops::ControlFlow;

#[cfg(feature = "cuda")]
mod card;
mod draw;

use draw::draw_all;

/// The order in which this engine applies its filters; vLLM's.
pub const ORDER: [&str; 4] = ["temperature", "min_p", "top_k", "top_p"];

/// How many entries of an untruncated distribution are reported unless the caller wants another number.
pub const HEAD: usize = 128;

/// The filters of one request. Off is `top_k` 0, `top_p` 1, `min_p` 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Divides the logits; positive.
    pub temperature: f64,
    /// Keeps the largest k, ties to the lower id.
    pub top_k: usize,
    /// Keeps the smallest prefix whose mass reaches p.
    pub top_p: f64,
    /// Keeps what has at least this share of the largest probability.
    pub min_p: f64,
}

/// One answer to sample, or to go on sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Ids before the answer; not empty.
    pub prompt: Vec<u32>,
    /// Ids the answer already has, in the order they were sampled.
    pub generated: Vec<u32>,
    /// What shapes the distribution.
    pub filters: Filters,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the request under that seed: no two answers share one.
    pub number: u64,
    /// Ids that end the answer; the one that does is part of it.
    pub stop: Vec<u32>,
    /// Tokens of the whole answer at most, those in `generated` included.
    pub max_new: usize,
}

/// The distribution a token was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub enum Drawing {
    /// Truncated: every token it could have been, and the renormalised log-probability of each.
    Kept {
        /// Ascending.
        ids: Vec<u32>,
        /// Sums to 1 in probability.
        log_q: Vec<f64>,
    },
    /// Not truncated: the largest entries and the rest of the vocabulary as one mass.
    Head {
        /// Ascending.
        ids: Vec<u32>,
        /// Log-probabilities over the whole vocabulary.
        log_q: Vec<f64>,
        /// Log of the mass of the ids that are not listed; negative infinity where all are.
        log_rest: f64,
    },
}

/// One sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Its log-probability under `drawing`, also where a head does not list it.
    pub log_q: f64,
    /// What it was drawn from.
    pub drawing: Drawing,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was sampled.
    Stop,
    /// It has `max_new` tokens.
    Length,
    /// The caller broke it off; it can be resumed from the tokens it has.
    Interrupted,
}

/// A request in the batch.
struct Live<'a> {
    index: usize,
    request: &'a Request,
    chain: Chain,
    tokens: Vec<u32>,
    /// How many of `tokens` the cache does not hold yet.
    fresh: usize,
}

impl<'a> Live<'a> {
    fn new(index: usize, request: &'a Request, model: &Qwen3) -> Result<Self> {
        let longest = request.prompt.len() + request.max_new.max(request.generated.len());
        let max = model.config().max_positions;
        if request.prompt.is_empty() {
            return Err(Error::EmptyRow { row: index });
        }
        if longest > max {
            return Err(Error::Position { row: index, position: longest - 1, max });
        }
        let tokens = [request.prompt.as_slice(), &request.generated].concat();
        Ok(Self { index, request, chain: chain(index, &request.filters)?, fresh: tokens.len(), tokens })
    }

    fn generated(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    fn finish(&self) -> Option<Finish> {
        let stopped = self.generated().last().is_some_and(|token| self.request.stop.contains(token));
        let full = self.generated().len() >= self.request.max_new;
        if stopped { Some(Finish::Stop) } else { full.then_some(Finish::Length) }
    }

    fn fresh(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.fresh..]
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.fresh = 1;
    }
}

/// The chain of `filters` in the house order; a temperature of zero is refused by name.
fn chain(request: usize, filters: &Filters) -> Result<Chain> {
    let Filters { temperature, top_k, top_p, min_p } = *filters;
    if temperature == 0.0 {
        return Err(Error::Greedy { request });
    }
    let order = [Filter::Temperature(temperature), Filter::MinP(min_p), Filter::TopK(top_k), Filter::TopP(top_p)];
    Chain::new(order).map_err(|source| Error::Kernel { request, source })
}

/// Runs the tokens the cache does not hold yet; one row of logits for each request, `[rows, V]`.
fn forward(model: &Qwen3, new: &[&[u32]], cache: &mut Cache) -> Result<Tensor> {
    model.logits(&model.hidden_cached(new, cache)?)
}

/// Samples every request to its end. `on_token(request, drawn)` sees each token as it is drawn, requests in order within a
/// step; `Break` interrupts that request and no other. `listed` is the length of the head of an untruncated distribution.
///
/// Every request is checked before the first token is drawn. Equal arguments give equal bits.
pub fn generate(
    model: &Qwen3,
    requests: &[Request],
    listed: usize,
    mut on_token: impl FnMut(usize, Drawn) -> ControlFlow<()>,
) -> Result<Vec<Finish>> {
    let mut finishes = vec![Finish::Interrupted; requests.len()];
    let live = requests.iter().enumerate().map(|(index, request)| Live::new(index, request, model));
    let mut live = live.collect::<Result<Vec<_>>>()?;
    live.retain(|row| row.finish().inspect(|finish| finishes[row.index] = *finish).is_none());
    let mut cache = model.cache(live.len());
    while !live.is_empty() {
        let new: Vec<&[u32]> = live.iter().map(Live::fresh).collect();
        let logits = forward(model, &new, &mut cache)?;
        let drawn = draw_all(&live, &logits, listed)?;
        let mut goes_on = Vec::with_capacity(live.len());
        for (row, drawn) in live.iter_mut().zip(drawn) {
            row.push(drawn.token);
            let broken = on_token(row.index, drawn).is_break();
            let finish = row.finish();
            finishes[row.index] = finish.unwrap_or(Finish::Interrupted);
            goes_on.push(!broken && finish.is_none());
        }
        cache.keep(|place| goes_on[place]);
        let mut place = 0..;
        live.retain(|_| place.next().is_some_and(|place: usize| goes_on[place]));
    }
    Ok(finishes)
}

/// The greedy continuation of each prompt with the log-probability of every token over the whole vocabulary at
/// temperature 1: a fingerprint of the weights, not a sample. Ties go to the lower id; a stop id ends its row and is part
/// of it.
pub fn greedy(model: &Qwen3, prompts: &[Vec<u32>], max_new: usize, stop: &[u32]) -> Result<Vec<Vec<(u32, f64)>>> {
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut live: Vec<usize> = (0..prompts.len()).filter(|_| max_new > 0).collect();
    let mut new = prompts.to_vec();
    let mut cache = model.cache(live.len());
    while !live.is_empty() {
        let rows: Vec<&[u32]> = live.iter().map(|row| new[*row].as_slice()).collect();
        let logits: Vec<Vec<f32>> = forward(model, &rows, &mut cache)?.to_vec2()?;
        let mut goes_on = Vec::with_capacity(live.len());
        for (request, logits) in live.iter().zip(&logits) {
            let (token, log_p) = largest(logits).map_err(|source| Error::Kernel { request: *request, source })?;
            answers[*request].push((token, log_p));
            new[*request] = vec![token];
            goes_on.push(answers[*request].len() < max_new && !stop.contains(&token));
        }
        cache.keep(|place| goes_on[place]);
        let mut place = 0..;
        live.retain(|_| place.next().is_some_and(|place: usize| goes_on[place]));
    }
    Ok(answers)
}

/// The first of the largest logits and its log-probability.
fn largest(logits: &[f32]) -> lockstep_kernels::Result<(u32, f64)> {
    let first = logits.iter().enumerate().fold(0, |best, (id, x)| if *x > logits[best] { id } else { best });
    let log_p = log_probs(logits, &[first as u32], 1.0, Over::Vocabulary)?;
    Ok((first as u32, log_p.first().copied().unwrap_or_default()))
}
