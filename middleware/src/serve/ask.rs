//! What every dialect asks for, in the words of the core: prompts, how to sample, who the rollouts are, what to show.

use super::{
    Gateway,
    draw::{self, Answer, DrawError, Order},
    fields::Fields,
    ids,
    planned::captured,
    refusal::Refusal,
    stop::Stops,
};
use crate::ledger::Record;
use axum::http::HeaderMap;
use lockstep_core::{
    Delta, RolloutId, SamplingParams, TokenId,
    ports::PortError,
    rollout::Request,
    sampling::{Limits, Truncation},
};
use serde::Deserialize;
use std::sync::Arc;

/// Most answers one request may ask for.
const MAX_ANSWERS: usize = 4096;

/// What a dialect calls the fields that all of them have.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The token limit; the first that is there counts.
    pub limit: &'static [&'static str],
    /// The dialect's own limit where none is sent; `None` is the gateway's.
    pub default_limit: Option<u32>,
    /// The seed.
    pub seed: &'static str,
}

/// How to sample, as asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    temperature: f64,
    truncation: Truncation,
    limits: Limits,
    seed: Option<u64>,
    /// Answers to each prompt.
    pub answers: u32,
    /// Texts that end an answer.
    pub stop_texts: Vec<String>,
    /// Whether a stop text stays in the text.
    pub keep_stop_text: bool,
}

/// One text or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Sampling {
    /// Reads the fields. What is not sent is neutral: temperature 1 and no filter, whatever the engine's own defaults are.
    ///
    /// # Errors
    /// A value of a wrong type or outside its range.
    pub fn read(fields: &mut Fields<'_>, names: &Names, gateway: &Gateway) -> Result<Self, Refusal> {
        let temperature = fields.take("temperature")?.unwrap_or(1.0);
        let truncation = Truncation {
            top_k: top_k(fields.take("top_k")?.unwrap_or(0))?,
            top_p: fields.take("top_p")?.unwrap_or(1.0),
            min_p: fields.take("min_p")?.unwrap_or(0.0),
        };
        let mut limit = None;
        for name in names.limit {
            limit = limit.or(fields.take::<u32>(name)?);
        }
        let max_new_tokens = limit.or(names.default_limit).unwrap_or(gateway.options.default_limit);
        let mut stop = fields.take::<Vec<u32>>("stop_token_ids")?.unwrap_or_default();
        if !fields.flag("ignore_eos")? {
            stop.extend(gateway.stop.iter().map(|id| id.0));
        }
        stop.sort_unstable();
        stop.dedup();
        let limits = Limits { stop: stop.into_iter().map(TokenId).collect(), max_new_tokens };
        let seed = fields.take(names.seed)?;
        let answers = fields.take("n")?.unwrap_or(1);
        let stop_texts = match fields.take("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        if stop_texts.iter().any(String::is_empty) {
            return Err(Refusal::field("stop", "field stop has an empty text, which ends every answer"));
        }
        let keep_stop_text = fields.flag("include_stop_str_in_output")?;
        Ok(Self { temperature, truncation, limits, seed, answers, stop_texts, keep_stop_text })
    }

    /// The parameters of one answer. A seed that was sent counts up over the answers; one that was not is derived from the
    /// rollout's name and the gateway's own seed, so that it is recorded and explicit.
    ///
    /// # Errors
    /// A value outside its range, by the name of its field.
    pub fn params(&self, id: RolloutId, answer: u32, own: u64) -> Result<SamplingParams, Refusal> {
        let seed = match self.seed {
            Some(seed) => seed.wrapping_add(u64::from(answer)),
            None => seed_of(id, own),
        };
        let params = SamplingParams::new(self.temperature, self.truncation, self.limits.clone(), seed);
        params.map_err(|error| {
            use lockstep_core::sampling::SamplingError as E;
            let field = match error {
                E::Temperature(_) => "temperature",
                E::TopP(_) => "top_p",
                E::MinP(_) => "min_p",
                E::NoTokens => "max_tokens",
            };
            Refusal::field(field, error.to_string())
        })
    }

    /// The truncation filters.
    pub fn truncation(&self) -> &Truncation {
        &self.truncation
    }
}

/// The seed of an answer by its name, where none is asked.
pub(super) fn seed_of(id: RolloutId, own: u64) -> u64 {
    mix(own ^ mix(id.plan) ^ u64::from(id.index)) >> 33
}

/// SplitMix64's finaliser.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// -1 and 0 switch the filter off in every dialect.
fn top_k(value: i64) -> Result<u32, Refusal> {
    match value {
        -1 => Ok(0),
        _ => u32::try_from(value)
            .map_err(|_| Refusal::field("top_k", format!("top_k {value} is not in -1..=4294967295"))),
    }
}

/// Which of our own fields the answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extra {
    /// Ids of prompt and answer.
    pub token_ids: bool,
    /// The behaviour's columns.
    pub behavior: bool,
    /// Versions by spans of tokens.
    pub weight_versions: bool,
    /// The rollout's name.
    pub rollout_id: bool,
}

/// Names of the fields that ask for [`Extra`]; every dialect lists them.
pub const EXTRA: [&str; 4] = ["return_token_ids", "return_behavior", "return_weight_versions", "return_rollout_id"];

impl Extra {
    /// Reads the flags.
    ///
    /// # Errors
    /// A value that is no flag.
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let [token_ids, behavior, weight_versions, rollout_id] = EXTRA.map(|name| fields.flag(name));
        Ok(Self {
            token_ids: token_ids?,
            behavior: behavior?,
            weight_versions: weight_versions?,
            rollout_id: rollout_id?,
        })
    }
}

