//! The sampler as the rest of Lockstep sees it: planned requests in, deltas out, every delta with the digest of the weights
//! that drew it. Weights come from a published file and are checked against its digest. Knows nothing of training.

use crate::generate::{Drawing, Drawn, Filters, HEAD, Request};
use crate::numerics::Numerics;
use crate::train_error::refused_or_failed;
use crate::{Error, Qwen3, Result, Weights};
use candle_core::{DType, Device};
use lockstep_core::ports::{PortError, PublishedWeights, SampleRequest, SamplerCapabilities};
use lockstep_core::profile::{Dtypes, FilterName, LogProbMeaning, SamplerProfile, TieRule};
use lockstep_core::support::{Domain, Reported, Sampled, Support, SupportError};
use lockstep_core::token::{RolloutId, TokenId};
use lockstep_core::version::{Digest, Evidence, Stamp, WeightVersion};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod answer;
mod port;
mod run;

pub use port::SamplerPort;

/// Tokens of an answer that travel together.
pub const FLUSH: usize = 32;

/// A refusal or a failure of the sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// A file that does not hold the weights it was published as.
    #[error("{}: published as {version} with digest {published}, holds {found}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// The version it was published as.
        version: WeightVersion,
        /// The digest it was published with.
        published: Digest,
        /// The digest of its tensors.
        found: Digest,
    },
    /// A drawn token with a support that contradicts itself.
    #[error("rollout {rollout}, token {position}: {source}")]
    Support {
        /// The rollout.
        rollout: RolloutId,
        /// Index of the token in its answer.
        position: usize,
        /// What is wrong with it.
        source: SupportError,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Error),
}

impl From<SamplerError> for PortError {
    fn from(error: SamplerError) -> Self {
        let text = error.to_string();
        match &error {
            SamplerError::Engine(error) => refused_or_failed(error, text),
            SamplerError::Digest { .. } => Self::Refused(text),
            SamplerError::Support { .. } => Self::Failed(text),
        }
    }
}

/// A Qwen3 model that draws answers, and what it says of itself.
#[derive(Debug)]
pub struct Qwen3Sampler {
    model: Qwen3,
    version: WeightVersion,
    digest: Digest,
    profile: Arc<SamplerProfile>,
    listed: usize,
    numerics: Numerics,
}

impl Qwen3Sampler {
    /// Draws with a copy of the model's weights, which are `version`: a trainer that goes on with the model does not change
    /// what is sampled. Lists the 128 largest entries of an untruncated distribution.
    ///
    /// # Errors
    /// Weights that cannot be copied.
    pub fn new(model: &Qwen3, version: WeightVersion) -> Result<Self> {
        Self::on(model, version, &Device::Cpu, Numerics::Exact)
    }

    /// The same on another device and as coarsely as `numerics` says: on a card with matrices, activations and cache in bf16,
    /// rounded after the numerics, and the head in f32.
    ///
    /// # Errors
    /// As [`Qwen3Sampler::new`].
    pub fn on(model: &Qwen3, version: WeightVersion, device: &Device, numerics: Numerics) -> Result<Self> {
        let digest = Digest(model.weights().digest()?);
        let model = sampling(model, model.weights().snapshot()?, (device, numerics))?;
        let profile = Arc::new(profile(dtypes(numerics, model.activations())));
        Ok(Self { model, version, digest, profile, listed: HEAD, numerics })
    }

    /// The same, computing as coarsely as `numerics` says, with these weights and all that are loaded later. Digests stay
    /// those of the published weights.
    ///
    /// # Errors
    /// Weights that cannot be rewritten.
    pub fn with_numerics(self, numerics: Numerics) -> Result<Self> {
        let (weights, device) = (self.model.weights().clone(), self.model.weights().device());
        let model = sampling(&self.model, weights, (&device, numerics))?;
        let profile = Arc::new(profile(dtypes(numerics, model.activations())));
        Ok(Self { model, numerics, profile, ..self })
    }

    /// The same, listing the `listed` largest entries of an untruncated distribution.
    pub fn listing(self, listed: usize) -> Self {
        Self { listed, ..self }
    }

    /// What it can do.
    pub fn capabilities(&self) -> SamplerCapabilities {
        let vocabulary = self.model.config().vocab as u32;
        SamplerCapabilities { profile: self.profile.clone(), vocabulary, resumes: true }
    }

    /// The weights held now.
    pub fn stamp(&self) -> Stamp {
        let declared = Stamp::declared(self.version, Evidence::Digest(self.digest));
        declared.unwrap_or_else(Stamp::undeclared)
    }

