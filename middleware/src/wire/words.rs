//! The words of the core on the wire.

use super::{WireError, columns, proto, required};
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, RolloutId, SamplerProfile, SamplingParams, Stamp, TokenId,
    WeightVersion,
    behavior::{Columns, RestColumns},
    delta::KvHistory,
    ports::{PublishedWeights, SampleRequest},
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rollout::Request,
    sampling::{Limits, Truncation},
    version::Digest,
};
use std::sync::Arc;

impl From<WeightVersion> for proto::WeightVersion {
    fn from(version: WeightVersion) -> Self {
        Self { epoch: version.epoch, step: version.step }
    }
}

impl From<proto::WeightVersion> for WeightVersion {
    fn from(version: proto::WeightVersion) -> Self {
        Self { epoch: version.epoch, step: version.step }
    }
}

impl From<RolloutId> for proto::RolloutId {
    fn from(id: RolloutId) -> Self {
        Self { plan: id.plan, index: id.index }
    }
}

impl From<proto::RolloutId> for RolloutId {
    fn from(id: proto::RolloutId) -> Self {
        Self { plan: id.plan, index: id.index }
    }
}

fn digest(bytes: &[u8]) -> Result<Digest, WireError> {
    let wrong = || WireError::Value { field: "digest", value: format!("{} bytes", bytes.len()), expected: "32 bytes" };
    bytes.try_into().map(Digest).map_err(|_| wrong())
}

impl From<&Stamp> for proto::Stamp {
    fn from(stamp: &Stamp) -> Self {
        use proto::stamp::Evidence as Wire;
        let evidence = match stamp.evidence() {
            Evidence::Undeclared => None,
            Evidence::Label(label) => Some(Wire::Label(label.clone())),
            &Evidence::Behavioural { repeat_noise, change } => {
                Some(Wire::Behavioural(proto::Behavioural { repeat_noise, change }))
            }
            Evidence::Digest(digest) => Some(Wire::Digest(digest.0.to_vec())),
        };
        Self { version: stamp.version().map(Into::into), evidence }
    }
}

impl TryFrom<proto::Stamp> for Stamp {
    type Error = WireError;

    fn try_from(stamp: proto::Stamp) -> Result<Self, WireError> {
        use proto::stamp::Evidence as Wire;
        let evidence = match stamp.evidence {
            None => Evidence::Undeclared,
            Some(Wire::Label(label)) => Evidence::Label(label),
            Some(Wire::Behavioural(proto::Behavioural { repeat_noise, change })) => {
                Evidence::Behavioural { repeat_noise, change }
            }
            Some(Wire::Digest(bytes)) => Evidence::Digest(digest(&bytes)?),
        };
        match stamp.version {
            None if evidence == Evidence::Undeclared => Ok(Self::undeclared()),
            None => Err(WireError::Missing { message: "stamp with evidence", field: "version" }),
            Some(version) => required(Self::declared(version.into(), evidence), "stamp with a version", "evidence"),
        }
    }
}

impl From<&SamplingParams> for proto::SamplingParams {
    fn from(params: &SamplingParams) -> Self {
        let &Truncation { top_k, top_p, min_p } = params.truncation();
        let Limits { stop, max_new_tokens } = params.limits();
        Self {
            temperature: params.temperature(),
            top_k,
            top_p,
            min_p,
            seed: params.seed(),
            stop: columns::from_ids(stop),
            max_new_tokens: *max_new_tokens,
        }
    }
}

impl TryFrom<proto::SamplingParams> for SamplingParams {
    type Error = WireError;

    fn try_from(params: proto::SamplingParams) -> Result<Self, WireError> {
        let proto::SamplingParams { temperature, top_k, top_p, min_p, seed, stop, max_new_tokens } = params;
        let limits = Limits { stop: columns::to_ids(&stop, "stop")?, max_new_tokens };
        Self::new(temperature, Truncation { top_k, top_p, min_p }, limits, seed).map_err(WireError::broken)
    }
}

impl From<&Request> for proto::Request {
    fn from(request: &Request) -> Self {
        Self {
            id: Some(request.id.into()),
            group: request.group,
            prompt: columns::from_ids(&request.prompt),
            params: Some((&request.params).into()),
        }
    }
}

