//! The gateway: one port in front of one or several engines, for HTTP and gRPC.
//!
//! A request of any dialect becomes an [`ask::Ask`]; [`draw`] has each answer drawn by a replica of the [`pool`], checks it and
//! writes it to the ledger through [`capture`]; [`told`] is what the dialect shows of it. [`Plans`] knows who belongs to which
//! batch, [`pull`] makes batches of prompts, [`updates`] which weight updates passed. Never rebuilds ids from text.

pub mod ask;
pub mod capture;
pub mod control;
pub mod counts;
pub mod draw;
pub mod fields;
pub mod ids;
pub mod loose;
mod openai;
mod planned;
pub mod pool;
pub mod prompts;
pub mod pull;
pub mod refusal;
mod reply;
mod rollouts;
mod sampler;
mod sglang;
pub mod speech;
pub mod stop;
pub mod text;
mod threads;
pub mod told;
mod trainer;
pub mod updates;
mod vllm;

pub use planned::{RestoreError, Restored, restore};
pub use threads::serve_on_threads;

use crate::{
    config::Stage,
    dispatch::Plans,
    resync::Resyncs,
    server::SamplerService,
    wire::{
        MAX_MESSAGE,
        proto::{middleware_server::MiddlewareServer, sampler_server::SamplerServer},
    },
};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::Listener,
};
use capture::Capture;
use counts::Counts;
use lockstep_core::{
    TokenId,
    dispatch::{Mode, Rules},
    dlc::{Policy, Trigger},
};
use loose::Loose;
use pool::Pool;
use pull::{Judging, Pull};
use refusal::Refusal;
use std::{
    future::{Future, IntoFuture},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use text::Text;
use tokio::sync::{Mutex, Semaphore};
use updates::Updates;

/// How the gateway serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is enforced.
    pub stage: Stage,
    /// The model's name in answers; with `hold_name` requests must use it.
    pub model: String,
    /// Whether a request for another model is refused.
    pub hold_name: bool,
    /// Largest body of a request, in bytes.
    pub body: usize,
    /// Most answers in flight.
    pub in_flight: usize,
    /// How long an engine may say nothing before it counts as gone.
    pub silence: Duration,
    /// Largest body of a weight update, in bytes.
    pub update_body: usize,
    /// How long running answers get when the gateway is told to end.
    pub grace: Duration,
    /// Token limit of a chat answer whose client sends none.
    pub default_limit: u32,
    /// Seed behind the seeds of requests that send none.
    pub seed: u64,
    /// Open plans, the order of training, limits on attempts.
    pub rules: Rules,
    /// How long a trainer that pulls may say nothing before its part of a batch is given to another.
    pub lease: Duration,
    /// What becomes of answers that nobody rewards.
    pub judging: Judging,
}

/// Owner of the models of a gateway, in its list of them: how one is told from an engine.
pub(crate) const OWNER: &str = "lockstep";
/// Plans that may be open at a time unless something else is asked.
pub const OPEN_PLANS: u32 = 8;
/// How often an answer of a pulled plan may break off.
pub const MAX_INTERRUPTIONS: u32 = 8;

impl Default for Options {
    fn default() -> Self {
        Self {
            stage: Stage::Observe,
            model: "lockstep".to_owned(),
            hold_name: false,
            body: 32 << 20,
            update_body: 1 << 30,
            in_flight: 8192,
            silence: Duration::from_secs(600),
            grace: Duration::from_secs(10),
            default_limit: 4096,
            seed: 0,
            rules: Rules {
                max_open_plans: OPEN_PLANS,
                mode: Mode::Windowed { plans: OPEN_PLANS },
                max_interruptions: MAX_INTERRUPTIONS,
                ..Rules::default()
            },
            lease: Duration::from_secs(60),
            judging: Judging::default(),
        }
    }
}

/// What every request works with.
pub struct Gateway {
    /// The engines.
    pub pool: Pool,
    /// Who belongs to which batch.
    pub plans: Plans,
    /// Requests of no plan.
    pub loose: Loose,
    /// What batches are made of, where the gateway makes them.
    pub pull: Option<Arc<Pull>>,
    /// The way into the ledger.
    pub capture: Capture,
    /// Weight updates that passed.
    pub updates: Updates,
    /// What was done.
    pub counts: Counts,
    /// How to serve.
    pub options: Options,
    /// Ids that end an answer unless a request says otherwise.
    pub stop: Vec<TokenId>,
    /// When the sampler gets new weights.
    pub trigger: Trigger,
    /// What is known of its synchronisations.
    pub resyncs: std::sync::Mutex<Resyncs>,
    text: Option<Arc<dyn Text>>,
    in_flight: Arc<Semaphore>,
    client: control::Client,
    began: Instant,
    /// Held while a report is looked at, written down, and counted.
    reporting: Mutex<()>,
}

