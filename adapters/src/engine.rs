//! The way in: what stands at an address, and its ports.

use crate::{
    answer::Weights,
    control::EngineControl,
    http::Http,
    link::Link,
    options::{EngineKind, OnFinding, Options},
    probe::{self, Finding, launch_line},
    sampler::EngineSampler,
};
use lockstep_core::{
    SamplerProfile,
    ports::{Control, PortError, PortResult, Sampler},
};
use std::sync::{Arc, Mutex};

/// Why an engine was not connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// An address that is none.
    #[error("{0}")]
    Address(String),
    /// The engine is not there, or answers like none that is known.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The engine does not tell the truth.
    #[error("{kind} at {address} cannot be believed: {findings}. This line starts one that can be: {launch}")]
    Untruthful {
        /// What it is.
        kind: EngineKind,
        /// Where it is.
        address: String,
        /// What was found, each with its remedy.
        findings: String,
        /// The line.
        launch: &'static str,
    },
}

/// A connected engine.
pub struct Engine {
    /// Draws.
    pub sampler: Arc<dyn Sampler>,
    /// Replaces its weights, where it can.
    pub control: Option<Arc<dyn Control>>,
    /// What it is.
    pub kind: EngineKind,
    /// How it samples.
    pub profile: Arc<SamplerProfile>,
    /// Size of its vocabulary.
    pub vocabulary: u32,
    /// What the probe found.
    pub findings: Vec<Finding>,
    link: Arc<Link>,
    labels: Option<Arc<EngineControl>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, profile, vocabulary, findings, .. } = self;
        let controlled = self.control.is_some();
        f.debug_struct("Engine")
            .field("kind", kind)
            .field("profile", profile)
            .field("vocabulary", vocabulary)
            .field("controlled", &controlled)
            .field("findings", findings)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// A weight update that does not pass through [`Engine::control`] begins: until it has ended, tokens wait for the spans of
    /// their reply.
    pub fn update_begins(&self) {
        self.link.lock().updates += 1;
    }

    /// That update has ended, well or badly: the engine is asked for its label.
    ///
    /// # Errors
    /// An engine that does not say its label; what it draws is then undeclared until its replies say more.
    pub async fn update_ended(&self) -> PortResult<()> {
        let label = match &self.labels {
            Some(control) => control.label().await.map(Some),
            None => Ok(None),
        };
        let mut known = self.link.lock();
        known.updates += 1;
        known.label = label.clone().ok().flatten();
        label.map(drop)
    }

    /// The control plane, or the reason why there is none.
    ///
    /// # Errors
    /// The engine has no weight update, or its routes are closed.
    pub fn control(&self) -> PortResult<Arc<dyn Control>> {
        let why = match self.kind {
            EngineKind::LlamaCpp => "llama.cpp has no weight update: start another llama-server with the new file",
            EngineKind::Vllm => "vLLM's control routes are closed: set VLLM_SERVER_DEV_MODE=1 for it",
            EngineKind::Sglang => "this SGLang does not say its weight version",
        };
        self.control.clone().ok_or_else(|| PortError::Refused(why.into()))
    }
}

/// Connects to the engine at an address, after a probe of a few tiny requests.
///
/// # Errors
/// An address that is none, nobody there, an engine that is not known; and, unless findings are only reported, one that
/// does not tell the truth, with the flags to pass.
pub async fn connect(address: &str, options: &Options) -> Result<Arc<Engine>, AdapterError> {
    let http = Http::new(address, options).map_err(AdapterError::Address)?;
    let kind = match options.kind {
        Some(kind) => kind,
        None => probe::kind(&http).await?,
    };
    let probed = probe::probe(&http, kind, options).await?;
    let untruthful: Vec<&Finding> = probed.findings.iter().filter(|finding| finding.untruthful).collect();
    if options.on_finding == OnFinding::Refuse && !untruthful.is_empty() {
        let findings: Vec<String> = untruthful.iter().map(ToString::to_string).collect();
        let (address, findings, launch) = (http.base().to_owned(), findings.join("; "), launch_line(kind));
        return Err(AdapterError::Untruthful { kind, address, findings, launch });
    }
    for finding in &probed.findings {
        tracing::warn!(engine = %kind, address = http.base(), "{finding}");
    }
    let profile = Arc::new(probed.profile);
    let link = Arc::new(Link {
        http,
        dialect: probed.dialect,
        profile: profile.clone(),
        vocabulary: probed.vocabulary,
        options: options.clone(),
        versions: probed.versions,
        weights: Mutex::new(Weights { label: probed.label, updates: 0 }),
    });
    let labels = probed.control.then(|| Arc::new(EngineControl::new(link.clone())));
    let control = labels.clone().map(|control| control as Arc<dyn Control>);
    let sampler: Arc<dyn Sampler> = Arc::new(EngineSampler::new(link.clone()));
    let (vocabulary, findings) = (probed.vocabulary, probed.findings);
    Ok(Arc::new(Engine { sampler, control, kind, profile, vocabulary, findings, link, labels }))
}
