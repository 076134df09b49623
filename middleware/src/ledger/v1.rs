//! Records of format version 1, as they were: read, never written.

use super::record::{DeltaRecord, Record, ResyncRecord};
use lockstep_core::{
    FinishReason, RolloutId, SamplerProfile, Stamp, WeightVersion, behavior::Columns, delta::KvHistory,
    rollout::Request,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) enum RecordV1 {
    Profile(SamplerProfile),
    PlanOpened { plan: u64, requests: Vec<Request> },
    Delta(DeltaV1),
    PlanSealed { plan: u64 },
    Reward { rollout: RolloutId, reward: f64 },
    Consumed { plan: u64, rollouts: Vec<RolloutId>, before: WeightVersion, after: WeightVersion },
    Resync(ResyncRecord),
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) struct DeltaV1 {
    pub(super) rollout: RolloutId,
    pub(super) start: u32,
    pub(super) columns: Columns,
    pub(super) stamp: Stamp,
    pub(super) kv: KvHistory,
    pub(super) profile: u32,
    pub(super) finish: Option<FinishReason>,
}

impl From<RecordV1> for Record {
    fn from(record: RecordV1) -> Self {
        match record {
            RecordV1::Profile(profile) => Self::Profile(profile),
            RecordV1::PlanOpened { plan, requests } => Self::PlanOpened { plan, requests },
            RecordV1::Delta(delta) => Self::Delta(delta.into()),
            RecordV1::PlanSealed { plan } => Self::PlanSealed { plan },
            RecordV1::Reward { rollout, reward } => Self::Reward { rollout, reward },
            RecordV1::Consumed { plan, rollouts, before, after } => Self::Consumed { plan, rollouts, before, after },
            RecordV1::Resync(resync) => Self::Resync(resync),
        }
    }
}

impl From<DeltaV1> for DeltaRecord {
    fn from(delta: DeltaV1) -> Self {
        let DeltaV1 { rollout, start, columns, stamp, kv, profile, finish } = delta;
        Self { rollout, start, stamp, kv, profile, finish, columns }
    }
}