impl Gateway {
    /// A gateway without a tokenizer: token ids alone, no ledger.
    pub fn new(pool: Pool, options: Options) -> Self {
        let in_flight = Arc::new(Semaphore::new(options.in_flight));
        let client = control::client();
        let plans = Plans::new(options.rules, 0, options.lease.as_millis() as u64);
        let (loose, updates, counts, stop, trigger, reporting) = Default::default();
        let policy = Policy { trigger, ..Policy::default() };
        let resyncs = std::sync::Mutex::new(Resyncs::new(policy, 0, options.stage == Stage::Dlc));
        Self {
            pool,
            plans,
            loose,
            pull: None,
            capture: Capture::off(),
            updates,
            counts,
            options,
            stop,
            trigger,
            resyncs,
            text: None,
            in_flight,
            client,
            began: Instant::now(),
            reporting,
        }
    }

    /// Writes everything to a ledger, and goes on where it ends.
    #[must_use]
    pub fn capturing(self, capture: Capture, plans: Plans, loose: Loose) -> Self {
        Self { capture, plans, loose, ..self }
    }

    /// Makes batches of prompts, from [`pull::feed`] on.
    #[must_use]
    pub fn pulling(self, pull: Arc<Pull>) -> Self {
        self.plans.feed(true);
        Self { pull: Some(pull), ..self }
    }

    /// Speaks text, by this model's tokenizer and template; its stop ids end answers.
    #[must_use]
    pub fn speaking(self, text: Arc<dyn Text>) -> Self {
        Self { stop: text.stop_ids(), text: Some(text), ..self }
    }

    /// Ends answers at these ids unless a request says otherwise.
    #[must_use]
    pub fn stopping_at(self, stop: Vec<TokenId>) -> Self {
        Self { stop, ..self }
    }

    /// Tokenizer and template.
    ///
    /// # Errors
    /// A gateway that was started without a model directory.
    pub fn text(&self) -> Result<&Arc<dyn Text>, Refusal> {
        let absent = "this needs text, and the gateway was started without --model DIR (tokenizer and chat template)";
        self.text.as_ref().ok_or_else(|| Refusal::absent(absent))
    }

    /// Holds the name of a model against the one that is served.
    ///
    /// # Errors
    /// Another name, where names count.
    pub fn check_model(&self, name: Option<String>) -> Result<(), Refusal> {
        match name.filter(|name| self.options.hold_name && *name != self.options.model) {
            Some(name) => {
                Err(Refusal::unknown(format!("model {name:?} is not served here, {:?} is", self.options.model)))
            }
            None => Ok(()),
        }
    }

    async fn body(&self, body: Body) -> Result<axum::body::Bytes, Refusal> {
        Self::body_up_to(self.options.body, body).await
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        self.counts.refused();
        refusal.into_response()
    }

    async fn body_up_to(limit: usize, body: Body) -> Result<axum::body::Bytes, Refusal> {
        use std::error::Error;
        axum::body::to_bytes(body, limit).await.map_err(|error| {
            let too_large = error.source().is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
            if too_large { Refusal::too_large(limit) } else { Refusal::request(format!("the body broke off: {error}")) }
        })
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("pool", &self.pool).field("options", &self.options).finish_non_exhaustive()
    }
}

/// All routes of both protocols.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let service = MiddlewareServer::new(trainer::Service::new(gateway.clone())).max_decoding_message_size(MAX_MESSAGE);
    let through = SamplerService::new(Arc::new(sampler::Through::new(gateway.clone())));
    let sampler = SamplerServer::new(through).max_decoding_message_size(MAX_MESSAGE);
    let http = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(openai::models))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/inference/v1/generate", post(vllm::generate))
        .route("/generate", post(sglang::generate))
        .route("/generate/", post(sglang::trl))
        .route("/v1/rollouts/{id}/reward", post(rollouts::reward))
        .route("/v1/plans", post(rollouts::open).get(rollouts::list))
        .route("/v1/plans/{plan}/seal", post(rollouts::seal))
        .route("/v1/plans/{plan}/consumed", post(rollouts::consumed))
        .merge(control::routes())
        .fallback(nothing)
        .with_state(gateway);
    http.route_service("/lockstep.v1.Middleware/{*method}", service)
        .route_service("/lockstep.v1.Sampler/{*method}", sampler)
}

/// Serves until `stop` is done; running answers then get the grace to end.
///
/// # Errors
/// A listener that breaks.
pub async fn serve<L: Listener<Addr: std::fmt::Debug>>(
    gateway: Arc<Gateway>,
    listener: L,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let grace = gateway.options.grace;
    let (told, telling) = tokio::sync::oneshot::channel();
    let stopping = async move {
        stop.await;
        let _ = told.send(());
    };
    let serving = axum::serve(listener, router(gateway)).with_graceful_shutdown(stopping);
    tokio::select! {
        ended = serving.into_future() => ended,
        () = async { let _ = telling.await; tokio::time::sleep(grace).await } => Ok(()),
    }
}

/// Healthy while any engine is: one that finished its last answer, or else says so itself.
async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    let mut healthy = gateway.pool.replicas().iter().any(|replica| replica.failures() == 0);
    for replica in gateway.pool.replicas() {
        healthy = healthy || control::is_healthy(&gateway, replica).await;
    }
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    status.into_response()
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let kind = [(axum::http::header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, counts::page(&gateway)).into_response()
}

async fn nothing(method: axum::http::Method, uri: axum::http::Uri) -> Refusal {
    Refusal::unknown(format!("there is no {method} {} here", uri.path()))
}

#[cfg(test)]
mod tests;