impl TryFrom<proto::Request> for Request {
    type Error = WireError;

    fn try_from(request: proto::Request) -> Result<Self, WireError> {
        Ok(Self {
            id: required(request.id, "request", "id")?.into(),
            group: request.group,
            prompt: columns::to_ids(&request.prompt, "prompt")?,
            params: required(request.params, "request", "params")?.try_into()?,
        })
    }
}

impl From<&SampleRequest> for proto::SampleRequest {
    fn from(sample: &SampleRequest) -> Self {
        Self { request: Some((&sample.request).into()), resumed: columns::from_ids(&sample.resumed) }
    }
}

impl TryFrom<proto::SampleRequest> for SampleRequest {
    type Error = WireError;

    fn try_from(sample: proto::SampleRequest) -> Result<Self, WireError> {
        let request = required(sample.request, "sample request", "request")?.try_into()?;
        Ok(Self { request, resumed: columns::to_ids(&sample.resumed, "resumed")? })
    }
}

impl From<&PublishedWeights> for proto::PublishedWeights {
    fn from(weights: &PublishedWeights) -> Self {
        let version = Some(weights.version.into());
        Self {
            version,
            path: weights.path.clone(),
            digest: weights.digest.map_or_else(Vec::new, |digest| digest.0.to_vec()),
        }
    }
}

impl TryFrom<proto::PublishedWeights> for PublishedWeights {
    type Error = WireError;

    fn try_from(weights: proto::PublishedWeights) -> Result<Self, WireError> {
        let version = required(weights.version, "published weights", "version")?.into();
        let digest = (!weights.digest.is_empty()).then(|| digest(&weights.digest)).transpose()?;
        Ok(Self { version, path: weights.path, digest })
    }
}

impl From<&BehaviorDistribution> for proto::Behavior {
    fn from(behavior: &BehaviorDistribution) -> Self {
        let Columns { tokens, offsets, ids, log_q, rest } = behavior.columns();
        Self {
            tokens: columns::from_ids(tokens),
            offsets: columns::from_u32(offsets),
            ids: columns::from_ids(ids),
            log_q: columns::from_f32(log_q),
            rest: rest.as_ref().map(|rest| proto::Rest {
                vocabulary: columns::from_u32(&rest.vocabulary),
                log_q_sampled: columns::from_f32(&rest.log_q_sampled),
                log_rest: columns::from_f32(&rest.log_rest),
            }),
        }
    }
}

impl TryFrom<proto::Behavior> for BehaviorDistribution {
    type Error = WireError;

    fn try_from(behavior: proto::Behavior) -> Result<Self, WireError> {
        let rest = behavior.rest.map(|rest| {
            Ok::<_, WireError>(RestColumns {
                vocabulary: columns::to_u32(&rest.vocabulary, "vocabulary")?,
                log_q_sampled: columns::to_f32(&rest.log_q_sampled, "log_q_sampled")?,
                log_rest: columns::to_f32(&rest.log_rest, "log_rest")?,
            })
        });
        let columns = Columns {
            tokens: columns::to_ids(&behavior.tokens, "tokens")?,
            offsets: columns::to_u32(&behavior.offsets, "offsets")?,
            ids: columns::to_ids(&behavior.ids, "ids")?,
            log_q: columns::to_f32(&behavior.log_q, "log_q")?,
            rest: rest.transpose()?,
        };
        Self::from_columns(columns).map_err(WireError::broken)
    }
}

/// Pairs of a word and its number on the wire; `$unknown` names the field in errors.
macro_rules! enumeration {
    ($core:ty, $wire:ty, $field:literal, { $($variant:ident => $number:ident),+ $(,)? }) => {
        impl From<$core> for $wire {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$variant => Self::$number),+ }
            }
        }

        impl TryFrom<$wire> for $core {
            type Error = WireError;

            fn try_from(value: $wire) -> Result<Self, WireError> {
                match value {
                    $(<$wire>::$number => Ok(Self::$variant),)+
                    <$wire>::Unspecified => Err(WireError::Missing { message: "message", field: $field }),
                }
            }
        }
    };
}

