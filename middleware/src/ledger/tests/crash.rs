//! Sequences of writes on a simulated disk that stops at every place: nothing acknowledged is lost or doubled.

use super::{
    simulated::{Crash, SimulatedDisk},
    *,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a writer does.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Appends the next tokens of a rollout.
    Delta {
        plan: u8,
        index: u8,
        tokens: u8,
    },
    /// Sends an earlier delta again.
    Retry {
        which: u8,
    },
    Sync,
    /// Begins a sync that nobody waits for yet.
    BeginSync,
    Consume {
        plan: u8,
    },
    Retire {
        before: u8,
    },
    /// Ends, and starts again.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..3u8, 0..2u8, 1..4u8).prop_map(|(plan, index, tokens)| Act::Delta { plan, index, tokens }),
        2 => any::<u8>().prop_map(|which| Act::Retry { which }),
        4 => Just(Act::Sync),
        2 => Just(Act::BeginSync),
        1 => (0..3u8).prop_map(|plan| Act::Consume { plan }),
        1 => (0..4u8).prop_map(|before| Act::Retire { before }),
        1 => Just(Act::Restart),
    ]
}

fn crash() -> impl Strategy<Value = Crash> {
    let machine = (any::<u8>(), any::<bool>(), any::<bool>());
    prop_oneof![
        1 => Just(Crash::Process),
        3 => machine.prop_map(|(kept, zeros, names)| Crash::Machine { kept, zeros, names }),
    ]
}

/// When a writer tells that something is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledge {
    AfterSync,
    /// The twin that must be caught.
    AtOnce,
}

/// A rollout and where a delta of it begins; its content follows from them.
type Key = (RolloutId, u32);

#[derive(Debug, Default)]
struct Writer {
    sent: BTreeMap<Key, u32>,
    ends: BTreeMap<RolloutId, u32>,
    waiting: Vec<Key>,
    acknowledged: BTreeSet<Key>,
    consumed: BTreeSet<u64>,
    retired_below: u64,
}

fn content((rollout, start): Key, tokens: u32) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    (start..start + tokens).for_each(|token| behavior.push(&Support::singleton(TokenId(token + rollout.index))));
    Delta { rollout, start, behavior, finish: None, ..delta(0) }
}

impl Writer {
    /// Acts until all is done or the machine stops.
    fn run(&mut self, acts: &[Act], disk: &SimulatedDisk, acknowledge: Acknowledge) {
        let open = || Ledger::on(Arc::new(disk.clone()), 600);
        let Ok(mut ledger) = open() else { return };
        for act in acts {
            let done = match *act {
                Act::Restart => {
                    self.forget_waiting();
                    drop(ledger);
                    let Ok(again) = open() else { return };
                    ledger = again;
                    Ok(())
                }
                act => self.act(act, &mut ledger),
            };
            if done.is_err() {
                return;
            }
            if acknowledge == Acknowledge::AtOnce {
                self.acknowledged.extend(self.waiting.iter().copied());
            }
        }
    }

    fn act(&mut self, act: Act, ledger: &mut Ledger) -> Result<(), LedgerError> {
        match act {
            Act::Delta { plan, index, tokens } => {
                let rollout = RolloutId { plan: plan.into(), index: index.into() };
                let end = self.ends.entry(rollout).or_default();
                let key = (rollout, *end);
                *end += u32::from(tokens);
                self.sent.insert(key, tokens.into());
                self.waiting.push(key);
                self.append(key, ledger)
            }
            Act::Retry { which } => {
                let Some(&key) = self.sent.keys().nth(usize::from(which) % self.sent.len().max(1)) else {
                    return Ok(());
                };
                self.waiting.push(key);
                self.append(key, ledger)
            }
            Act::Sync => {
                ledger.sync()?;
                self.acknowledged.extend(self.waiting.drain(..));
                Ok(())
            }
            Act::BeginSync => ledger.begin_sync(),
            Act::Consume { plan } => {
                let (plan, before, after) = (plan.into(), version(), version().next());
                self.consumed.insert(plan);
                ledger.append(&Record::Consumed { plan, rollouts: vec![], before, after })
            }
            Act::Retire { before } => {
                self.retired_below = self.retired_below.max(before.into());
                ledger.retire(before.into()).map(|_| ())
            }
            Act::Restart => unreachable!("handled where the ledger is owned"),
        }
    }

