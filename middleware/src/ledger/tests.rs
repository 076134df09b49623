use super::*;
use lockstep_core::{
    BehaviorDistribution, Evidence, FinishReason, RolloutId, SamplingParams, Stamp, Support, TokenId, WeightVersion,
    delta::KvHistory,
    ports::PublishedWeights,
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rollout::Request,
    sampling::{Limits, Truncation},
    support::{Domain, Reported, Sampled},
    version::Digest,
};

fn profile() -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: "test".into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature, FilterName::TopP],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}

fn version() -> WeightVersion {
    WeightVersion { epoch: 1, step: 7 }
}

fn delta(index: u32) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    behavior.push(&Support::singleton(TokenId(4)));
    let (ids, halves) = (vec![TokenId(3), TokenId(9)], vec![0.5f64.ln(); 2]);
    behavior.push(&Support::exact(TokenId(9), ids.clone(), halves).unwrap());
    let log_q = vec![0.5f64.ln(), 0.25f64.ln()];
    let reported = Reported { ids, log_q, log_rest: Some(0.25f64.ln()), domain: Domain::Vocabulary(50) };
    behavior.push(&Support::new(Sampled { token: TokenId(30), log_q: 0.125f64.ln() }, reported).unwrap());
    Delta {
        rollout: RolloutId { plan: 2, index },
        start: 0,
        behavior,
        stamp: Stamp::declared(version(), Evidence::Digest(Digest([7; 32]))).unwrap(),
        kv: KvHistory::Fresh,
        profile: profile(),
        finish: Some(FinishReason::Stop(TokenId(30))),
    }
}

fn records() -> Vec<Record> {
    let limits = Limits { stop: vec![TokenId(30)], max_new_tokens: 8 };
    let params = SamplingParams::new(0.8, Truncation { top_k: 0, top_p: 0.95, min_p: 0.0 }, limits, 5).unwrap();
    let id = RolloutId { plan: 2, index: 0 };
    let request = Request { id, group: 0, prompt: vec![TokenId(1), TokenId(2)], params };
    let weights = PublishedWeights { version: version(), path: "w".into(), digest: Digest([7; 32]) };
    vec![
        Record::PlanOpened { plan: 2, requests: vec![request] },
        Record::Profile((*profile()).clone()),
        Record::Delta(DeltaRecord::new(&delta(0), 0)),
        Record::PlanSealed { plan: 2 },
        Record::Reward { rollout: id, reward: 0.25 },
        Record::Consumed { plan: 2, rollouts: vec![id], before: version(), after: version().next() },
        Record::Resync(ResyncRecord { weights, stamp: Stamp::undeclared() }),
    ]
}

fn written() -> (tempfile::TempDir, PathBuf, Vec<Record>) {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, empty) = Ledger::open(directory.path()).unwrap();
    assert!(empty.is_empty());
    records().iter().for_each(|record| ledger.append(record).unwrap());
    ledger.sync().unwrap();
    let path = ledger.path().to_owned();
    (directory, path, records())
}

#[test]
fn what_was_synced_is_read_back() {
    let (directory, _, expected) = written();
    assert_eq!(read(directory.path()).unwrap(), expected);
    let (mut ledger, found) = Ledger::open(directory.path()).unwrap();
    assert_eq!(found, expected);
    ledger.append_delta(&delta(1)).unwrap();
    ledger.sync().unwrap();
    let records = read(directory.path()).unwrap();
    assert_eq!(records.len(), expected.len() + 1, "a known profile is not written again");
    let Record::Delta(last) = records.last().unwrap().clone() else { panic!("not a delta") };
    assert_eq!(last.delta(profile()).unwrap(), delta(1));
}

#[test]
fn every_torn_tail_is_cut_and_nothing_before_it() {
    let (directory, path, expected) = written();
    let whole = std::fs::read(&path).unwrap();
    let last = whole.windows(4).rposition(|window| window == MAGIC).unwrap();
    for length in last + 1..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let (_, found) = Ledger::open(directory.path()).unwrap();
        assert_eq!(found, expected[..expected.len() - 1], "torn at byte {length}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), last as u64);
    }
}

#[test]
fn every_flipped_bit_before_the_last_frame_is_named() {
    let (directory, path, _) = written();
    let whole = std::fs::read(&path).unwrap();
    let last = whole.windows(4).rposition(|window| window == MAGIC).unwrap();
    for at in 0..last {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).unwrap();
        let error = Ledger::open(directory.path()).unwrap_err();
        assert!(matches!(error, LedgerError::Damaged { .. }), "byte {at}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged, "a damaged ledger is left as it is");
    }
}