enumeration!(FilterName, proto::Filter, "filter", {
    Temperature => Temperature, TopK => TopK, TopP => TopP, MinP => MinP,
});
enumeration!(TieRule, proto::TieRule, "tie rule", {
    LowerId => LowerId, KeepAll => KeepAll, Unspecified => Arbitrary,
});
enumeration!(LogProbMeaning, proto::LogProbMeaning, "log-prob meaning", {
    Drawn => Drawn, Tempered => Tempered, Raw => Raw,
});
enumeration!(KvHistory, proto::KvHistory, "KV history", {
    Fresh => Fresh, Recomputed => Recomputed, Stale => Stale, Ambiguous => Ambiguous,
});

impl From<&SamplerProfile> for proto::SamplerProfile {
    fn from(profile: &SamplerProfile) -> Self {
        let filters = profile.filters.iter().map(|&filter| proto::Filter::from(filter) as i32);
        Self {
            engine: profile.engine.clone(),
            version: profile.version.clone(),
            filters: filters.collect(),
            ties: proto::TieRule::from(profile.ties) as i32,
            log_probs: proto::LogProbMeaning::from(profile.log_probs) as i32,
            weights_dtype: profile.dtypes.weights.clone(),
            activations_dtype: profile.dtypes.activations.clone(),
            kv_cache_dtype: profile.dtypes.kv_cache.clone(),
            head_dtype: profile.dtypes.head.clone(),
        }
    }
}

impl TryFrom<proto::SamplerProfile> for SamplerProfile {
    type Error = WireError;

    fn try_from(profile: proto::SamplerProfile) -> Result<Self, WireError> {
        Ok(Self {
            filters: profile.filters().map(FilterName::try_from).collect::<Result<_, _>>()?,
            ties: profile.ties().try_into()?,
            log_probs: profile.log_probs().try_into()?,
            engine: profile.engine,
            version: profile.version,
            dtypes: Dtypes {
                weights: profile.weights_dtype,
                activations: profile.activations_dtype,
                kv_cache: profile.kv_cache_dtype,
                head: profile.head_dtype,
            },
        })
    }
}

impl From<FinishReason> for proto::Finish {
    fn from(finish: FinishReason) -> Self {
        use proto::finish::Reason;
        let reason = match finish {
            FinishReason::Stop(token) => Reason::Stop(token.0),
            FinishReason::Length => Reason::Length(true),
            FinishReason::StopText => Reason::StopText(true),
        };
        Self { reason: Some(reason) }
    }
}

impl TryFrom<proto::Finish> for FinishReason {
    type Error = WireError;

    fn try_from(finish: proto::Finish) -> Result<Self, WireError> {
        match required(finish.reason, "finish", "reason")? {
            proto::finish::Reason::Stop(token) => Ok(Self::Stop(TokenId(token))),
            proto::finish::Reason::Length(_) => Ok(Self::Length),
            proto::finish::Reason::StopText(_) => Ok(Self::StopText),
        }
    }
}

/// A delta whose profile has the given index among those sent before.
pub fn delta(delta: &Delta, profile: u32) -> proto::Delta {
    proto::Delta {
        rollout: Some(delta.rollout.into()),
        start: delta.start,
        behavior: Some((&delta.behavior).into()),
        stamp: Some((&delta.stamp).into()),
        kv: proto::KvHistory::from(delta.kv) as i32,
        profile,
        finish: delta.finish.map(Into::into),
    }
}

/// Reads a delta.
///
/// # Errors
/// A missing field, columns that contradict themselves, a profile that was not sent.
pub fn read_delta(delta: proto::Delta, profiles: &[Arc<SamplerProfile>]) -> Result<Delta, WireError> {
    let unknown = || WireError::Value {
        field: "profile of a delta",
        value: delta.profile.to_string(),
        expected: "the index of a profile sent before",
    };
    Ok(Delta {
        kv: delta.kv().try_into()?,
        profile: profiles.get(delta.profile as usize).cloned().ok_or_else(unknown)?,
        rollout: required(delta.rollout, "delta", "rollout")?.into(),
        start: delta.start,
        behavior: required(delta.behavior, "delta", "behavior")?.try_into()?,
        stamp: required(delta.stamp, "delta", "stamp")?.try_into()?,
        finish: delta.finish.map(TryInto::try_into).transpose()?,
    })
}