    /// A delta of a plan that is gone is refused, and that is no crash.
    fn append(&mut self, key: Key, ledger: &mut Ledger) -> Result<(), LedgerError> {
        match ledger.append_delta(&content(key, self.sent[&key])) {
            Err(LedgerError::Retired(_)) if self.may_be_gone(key.0.plan) => {
                self.waiting.pop();
                Ok(())
            }
            appended => appended,
        }
    }

    fn may_be_gone(&self, plan: u64) -> bool {
        plan < self.retired_below && self.consumed.contains(&plan)
    }

    /// What nobody acknowledged is not sent again: its rollout goes on from what is there.
    fn forget_waiting(&mut self) {
        let lost: Vec<Key> = self.waiting.drain(..).filter(|key| !self.acknowledged.contains(key)).collect();
        for key in lost {
            let end = self.ends.entry(key.0).or_default();
            *end = (*end).min(key.1);
            self.sent.remove(&key);
        }
    }
}

/// Nothing acknowledged is lost or doubled, nothing is there that was not sent; and the ledger can be written on.
fn check(writer: &Writer, disk: &SimulatedDisk) -> Result<(), String> {
    let mut ledger = Ledger::on(Arc::new(disk.clone()), 600).map_err(|error| format!("does not open: {error}"))?;
    let before = stored(disk)?;
    for key in &writer.acknowledged {
        let gone = writer.may_be_gone(key.0.plan);
        match before.get(key) {
            None if !gone => return Err(format!("{} from token {} is lost", key.0, key.1)),
            Some(found) if *found != content(*key, writer.sent[key]) => {
                return Err(format!("{} from token {} is another", key.0, key.1));
            }
            _ => {}
        }
        let retried = ledger.append_delta(&content(*key, writer.sent[key]));
        let refused = matches!(retried, Err(LedgerError::Retired(_))) && gone;
        if !refused {
            retried.map_err(|error| error.to_string())?;
        }
    }
    ledger.sync().map_err(|error| error.to_string())?;
    drop(ledger);
    let after = stored(disk)?;
    if after != before { Err("a retry was stored again".into()) } else { Ok(()) }
}

