//! Finds out by a few tiny requests what an engine is and whether it tells the truth. Trusts no version number.

mod llama_cpp;
mod sglang;
mod vllm;

use crate::{
    answer::Versions,
    http::{Http, NOTHING},
    link::Dialect,
    options::{EngineKind, Options},
};
use hyper::Method;
use lockstep_core::{
    RolloutId, SamplerProfile, SamplingParams, TokenId,
    ports::{PortError, PortResult, SampleRequest},
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rollout::Request,
    sampling::{Limits, Truncation},
};
use serde_json::{Value, json};

/// Something about an engine that the user should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was seen.
    pub what: String,
    /// What to pass, and to whom.
    pub remedy: String,
    /// True when a reply of this engine cannot be believed; false when it is only good to know.
    pub untruthful: bool,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// What a probe learnt.
#[derive(Debug)]
pub(crate) struct Probed {
    pub(crate) dialect: Dialect,
    pub(crate) profile: SamplerProfile,
    pub(crate) vocabulary: u32,
    pub(crate) versions: Versions,
    /// The label in the replies.
    pub(crate) label: Option<String>,
    /// Whether the routes of the control plane are open.
    pub(crate) control: bool,
    pub(crate) findings: Vec<Finding>,
}

/// Findings as they are made.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn untruthful(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Finding { what: what.into(), remedy: remedy.into(), untruthful: true });
    }

    fn note(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Finding { what: what.into(), remedy: remedy.into(), untruthful: false });
    }

    /// What a label is worth.
    fn label(&mut self, label: Option<&str>, remedy: &str) {
        match label {
            None => self.untruthful("its replies carry no weight version", remedy),
            Some(label) if crate::answer::stamp(label).version().is_none() => {
                self.untruthful(format!("its weights are labelled {label:?}, which is no version of ours"), remedy);
            }
            Some(_) => {}
        }
    }
}

/// The complete command line that makes an engine tell the truth; `MODEL` stands for the model.
pub fn launch_line(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => {
            "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --return-sampling-mask \
             --logprobs-mode processed_logprobs --max-logprobs 64 --generation-config vllm"
        }
        EngineKind::Sglang => {
            "python -m sglang.launch_server --model-path MODEL --sampling-defaults openai --weight-version e0.s0 \
             --incremental-streaming-output"
        }
        EngineKind::LlamaCpp => "llama-server -m MODEL.gguf -fa off -ctk f32 -ctv f32",
    }
}

/// Which engine answers.
///
/// # Errors
/// Nobody, or one that is not known here.
pub(crate) async fn kind(http: &Http) -> PortResult<EngineKind> {
    let found = |path: &'static str| async move {
        let reply = http.ask(Method::GET, path, NOTHING).await?;
        Ok::<_, PortError>(if reply.status.is_success() { reply.json() } else { Value::Null })
    };
    let props = found("/props").await?;
    if props.get("default_generation_settings").is_some() {
        return Ok(EngineKind::LlamaCpp);
    }
    if found("/model_info").await?.get("model_path").is_some() {
        return Ok(EngineKind::Sglang);
    }
    if found("/version").await?.get("version").is_some() {
        return Ok(EngineKind::Vllm);
    }
    let base = http.base();
    Err(PortError::Refused(format!(
        "nothing at {base} says that it is vLLM (/version), SGLang (/model_info) or llama-server (/props); \
         name it with --engine vllm, sglang or llama.cpp"
    )))
}

/// Probes an engine of a known kind.
///
/// # Errors
/// Nobody there, or replies that are none of that kind.
pub(crate) async fn probe(http: &Http, kind: EngineKind, options: &Options) -> PortResult<Probed> {
    match kind {
        EngineKind::Vllm => vllm::probe(http, options).await,
        EngineKind::Sglang => sglang::probe(http, options).await,
        EngineKind::LlamaCpp => llama_cpp::probe(http, options).await,
    }
}

/// A request of a probe: few tokens, these filters, at temperature 1.
fn request(truncation: Truncation, tokens: u32) -> PortResult<SampleRequest> {
    let limits = Limits { stop: vec![], max_new_tokens: tokens };
    let params = SamplingParams::new(1.0, truncation, limits, 1);
    let params = params.map_err(|error| PortError::Refused(error.to_string()))?;
    let prompt = [9, 10, 11].map(TokenId).to_vec();
    let id = RolloutId { plan: u64::MAX, index: 0 };
    Ok(SampleRequest { request: Request { id, group: 0, prompt, params }, resumed: vec![] })
}

/// What is the same in every profile.
struct Known {
    engine: &'static str,
    version: String,
    filters: [FilterName; 4],
    ties: TieRule,
    log_probs: LogProbMeaning,
}

impl Known {
    fn profile(self) -> SamplerProfile {
        let Self { engine, version, filters, ties, log_probs } = self;
        let unsaid = || "not reported".to_owned();
        let dtypes = Dtypes { weights: unsaid(), activations: unsaid(), kv_cache: unsaid(), head: unsaid() };
        SamplerProfile { engine: engine.into(), version, filters: filters.to_vec(), ties, log_probs, dtypes }
    }
}

/// The size of the vocabulary, by asking for ids until one is refused: 22 requests of one token.
async fn vocabulary(http: &Http, options: &Options, body: impl Fn(u32) -> (&'static str, Value)) -> PortResult<u32> {
    if let Some(given) = options.vocabulary {
        return Ok(given);
    }
    let (mut taken, mut refused) = (0u32, 1u32 << 22);
    while refused - taken > 1 {
        let middle = taken + (refused - taken) / 2;
        let (path, body) = body(middle);
        let reply = http.ask(Method::POST, path, Some(&body)).await?;
        match reply.status {
            status if status.is_success() => taken = middle,
            status if status.is_client_error() => refused = middle,
            status => {
                let (base, says) = (http.base(), reply.sentence());
                let why = format!("engine at {base} answered id {middle} with {status}: {says}; pass --vocabulary N");
                return Err(PortError::Failed(why));
            }
        }
    }
    if taken == 0 {
        let why = format!("engine at {} takes no token ids; pass --vocabulary N", http.base());
        return Err(PortError::Refused(why));
    }
    Ok(refused)
}

/// The JSON of a streamed reply's pieces.
fn pieces(body: &[u8]) -> Vec<Value> {
    let lines = body.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let pieces: Vec<Value> = lines.filter_map(|data| serde_json::from_slice(data).ok()).collect();
    if pieces.is_empty() { serde_json::from_slice(body).into_iter().collect() } else { pieces }
}

/// A text at a place of a JSON value.
fn text(value: &Value, place: &str) -> Option<String> {
    value.pointer(place).and_then(Value::as_str).map(str::to_owned)
}

fn capped(version: String, cap: Option<u32>) -> String {
    cap.map_or(version.clone(), |cap| format!("{version}, an open top_k sent as {cap}"))
}

fn one_token(mut body: Value, place: &str, limit: &str, id: u32) -> Value {
    if let Some(prompt) = body.get_mut(place) {
        *prompt = json!([id]);
    }
    let limits = if body.get("sampling_params").is_some() { body.get_mut("sampling_params") } else { Some(&mut body) };
    if let Some(limits) = limits {
        limits[limit] = json!(1);
    }
    body["stream"] = json!(false);
    body
}
