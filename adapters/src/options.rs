//! What the user says of an engine, and how patient we are with it.

use lockstep_core::WeightVersion;
use std::time::Duration;

/// An engine whose dialect is spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaCpp,
}

impl EngineKind {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llama.cpp",
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Vllm, Self::Sglang, Self::LlamaCpp];
        let found = known.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("engine {text:?} is not known; known are vllm, sglang and llama.cpp"))
    }
}

/// What is done about an engine that does not tell the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFinding {
    /// Its findings are reported; stage `observe`.
    Report,
    /// It is refused; stages `fix` and `dlc`.
    Refuse,
}

/// How an engine is connected.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Which engine it is; `None` finds out.
    pub kind: Option<EngineKind>,
    /// What is done about an engine that does not tell the truth.
    pub on_finding: OnFinding,
    /// Log-probs kept of each position, 32 to 64 in practice; the other kept ids become mass.
    pub log_probs: u32,
    /// Most kept ids a position where neither a mask nor a top_k bounds them (llama.cpp).
    pub most_kept: u32,
    /// Sent as top_k where none is asked and the engine needs a finite one; recorded in the profile.
    pub cap_top_k: Option<u32>,
    /// Size of the vocabulary; `None` finds out.
    pub vocabulary: Option<u32>,
    /// The version of the weights, for an engine that has no label (llama.cpp).
    pub weight_version: Option<WeightVersion>,
    /// True when every weight update passes through [`crate::Engine::control`]: tokens then go out as they come. When
    /// false they wait for the spans at the end of their reply.
    pub updates_proxied: bool,
    /// Tokens of one leg (llama.cpp).
    pub leg: usize,
    /// Most bytes of a line of a stream, or of a whole reply.
    pub most_bytes: usize,
    /// Longest silence of the engine within a reply.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: None,
            on_finding: OnFinding::Refuse,
            log_probs: 64,
            most_kept: 4096,
            cap_top_k: None,
            vocabulary: None,
            weight_version: None,
            updates_proxied: true,
            leg: 16,
            most_bytes: 32 << 20,
            patience: Duration::from_secs(600),
        }
    }
}