/// The deltas of a ledger, each once, without a gap.
fn stored(disk: &SimulatedDisk) -> Result<BTreeMap<Key, Delta>, String> {
    let records = Records::on(Arc::new(disk.clone())).map_err(|error| error.to_string())?;
    let (mut found, mut profiles) = (BTreeMap::new(), Vec::new());
    let mut ends = BTreeMap::<RolloutId, u32>::new();
    for record in records {
        match record.map_err(|error| error.to_string())? {
            Record::Profile(profile) => profiles.push(Arc::new(profile)),
            Record::Delta(delta) => {
                let profile = profiles.get(delta.profile as usize).ok_or("a delta without its profile")?.clone();
                let delta = delta.delta(profile).map_err(|error| error.to_string())?;
                let key = (delta.rollout, delta.start);
                let end = ends.entry(delta.rollout).or_default();
                if *end != delta.start {
                    return Err(format!("{} has {end} tokens, then a delta from {}", key.0, key.1));
                }
                *end += delta.behavior.len() as u32;
                if found.insert(key, delta).is_some() {
                    return Err(format!("{} from token {} is doubled", key.0, key.1));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Runs the acts on a disk that stops after every number of changes there is; the first fault that is found.
fn at_every_prefix(acts: &[Act], crash: Crash, acknowledge: Acknowledge) -> Result<(), String> {
    let whole = SimulatedDisk::default();
    Writer::default().run(acts, &whole, acknowledge);
    for changes in 0..=whole.changes() {
        let (mut writer, disk) = (Writer::default(), SimulatedDisk::stopping_after(changes));
        writer.run(acts, &disk, acknowledge);
        check(&writer, &disk.after(crash)).map_err(|fault| format!("stopped after {changes} changes: {fault}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_acknowledged_is_lost_or_doubled_at_any_prefix(
        acts in prop::collection::vec(act(), 1..20),
        crash in crash(),
    ) {
        at_every_prefix(&acts, crash, Acknowledge::AfterSync).map_err(TestCaseError::fail)?;
    }
}

const LOSES_ALL: Crash = Crash::Machine { kept: 0, zeros: false, names: false };

fn acts() -> Vec<Act> {
    let delta = |index, tokens| Act::Delta { plan: 0, index, tokens };
    vec![delta(0, 2), Act::Sync, delta(0, 1), delta(1, 3), Act::Sync, delta(1, 1), Act::Sync]
}

#[test]
fn a_writer_that_acknowledges_before_it_syncs_is_caught() {
    assert_eq!(at_every_prefix(&acts(), LOSES_ALL, Acknowledge::AfterSync), Ok(()));
    for crash in [Crash::Process, LOSES_ALL] {
        let caught = at_every_prefix(&acts(), crash, Acknowledge::AtOnce).unwrap_err();
        assert!(caught.ends_with("is lost"), "{caught}");
    }
}

#[test]
fn removing_old_segments_survives_a_stop_at_any_place() {
    let delta = |plan| Act::Delta { plan, index: 0, tokens: 3 };
    let plan = |plan| [delta(plan), delta(plan), delta(plan), Act::Sync, Act::Consume { plan }, Act::Sync];
    let acts = [&plan(0)[..], &plan(1), &plan(2), &[Act::Retire { before: 3 }, delta(2), Act::Sync]].concat();
    let (mut writer, disk) = (Writer::default(), SimulatedDisk::default());
    writer.run(&acts, &disk, Acknowledge::AfterSync);
    let first = Records::on(Arc::new(disk.clone())).unwrap().find(|record| matches!(record, Ok(Record::Delta(_))));
    let Some(Ok(Record::Delta(first))) = first else { panic!("no delta is left") };
    assert!(first.rollout.plan > 0, "plan 0 is gone");
    let machine = |kept, names| Crash::Machine { kept, zeros: false, names };
    for crash in [Crash::Process, LOSES_ALL, machine(100, false), machine(200, true)] {
        assert_eq!(at_every_prefix(&acts, crash, Acknowledge::AfterSync), Ok(()));
    }
}

#[test]
fn a_disk_that_does_not_sync_is_caught() {
    let (mut writer, disk) = (Writer::default(), SimulatedDisk::lying(usize::MAX));
    writer.run(&acts(), &disk, Acknowledge::AfterSync);
    assert_eq!(check(&writer, &disk.after(Crash::Process)), Ok(()));
    let caught = check(&writer, &disk.after(LOSES_ALL)).unwrap_err();
    assert!(caught.ends_with("is lost"), "{caught}");
}

/// A start that takes over what the dead process wrote, and does not sync it, acknowledges a retry of it too early.
#[test]
fn what_a_dead_process_wrote_is_synced_before_it_counts() {
    let (mut writer, disk) = (Writer::default(), SimulatedDisk::default());
    let mut ledger = Ledger::on(Arc::new(disk.clone()), 600).unwrap();
    acts().iter().take(3).for_each(|act| writer.act(*act, &mut ledger).unwrap());
    let written = disk.changes() + 1;
    let (mut writer, disk) = (Writer::default(), SimulatedDisk::stopping_after(written));
    writer.run(&[&acts()[..3], &[Act::Sync]].concat(), &disk, Acknowledge::AfterSync);
    let key = (RolloutId { plan: 0, index: 0 }, 2);
    assert!(!writer.acknowledged.contains(&key), "the machine stopped between write and sync");
    // SimulatedDisk::after makes everything durable, so the restart happens on the disk itself.
    let next = disk.restarted();
    let mut ledger = Ledger::on(Arc::new(next.clone()), 600).unwrap();
    ledger.append_delta(&content(key, 1)).unwrap();
    ledger.sync().unwrap();
    writer.acknowledged.insert(key);
    assert_eq!(check(&writer, &next.after(LOSES_ALL)), Ok(()));
}
