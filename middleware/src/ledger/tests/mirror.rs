//! The records of the format that is written, read by another implementation of it: bincode can be replaced without touching
//! a byte.

use super::{frame, records, written};
use wincode::SchemaRead;

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Version {
    pub(crate) epoch: u32,
    pub(crate) step: u64,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Id {
    pub(crate) plan: u64,
    pub(crate) index: u32,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Evidence {
    Undeclared,
    Label(String),
    Behavioural { repeat_noise: f64, change: f64 },
    Digest([u8; 32]),
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Stamp {
    pub(crate) version: Option<Version>,
    pub(crate) evidence: Evidence,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Filter {
    Temperature,
    TopK,
    TopP,
    MinP,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Ties {
    LowerId,
    KeepAll,
    Unspecified,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Meaning {
    Drawn,
    Tempered,
    Raw,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Profile {
    pub(crate) engine: String,
    pub(crate) version: String,
    pub(crate) filters: Vec<Filter>,
    pub(crate) ties: Ties,
    pub(crate) log_probs: Meaning,
    pub(crate) dtypes: [String; 4],
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) group: u32,
    pub(crate) prompt: Vec<u32>,
    pub(crate) temperature: f64,
    pub(crate) top_k: u32,
    pub(crate) top_p: f64,
    pub(crate) min_p: f64,
    pub(crate) stop: Vec<u32>,
    pub(crate) max_new_tokens: u32,
    pub(crate) seed: u64,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Kv {
    Fresh,
    Recomputed,
    Stale,
    Ambiguous,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Finish {
    Stop(u32),
    Length,
    StopText,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Rest {
    pub(crate) vocabulary: Vec<u32>,
    pub(crate) log_q_sampled: Vec<f32>,
    pub(crate) log_rest: Vec<f32>,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum CompactRest {
    Absent,
    Partial(Vec<u8>, Rest),
    Every(Rest),
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Delta {
    pub(crate) rollout: Id,
    pub(crate) start: u32,
    pub(crate) stamp: Stamp,
    pub(crate) kv: Kv,
    pub(crate) profile: u32,
    pub(crate) finish: Option<Finish>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) listed: Vec<u8>,
    pub(crate) sizes: Vec<u8>,
    pub(crate) ids: Vec<u32>,
    pub(crate) log_q: Vec<f32>,
    pub(crate) rest: CompactRest,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) oldest: u64,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) retired: Vec<(u64, u64)>,
}

#[derive(SchemaRead, Debug, PartialEq)]
pub(crate) enum Record {
    Profile(Profile),
    PlanOpened { plan: u64, requests: Vec<Request> },
    Delta(Delta),
    PlanSealed { plan: u64 },
    Reward { rollout: Id, reward: f64 },
    Consumed { plan: u64, rollouts: Vec<Id>, before: Version, after: Version },
    Resync { version: Version, path: String, digest: [u8; 32], stamp: Stamp },
}

#[test]
fn another_implementation_reads_every_frame() {
    use self::Record as Mirror;
    let (_directory, path, _) = written();
    let bytes = std::fs::read(path).unwrap();
    let head = frame::read(&bytes).unwrap();
    let empty = Head { oldest: 0, profiles: vec![], retired: vec![] };
    assert_eq!((head.kind, wincode::deserialize::<Head>(head.payload).unwrap()), (frame::Kind::Head, empty));
    let (mut at, mut frames) = (head.size, Vec::new());
    while at < bytes.len() {
        let frame = frame::read(&bytes[at..]).unwrap();
        frames.push(wincode::deserialize::<Mirror>(frame.payload).unwrap());
        at += frame.size;
    }
    assert_eq!(frames.len(), records().len());
    let Mirror::PlanOpened { requests, .. } = &frames[0] else { panic!("not a plan") };
    assert_eq!((requests[0].temperature, requests[0].stop.clone(), requests[0].seed), (0.8, vec![30], 5));
    let Mirror::Delta(delta) = &frames[2] else { panic!("not a delta") };
    assert_eq!((&*delta.tokens, &*delta.listed, &*delta.sizes), (&[4, 9, 30][..], &[0b110][..], &[2, 2][..]));
    assert_eq!((&*delta.ids, delta.log_q[0]), (&[3, 9, 3, 9][..], 0.5f32.ln()));
    let rest = Rest { vocabulary: vec![50], log_q_sampled: vec![0.125f32.ln()], log_rest: vec![0.25f32.ln()] };
    assert_eq!(delta.rest, CompactRest::Partial(vec![0b100], rest));
    assert_eq!(delta.finish, Some(Finish::Stop(30)));
    assert_eq!(delta.stamp.evidence, Evidence::Digest([7; 32]));
    let after = Version { epoch: 1, step: 8 };
    assert!(matches!(&frames[5], Mirror::Consumed { after: found, .. } if *found == after));
}
