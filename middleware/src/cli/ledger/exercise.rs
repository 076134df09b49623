//! `lockstep ledger exercise`: many writers on one ledger. Prints what was acknowledged, and nothing before it was.
//!
//! Every delta follows from its rollout and its start alone, so that whoever reads the ledger later knows what must be there.

use super::{super::print, DONE, Outcome};
use crate::ledger::{Catalogue, Entry, Ledger, LedgerError, PlanState, Record, SharedLedger};
use clap::Args;
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, RolloutId, SamplerProfile, Stamp, Support, TokenId,
    WeightVersion,
    delta::KvHistory,
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Rollouts of a plan.
const ROLLOUTS: u32 = 8;

/// Deltas of a rollout.
const DELTAS: u32 = 6;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where the ledger is.
    directory: PathBuf,
    /// Plans to write; those that are there are gone through again, and stored once.
    #[arg(long, default_value_t = u64::MAX)]
    plans: u64,
    /// The first plan to write.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Bytes of a segment.
    #[arg(long, default_value_t = 64 << 10)]
    segment_bytes: u64,
    /// Prints before the sync, as no writer may: what a test must catch.
    #[arg(long)]
    acknowledge_early: bool,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    let ledger = Ledger::resume(&arguments.directory, arguments.segment_bytes)?;
    let there = consumed_plans(&arguments.directory, arguments.from)?;
    let (shared, thread) = SharedLedger::start(ledger)?;
    let end = arguments.from.saturating_add(arguments.plans);
    for plan in arguments.from..end {
        let early = arguments.acknowledge_early;
        let writers = (0..ROLLOUTS).map(|index| write(shared.clone(), RolloutId { plan, index }, early));
        futures_util::future::try_join_all(writers).await?;
        if !there.contains(&plan) {
            shared.commit(vec![Entry::Record(Box::new(consumed(plan)))]).await?;
        }
    }
    drop(shared);
    thread.join().map_err(|_| "the writer of the ledger panicked")?;
    Ok(DONE)
}

/// The plans from one on that are consumed already.
fn consumed_plans(directory: &Path, from: u64) -> Result<BTreeSet<u64>, LedgerError> {
    let catalogue = Catalogue::open(directory)?;
    let mut consumed = BTreeSet::new();
    for plan in catalogue.plans().into_iter().filter(|&plan| plan >= from) {
        if catalogue.summary(plan)?.state == PlanState::Consumed {
            consumed.insert(plan);
        }
    }
    Ok(consumed)
}

async fn write(ledger: SharedLedger, rollout: RolloutId, early: bool) -> Result<(), LedgerError> {
    let mut start = 0;
    for number in 0..DELTAS {
        let delta = made_up(rollout, start, number + 1 == DELTAS);
        let tokens = delta.behavior.len() as u32;
        let line = format!("{rollout} {start} {tokens}");
        if early {
            print(&line);
        }
        ledger.commit(vec![Entry::Delta(Arc::new(delta))]).await?;
        if !early {
            print(&line);
        }
        start += tokens;
    }
    Ok(())
}

fn consumed(plan: u64) -> Record {
    let before = WeightVersion { epoch: 0, step: plan };
    let rollouts = (0..ROLLOUTS).map(|index| RolloutId { plan, index }).collect();
    Record::Consumed { plan, rollouts, before, after: before.next() }
}

/// The delta of a rollout that begins at a token: 1 to 16 tokens, of which every other one had a choice of 8.
fn made_up(rollout: RolloutId, start: u32, last: bool) -> Delta {
    let salt = rollout.plan as u32 ^ rollout.index.wrapping_mul(2_654_435_761) ^ start.wrapping_mul(40_503);
    let mut behavior = BehaviorDistribution::default();
    for position in 0..1 + salt % 16 {
        let token = salt.wrapping_add(position) % 50_000;
        let ids: Vec<TokenId> = (token..token + 8).map(TokenId).collect();
        let choice = Support::exact(TokenId(token), ids, vec![-8f64.ln(); 8]);
        let single = Support::singleton(TokenId(token));
        behavior.push(&choice.ok().filter(|_| position % 2 == 0).unwrap_or(single));
    }
    let version = WeightVersion { epoch: 0, step: rollout.plan };
    let stamp = Stamp::declared(version, Evidence::Label("made up".into())).unwrap_or_else(Stamp::undeclared);
    let finish = last.then_some(FinishReason::Length);
    Delta { rollout, start, behavior, stamp, kv: KvHistory::Fresh, profile: profile(), finish }
}

fn profile() -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: "made up".into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature, FilterName::TopP],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}