#[test]
fn damage_is_named_with_file_offset_and_rollout() {
    let (directory, path, _) = written();
    let mut bytes = std::fs::read(&path).unwrap();
    let frames: Vec<usize> = (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == MAGIC).collect();
    bytes[frames[3] + 8] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = read(directory.path()).unwrap_err().to_string();
    let place = format!("000000.ledger is damaged at byte {}, after a delta of rollout p2.r0 from token 0", frames[3]);
    assert!(error.contains(&place), "{error}");
}

/// The same records, read by another implementation of the format: bincode can be replaced without touching a byte.
mod mirror {
    use wincode::SchemaRead;

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Version {
        pub(super) epoch: u32,
        pub(super) step: u64,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Id {
        pub(super) plan: u64,
        pub(super) index: u32,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Evidence {
        Undeclared,
        Label(String),
        Behavioural { repeat_noise: f64, change: f64 },
        Digest([u8; 32]),
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Stamp {
        pub(super) version: Option<Version>,
        pub(super) evidence: Evidence,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Filter {
        Temperature,
        TopK,
        TopP,
        MinP,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Ties {
        LowerId,
        KeepAll,
        Unspecified,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Meaning {
        Drawn,
        Tempered,
        Raw,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Profile {
        pub(super) engine: String,
        pub(super) version: String,
        pub(super) filters: Vec<Filter>,
        pub(super) ties: Ties,
        pub(super) log_probs: Meaning,
        pub(super) dtypes: [String; 4],
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Request {
        pub(super) id: Id,
        pub(super) group: u32,
        pub(super) prompt: Vec<u32>,
        pub(super) temperature: f64,
        pub(super) top_k: u32,
        pub(super) top_p: f64,
        pub(super) min_p: f64,
        pub(super) stop: Vec<u32>,
        pub(super) max_new_tokens: u32,
        pub(super) seed: u64,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Kv {
        Fresh,
        Recomputed,
        Stale,
        Ambiguous,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Finish {
        Stop(u32),
        Length,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Rest {
        pub(super) vocabulary: Vec<u32>,
        pub(super) log_q_sampled: Vec<f32>,
        pub(super) log_rest: Vec<f32>,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) struct Delta {
        pub(super) rollout: Id,
        pub(super) start: u32,
        pub(super) tokens: Vec<u32>,
        pub(super) offsets: Vec<u32>,
        pub(super) ids: Vec<u32>,
        pub(super) log_q: Vec<f32>,
        pub(super) rest: Option<Rest>,
        pub(super) stamp: Stamp,
        pub(super) kv: Kv,
        pub(super) profile: u32,
        pub(super) finish: Option<Finish>,
    }

    #[derive(SchemaRead, Debug, PartialEq)]
    pub(super) enum Record {
        Profile(Profile),
        PlanOpened { plan: u64, requests: Vec<Request> },
        Delta(Delta),
        PlanSealed { plan: u64 },
        Reward { rollout: Id, reward: f64 },
        Consumed { plan: u64, rollouts: Vec<Id>, before: Version, after: Version },
        Resync { version: Version, path: String, digest: [u8; 32], stamp: Stamp },
    }
}

#[test]
fn another_implementation_reads_every_frame() {
    use mirror::Record as Mirror;
    let (_directory, path, _) = written();
    let bytes = std::fs::read(path).unwrap();
    let (mut at, mut frames) = (0, Vec::new());
    while at < bytes.len() {
        let (payload, size) = frame::read(&bytes[at..]).unwrap();
        frames.push(wincode::deserialize::<Mirror>(payload).unwrap());
        at += size;
    }
    assert_eq!(frames.len(), records().len());
    let Mirror::PlanOpened { requests, .. } = &frames[0] else { panic!("not a plan") };
    assert_eq!((requests[0].temperature, requests[0].stop.clone(), requests[0].seed), (0.8, vec![30], 5));
    let Mirror::Delta(delta) = &frames[2] else { panic!("not a delta") };
    assert_eq!((delta.tokens.clone(), delta.offsets.clone()), (vec![4, 9, 30], vec![0, 0, 2, 4]));
    assert_eq!(delta.finish, Some(mirror::Finish::Stop(30)));
    assert_eq!(delta.stamp.evidence, mirror::Evidence::Digest([7; 32]));
    let after = mirror::Version { epoch: 1, step: 8 };
    assert!(matches!(&frames[5], Mirror::Consumed { after: found, .. } if *found == after));
}
