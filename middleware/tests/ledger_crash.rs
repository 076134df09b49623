//! `kill -9` of a process that many write through: nothing it acknowledged is lost or doubled.
//!
//! `LOCKSTEP_CRASHES=1000` kills so often; 100 times by default.
#![cfg(target_os = "linux")]

use lockstep::ledger::{self, Record};
use lockstep_core::RolloutId;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Kills after which a new ledger is begun, so that reading it stays quick.
const KILLS_A_LEDGER: usize = 10;

/// A rollout, a start, and the number of tokens from there.
type Acknowledged = BTreeMap<(RolloutId, u32), u32>;

/// SplitMix64 over a seed that is told when something fails.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 31) % limit
    }
}

fn start(directory: &Path, from: u64, options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["ledger", "exercise", "--segment-bytes", "16384", "--from", &from.to_string()]);
    command.args(options).arg(directory).stdout(Stdio::piped()).spawn().expect("the binary starts")
}

/// Lets a writer acknowledge some, kills it somewhere behind that, and gives all it acknowledged.
fn kill_somewhere(mut writer: Child, random: &mut Random) -> Vec<String> {
    let mut said = BufReader::new(writer.stdout.take().expect("stdout is piped")).lines();
    let wanted = random.below(200) as usize;
    let mut lines: Vec<String> = said.by_ref().take(wanted).map(|line| line.expect("a line is text")).collect();
    (0..random.below(1 << 18)).for_each(|_| std::hint::spin_loop());
    writer.kill().expect("a child can be killed");
    writer.wait().expect("a child can be waited for");
    lines.extend(said.map_while(Result::ok));
    lines
}

fn parse(line: &str) -> Option<((RolloutId, u32), u32)> {
    let mut words = line.split(' ');
    let (plan, index) = words.next()?.strip_prefix('p')?.split_once(".r")?;
    let rollout = RolloutId { plan: plan.parse().ok()?, index: index.parse().ok()? };
    Some(((rollout, words.next()?.parse().ok()?), words.next()?.parse().ok()?))
}

/// What is wrong with the ledger, given what was acknowledged.
fn fault(directory: &Path, acknowledged: &Acknowledged) -> Option<String> {
    if acknowledged.is_empty() && !directory.join("000000.ledger").exists() {
        // Killed before it had made a file; it owes nothing.
        return None;
    }
    let records = match ledger::read(directory) {
        Ok(records) => records,
        Err(error) => return Some(error.to_string()),
    };
    let (mut found, mut ends) = (Acknowledged::new(), BTreeMap::<RolloutId, u32>::new());
    let mut consumed = BTreeSet::new();
    for record in records {
        match record {
            Record::Delta(delta) => {
                let (rollout, start, tokens) = (delta.rollout, delta.start, &delta.columns.tokens);
                let end = ends.insert(rollout, start + tokens.len() as u32).unwrap_or(0);
                if end != start {
                    return Some(format!("{rollout} has {end} tokens, then a delta from {start}"));
                }
                let salt = rollout.plan as u32 ^ rollout.index.wrapping_mul(2_654_435_761) ^ start.wrapping_mul(40_503);
                let expected = (0..1 + salt % 16).map(|position| salt.wrapping_add(position) % 50_000);
                if !tokens.iter().map(|token| token.0).eq(expected) {
                    return Some(format!("{rollout} has other tokens from {start} on"));
                }
                found.insert((rollout, start), tokens.len() as u32);
            }
            Record::Consumed { plan, .. } if !consumed.insert(plan) => {
                return Some(format!("plan {plan} is consumed twice"));
            }
            _ => {}
        }
    }
    let lost = acknowledged.iter().find(|(key, tokens)| found.get(key) != Some(tokens));
    lost.map(|((rollout, start), _)| format!("{rollout} from token {start} was acknowledged and is lost"))
}

/// Kills so many writers, one after the other on the same ledgers. The first fault, with the kill that made it.
fn crash(kills: usize, options: &[&str]) -> Option<String> {
    let mut random = Random::new();
    let seed = random.0;
    let mut directory = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut acknowledged = Acknowledged::new();
    for kill in 0..kills {
        if kill % KILLS_A_LEDGER == 0 {
            (directory, acknowledged) =
                (tempfile::tempdir().expect("there is room for a temporary directory"), Acknowledged::new());
        }
        // The plan the last writer was at is gone through again: what is there is stored once.
        let from = acknowledged.keys().next_back().map_or(0, |(rollout, _)| rollout.plan);
        let lines = kill_somewhere(start(directory.path(), from, options), &mut random);
        acknowledged.extend(lines.iter().map(|line| parse(line).unwrap_or_else(|| panic!("{line:?}"))));
        if let Some(fault) = fault(directory.path(), &acknowledged) {
            return Some(format!("kill {kill} of seed {seed}: {fault}"));
        }
    }
    None
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_by_kill_nine() {
    let asked = std::env::var("LOCKSTEP_CRASHES").ok();
    let kills = asked.map_or(100, |kills| kills.parse().expect("LOCKSTEP_CRASHES is a number"));
    assert_eq!(crash(kills, &[]), None);
}

#[test]
fn a_writer_that_acknowledges_before_it_syncs_is_caught() {
    let fault = crash(100, &["--acknowledge-early"]).expect("100 kills lose something");
    assert!(fault.ends_with("was acknowledged and is lost"), "{fault}");
}
