//! The server as a sampler: one request after the other, whole replies.

use super::{HEAD, Texts, VOCABULARY, parse};
use crate::{
    http::{Http, NOTHING},
    options::Options,
};
use async_trait::async_trait;
use futures_util::stream;
use hyper::Method;
use lockstep_core::{
    BehaviorDistribution, Delta, RolloutId, SamplerProfile, Stamp,
    delta::KvHistory,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Mutex;

/// A server that speaks `/v1/completions` and no ids.
#[derive(Debug)]
pub struct OpenAiSampler {
    owner: Option<String>,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    http: Http,
    model: Option<String>,
    profile: Arc<SamplerProfile>,
    texts: Mutex<Texts>,
}

impl OpenAiSampler {
    /// Finds out whether a server at an address lists its models as OpenAI does.
    ///
    /// # Errors
    /// An address that is none, nobody there, a server that does not.
    pub async fn connect(address: &str, options: &Options) -> PortResult<Self> {
        let http = Http::new(address, options).map_err(PortError::Refused)?;
        let reply = http.ask(Method::GET, "/v1/models", NOTHING).await?;
        let models = reply.json();
        let Some(list) = models["data"].as_array().filter(|_| reply.status.is_success()) else {
            return Err(PortError::Refused(format!("{} has no list of models at /v1/models", http.base())));
        };
        let first = |field| list.first().and_then(|model| model[field].as_str()).map(str::to_owned);
        let (model, owner) = (first("id"), first("owned_by"));
        let unsaid = || "not reported".to_owned();
        let profile = Arc::new(SamplerProfile {
            engine: "openai-shaped".into(),
            version: unsaid(),
            filters: vec![FilterName::Temperature, FilterName::TopK, FilterName::TopP, FilterName::MinP],
            ties: TieRule::Unspecified,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: unsaid(), activations: unsaid(), kv_cache: unsaid(), head: unsaid() },
        });
        Ok(Self { owner, inner: Arc::new(Inner { http, model, profile, texts: Mutex::default() }) })
    }

    /// Who owns the server's first model, as its list says.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }
}

impl Inner {
    async fn answer(&self, asked: SampleRequest) -> PortResult<Delta> {
        let id = asked.request.id;
        let body = self.body(&asked).await?;
        let reply = self.http.post("/v1/completions", &body).await?;
        let mut texts = self.texts.lock().await;
        let (supports, finish) =
            parse(&reply, &mut texts).map_err(|why| PortError::Failed(format!("rollout {id}: {why}")))?;
        let mut behavior = BehaviorDistribution::default();
        supports.iter().for_each(|support| behavior.push(support));
        let (stamp, profile, start) = (Stamp::undeclared(), self.profile.clone(), asked.resumed.len() as u32);
        Ok(Delta { rollout: id, start, behavior, stamp, kv: KvHistory::Fresh, profile, finish: Some(finish) })
    }

    async fn body(&self, asked: &SampleRequest) -> PortResult<Value> {
        let params = &asked.request.params;
        let (cut, limits) = (params.truncation(), params.limits());
        let mut texts = self.texts.lock().await;
        let stop: Vec<String> = limits.stop.iter().map(|&id| texts.join(&[id])).collect();
        let mut body = json!({
            "prompt": texts.join(&[&asked.request.prompt[..], &asked.resumed].concat()),
            "max_tokens": limits.max_new_tokens as usize - asked.resumed.len(),
            "temperature": params.temperature(),
            "top_k": cut.top_k,
            "top_p": cut.top_p,
            "min_p": cut.min_p,
            "seed": params.seed() & 0x7fff_ffff,
            "logprobs": HEAD,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repeat_penalty": 1.0,
            "stop": stop,
        });
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        Ok(body)
    }
}

#[async_trait]
impl Sampler for OpenAiSampler {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: self.inner.profile.clone(), vocabulary: VOCABULARY, resumes: false }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let inner = self.inner.clone();
        let waiting = requests.into_iter();
        Ok(Box::pin(stream::unfold((inner, waiting), |(inner, mut waiting)| async move {
            let asked = waiting.next()?;
            let delta = inner.answer(asked).await;
            Some((delta, (inner, waiting)))
        })))
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}
