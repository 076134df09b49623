//! How fast the ledger is. `tests/ledger/bench.sh` runs it beside fio; its output is JSON.
//!
//!     ledger_speed append DIR BLOCK TOTAL     appends TOTAL bytes, syncs about every BLOCK
//!     ledger_speed recover DIR                opens that ledger, beside plainly reading its file
//!     ledger_speed million DIR                1,000,000 rollouts, and the memory of the process

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use lockstep::ledger::{Ledger, Record, SEGMENT_BYTES};
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, RolloutId, SamplerProfile, Stamp, Support, TokenId,
    WeightVersion,
    delta::KvHistory,
    profile::{Dtypes, LogProbMeaning, TieRule},
};
use std::{error::Error, fs::File, io::Read, path::Path, sync::Arc, time::Instant};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["append", directory, block, total] => append(Path::new(directory), block.parse()?, total.parse()?),
        ["recover", directory] => recover(Path::new(directory)),
        ["million", directory] => million(Path::new(directory)),
        _ => Err("append DIR BLOCK TOTAL, recover DIR, or million DIR".into()),
    }
}

/// A delta of `tokens` tokens, of which every other one had a choice of 8.
fn delta(rollout: RolloutId, start: u32, tokens: u32) -> Result<Delta, Box<dyn Error>> {
    let mut behavior = BehaviorDistribution::default();
    for position in 0..tokens {
        let token = start.wrapping_add(position) % 100_000;
        let ids: Vec<TokenId> = (token..token + 8).map(TokenId).collect();
        let choice = Support::exact(TokenId(token), ids, vec![-8f64.ln(); 8])?;
        behavior.push(&if position % 2 == 0 { choice } else { Support::singleton(TokenId(token)) });
    }
    let version = WeightVersion { epoch: 0, step: rollout.plan };
    let stamp = Stamp::declared(version, Evidence::Label("bench".into())).ok_or("a label is evidence")?;
    let dtype = || "bf16".to_owned();
    let profile = Arc::new(SamplerProfile {
        engine: "bench".into(),
        version: "1".into(),
        filters: vec![],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    });
    Ok(Delta { rollout, start, behavior, stamp, kv: KvHistory::Fresh, profile, finish: None })
}

fn append(directory: &Path, block: u64, total: u64) -> Outcome {
    let mut ledger = Ledger::resume(directory, u64::MAX)?;
    let mut number = 0;
    let mut next = || {
        number += 1;
        delta(RolloutId { plan: 0, index: number }, 0, 128)
    };
    ledger.append_delta(&next()?)?;
    ledger.sync()?;
    let size = |ledger: &Ledger| std::fs::metadata(ledger.path()).map(|file| file.len());
    let before = size(&ledger)?;
    ledger.append_delta(&next()?)?;
    ledger.sync()?;
    let deltas = (block / (size(&ledger)? - before)).max(1);
    let ready: Vec<Delta> = (0..total / (size(&ledger)? - before)).map(|_| next()).collect::<Result<_, _>>()?;
    let before = size(&ledger)?;
    let (clock, mut syncs) = (Instant::now(), 0);
    for batch in ready.chunks(deltas as usize) {
        batch.iter().try_for_each(|delta| ledger.append_delta(delta))?;
        ledger.begin_sync()?;
        syncs += 1;
    }
    ledger.finish_sync()?;
    let seconds = clock.elapsed().as_secs_f64();
    let bytes = size(&ledger)? - before;
    println!(r#"{{"bytes": {bytes}, "syncs": {syncs}, "bytes_a_second": {}}}"#, bytes as f64 / seconds);
    Ok(())
}

fn recover(directory: &Path) -> Outcome {
    let path = directory.join("000000.ledger");
    let bytes = std::fs::metadata(&path)?.len() as f64;
    let (mut plain, mut recovered) = (f64::INFINITY, f64::INFINITY);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..25 {
        let clock = Instant::now();
        let mut file = File::open(&path)?;
        while file.read(&mut buffer)? > 0 {}
        plain = plain.min(clock.elapsed().as_secs_f64());
        let clock = Instant::now();
        drop(Ledger::resume(directory, u64::MAX)?);
        recovered = recovered.min(clock.elapsed().as_secs_f64());
    }
    let (plain, recovered) = (bytes / plain, bytes / recovered);
    println!(r#"{{"plain": {plain}, "recovered": {recovered}, "ratio": {}}}"#, recovered / plain);
    Ok(())
}

fn million(directory: &Path) -> Outcome {
    const PLANS: u64 = 4_000;
    const ROLLOUTS: u32 = 250;
    let mut ledger = Ledger::resume(directory, SEGMENT_BYTES)?;
    let clock = Instant::now();
    let mut after_a_tenth = 0;
    for plan in 0..PLANS {
        let rollouts: Vec<RolloutId> = (0..ROLLOUTS).map(|index| RolloutId { plan, index }).collect();
        for &rollout in &rollouts {
            let finish = Some(FinishReason::Length);
            ledger.append_delta(&Delta { finish, ..delta(rollout, 0, 16)? })?;
        }
        let before = WeightVersion { epoch: 0, step: plan };
        ledger.append(&Record::Consumed { plan, rollouts, before, after: before.next() })?;
        ledger.sync()?;
        if plan == PLANS / 10 {
            after_a_tenth = peak()?;
        }
    }
    let (seconds, written) = (clock.elapsed().as_secs_f64(), peak()?);
    drop(ledger);
    let clock = Instant::now();
    drop(Ledger::resume(directory, SEGMENT_BYTES)?);
    let opened = clock.elapsed().as_secs_f64();
    println!(
        r#"{{"seconds": {seconds}, "peak_kb_after_100000": {after_a_tenth}, "peak_kb": {written}, "open_seconds": {opened}, "peak_kb_after_open": {}}}"#,
        peak()?
    );
    Ok(())
}

/// The largest resident size of this process so far, in kB.
fn peak() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
