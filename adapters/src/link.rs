//! What the ports of one engine share.

use crate::{
    answer::{Answer, Versions, Weights},
    http::Http,
    options::Options,
    sglang, vllm,
};
use lockstep_core::{
    SamplerProfile,
    ports::{PortError, SampleRequest},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How an engine is spoken to, once it has been probed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Dialect {
    /// vLLM.
    Vllm(vllm::Dialect),
    /// SGLang.
    Sglang(sglang::Dialect),
    /// llama.cpp, serving this model.
    LlamaCpp {
        /// The model of its replies; another one means that the server was replaced.
        model: Option<String>,
    },
}

/// One engine.
#[derive(Debug)]
pub(crate) struct Link {
    /// Its address.
    pub(crate) http: Http,
    /// How it is spoken to.
    pub(crate) dialect: Dialect,
    /// What it is.
    pub(crate) profile: Arc<SamplerProfile>,
    /// Size of its vocabulary.
    pub(crate) vocabulary: u32,
    /// How it was connected.
    pub(crate) options: Options,
    /// How its tokens get their versions.
    pub(crate) versions: Versions,
    /// What the control plane knows of its weights.
    pub(crate) weights: Mutex<Weights>,
}

impl Link {
    /// What is known of the weights now.
    pub(crate) fn weights(&self) -> Weights {
        self.lock().clone()
    }

    /// The same, to change it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer to a request.
    pub(crate) fn answer(&self, request: SampleRequest) -> Answer {
        Answer::new(request, self.profile.clone(), self.versions.clone())
    }

    /// The engine broke while it worked on an answer.
    pub(crate) fn failed(&self, answer: &Answer, error: impl std::fmt::Display) -> PortError {
        PortError::Failed(format!("{} at {}: rollout {}: {error}", self.profile.engine, self.http.base(), answer.id()))
    }

    /// The engine left an answer unfinished; it can be resumed.
    pub(crate) fn broke_off(&self, answer: &Answer, why: &str) -> PortError {
        let (engine, base, tokens) = (&self.profile.engine, self.http.base(), answer.asked.resumed.len());
        PortError::Unavailable(format!("{engine} at {base}: rollout {}: {why}, after {tokens} tokens", answer.id()))
    }
}