/// Everything asked for.
#[derive(Debug)]
pub struct Ask {
    /// The prompts.
    pub prompts: Vec<Vec<TokenId>>,
    /// How to sample.
    pub sampling: Sampling,
    /// The rollouts, where the client names them.
    pub named: Option<Vec<RolloutId>>,
}

/// An answer that is being drawn.
#[derive(Debug)]
pub struct Drawn {
    /// Place among the request's answers.
    pub index: usize,
    /// What was asked.
    pub request: Request,
    /// Its deltas.
    pub answer: Answer,
}

impl Ask {
    /// What a request asks for, its rollouts from the headers.
    ///
    /// # Errors
    /// Headers that contradict each other or the number of answers, prompts outside the vocabulary.
    pub fn new(
        prompts: Vec<Vec<TokenId>>,
        sampling: Sampling,
        headers: &HeaderMap,
        gateway: &Gateway,
    ) -> Result<Self, Refusal> {
        let vocabulary = gateway.pool.vocabulary();
        for prompt in &prompts {
            if prompt.is_empty() {
                return Err(Refusal::request("the prompt is empty; an answer needs at least one token before it"));
            }
            if let Some(at) = prompt.iter().position(|id| id.0 >= vocabulary) {
                let id = prompt[at];
                let message =
                    format!("token {id} at position {at} of the prompt is outside the vocabulary of {vocabulary}");
                return Err(Refusal::request(message));
            }
        }
        let total = prompts.len() * sampling.answers as usize;
        if total == 0 || total > MAX_ANSWERS {
            let message = format!("the request asks for {total} answers, not 1..={MAX_ANSWERS}");
            return Err(Refusal::field("n", message));
        }
        let named = ids::named(headers)?;
        if let Some(count) = named.as_ref().map(Vec::len).filter(|&count| count != total) {
            let header = ids::ROLLOUT_HEADER;
            return Err(Refusal::request(format!("{header} names {count} rollouts for a request of {total} answers")));
        }
        Ok(Self { prompts, sampling, named })
    }

    /// Has every answer drawn.
    ///
    /// # Errors
    /// Too many answers in flight, rollouts that cannot be drawn now, a ledger that has stopped.
    pub async fn draw(&self, gateway: &Arc<Gateway>) -> Result<Vec<Drawn>, Refusal> {
        let total = self.prompts.len() as u32 * self.sampling.answers;
        let permits = gateway.in_flight.clone().try_acquire_many_owned(total);
        let mut permits = permits.map_err(|_| Refusal::busy(gateway.options.in_flight))?;
        let stops = (0..total).map(|_| self.stops(gateway)).collect::<Result<Vec<_>, _>>()?;
        let mut orders = self.orders(gateway).await?;
        for (order, stops) in orders.iter_mut().zip(stops) {
            order.permit = permits.split(1);
            order.stops = stops;
        }
        let drawn = orders.into_iter().enumerate().map(|(index, order)| {
            let request = order.request.clone();
            Drawn { index, request, answer: draw::start(gateway.clone(), order) }
        });
        Ok(drawn.collect())
    }

    fn stops(&self, gateway: &Gateway) -> Result<Option<Stops>, Refusal> {
        if self.sampling.stop_texts.is_empty() {
            return Ok(None);
        }
        let decoder = gateway.text()?.decoder();
        Ok(Some(Stops::new(decoder, self.sampling.stop_texts.clone())))
    }

    async fn orders(&self, gateway: &Gateway) -> Result<Vec<Order>, Refusal> {
        let own = gateway.options.seed;
        let answers = self.sampling.answers;
        let Some(named) = &self.named else {
            let params = |id: RolloutId| self.sampling.params(id, id.index % answers, own);
            return gateway.open_loose(&self.prompts, params, answers).await;
        };
        let mut orders: Vec<Order> = Vec::with_capacity(named.len());
        let mut dispatched = Vec::new();
        for (at, &id) in named.iter().enumerate() {
            let (prompt, answer) = (&self.prompts[at / answers as usize], at as u32 % answers);
            let taken = self.sampling.params(id, answer, own).and_then(|params| gateway.take(id, prompt, params));
            match taken {
                Ok((order, first)) => {
                    dispatched.extend(first.then(|| order.request.clone()));
                    orders.push(order);
                }
                Err(refusal) => {
                    orders.into_iter().for_each(|order| gateway.ended(&order.request, order.have));
                    return Err(refusal);
                }
            }
        }
        for request in dispatched {
            gateway.capture.record(Record::Dispatched(request)).await.map_err(captured)?;
        }
        Ok(orders)
    }
}

impl From<DrawError> for Refusal {
    fn from(error: DrawError) -> Self {
        let told = error.to_string();
        match error {
            DrawError::Engine { rollout, source, tokens, .. } => {
                let kept: &[RolloutId] = if tokens > 0 { &[rollout] } else { &[] };
                match source {
                    PortError::Refused(_) => Self::request(told),
                    PortError::Unavailable(_) => Self::unavailable(told).keeping(kept),
                    PortError::Failed(_) => Self::engine(told).keeping(kept),
                }
            }
            DrawError::Capture(_) => Self::internal(told),
        }
    }
}

impl Drawn {
    /// The next piece of the answer; `None` after the last.
    ///
    /// # Errors
    /// An answer that broke off.
    pub async fn next(&mut self) -> Result<Option<Arc<Delta>>, Refusal> {
        match self.answer.recv().await {
            Some(Ok(delta)) => Ok(Some(delta)),
            Some(Err(error)) => Err(error.into()),
            None => Ok(None),
        }
    }
}