    /// Replaces the weights by those of a published file. A cache lives no longer than the call that fills it, so there is
    /// none to drop.
    ///
    /// # Errors
    /// A file that is not there or not of this model, and one whose tensors have another digest; then the old weights stay.
    pub fn load_weights(&mut self, published: &PublishedWeights) -> std::result::Result<Stamp, SamplerError> {
        let path = Path::new(&published.path);
        let weights = Weights::load_file(path, self.model.config())?;
        let found = Digest(weights.digest()?);
        if let Some(digest) = published.digest.filter(|digest| *digest != found) {
            let version = published.version;
            return Err(SamplerError::Digest { path: path.into(), version, published: digest, found });
        }
        if self.numerics == Numerics::Q8 {
            let device = self.model.weights().device();
            self.model = sampling(&self.model, weights, (&device, self.numerics))?;
        } else {
            self.numerics.apply(&weights)?;
            self.model.weights().assign(&weights)?;
        }
        (self.version, self.digest) = (published.version, found);
        Ok(self.stamp())
    }
}

/// The model that draws with some weights, on a device and as coarsely as told.
fn sampling(like: &Qwen3, weights: Weights, (device, numerics): (&Device, Numerics)) -> Result<Qwen3> {
    if numerics == Numerics::Q8 {
        return Qwen3::in_q8(like.config().clone(), &weights, device);
    }
    numerics.apply(&weights)?;
    let exact = device.is_cpu() || like.activations() == DType::F32 && device.same_device(&like.weights().device());
    let model = like.with_weights(if exact { weights } else { weights.for_sampling(device, like.config().tied)? })?;
    Ok(if numerics == Numerics::Bf16Head { model.with_bf16_head() } else { model })
}

/// In which types it computes: those of its numerics, between bf16 where activations are.
fn dtypes(numerics: Numerics, activations: DType) -> Dtypes {
    let in_f32 = numerics.dtypes();
    if activations == DType::F32 {
        return in_f32;
    }
    let bf16 = || "bf16".to_owned();
    let weights = match numerics {
        Numerics::Exact | Numerics::Bf16Head => "bf16 (embedding, head and norms f32)".to_owned(),
        Numerics::Q8 => "q8_0 (blocks of 32, f16 scales; embedding, head and norms f32)".to_owned(),
        Numerics::Int(_) | Numerics::Noise { .. } => format!("bf16 of {}", in_f32.weights),
    };
    Dtypes { weights, activations: bf16(), kv_cache: bf16(), head: in_f32.head }
}

/// What this engine is.
fn profile(dtypes: Dtypes) -> SamplerProfile {
    SamplerProfile {
        engine: "lockstep-qwen3".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        filters: vec![FilterName::Temperature, FilterName::MinP, FilterName::TopK, FilterName::TopP],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes,
    }
}

/// The engine's request for a planned one. Its random numbers depend on plan, index and position alone.
fn engine_request(asked: &SampleRequest) -> Request {
    let lockstep_core::rollout::Request { id, prompt, params, .. } = &asked.request;
    let cut = params.truncation();
    let plain = |ids: &[TokenId]| ids.iter().map(|id| id.0).collect::<Vec<u32>>();
    Request {
        prompt: plain(prompt),
        generated: plain(&asked.resumed),
        filters: Filters {
            temperature: params.temperature(),
            top_k: cut.top_k as usize,
            top_p: cut.top_p,
            min_p: cut.min_p,
        },
        seed: params.seed(),
        number: id.plan.rotate_left(32) ^ u64::from(id.index),
        stop: plain(&params.limits().stop),
        max_new: params.limits().max_new_tokens as usize,
    }
}

/// q of a drawn token. A head that lists every id leaves nothing unknown.
fn support(drawn: Drawn, vocabulary: u32) -> std::result::Result<Support, SupportError> {
    let tokens = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
    let token = TokenId(drawn.token);
    match drawn.drawing {
        Drawing::Kept { ids, log_q } | Drawing::Head { ids, log_q, log_rest: f64::NEG_INFINITY } => {
            Support::exact(token, tokens(ids), log_q)
        }
        Drawing::Head { ids, log_q, log_rest } => {
            let domain = Domain::Vocabulary(vocabulary);
            let reported = Reported { ids: tokens(ids), log_q, log_rest: Some(log_rest.min(0.0)), domain };
            Support::new(Sampled { token, log_q: drawn.log_q }, reported)
        }
    }
}
