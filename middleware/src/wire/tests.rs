use super::{
    CHUNK_BYTES,
    batch::{BatchReader, Purpose, ScoreReader, split, write_batch, write_scored},
    proto,
};
use lockstep_core::{
    Batch, BatchPlan, BehaviorDistribution, Delta, Evidence, FinishReason, RewardBook, Rollout, SamplerProfile,
    SamplingParams, ScoredBatch, Stamp, Support, SupportLogProbs, TokenId, WeightVersion,
    delta::KvHistory,
    dlc::Rule,
    plan::PromptGroup,
    ports::StepOptions,
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rivals::Method,
    rollout::Request,
    sampling::{Limits, Truncation},
    score::{RolloutLogProbs, RowLogProbs, ScoredAt},
    support::{Domain, Reported, Sampled},
    version::Digest,
};
use prost::Message;
use std::sync::Arc;

fn profile(engine: &str) -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: engine.into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature, FilterName::TopP],
        ties: TieRule::Unspecified,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}

/// Singletons, eight kept ids, a head with the drawn token in the tail, a head inside a mask.
fn support(at: usize) -> Support {
    let token = TokenId(at as u32 % 7);
    let ids: Vec<TokenId> = (0..8).map(TokenId).collect();
    let eighths = vec![0.125f64.ln(); 8];
    let partial = |ids: Vec<TokenId>, domain| {
        let sampled = Sampled { token: TokenId(9), log_q: 0.01f64.ln() };
        Support::new(sampled, Reported { ids, log_q: eighths[..7].to_vec(), log_rest: Some(0.125f64.ln()), domain })
    };
    match at % 4 {
        0 => Support::singleton(token),
        1 => Support::exact(token, ids, eighths).unwrap(),
        2 => partial(ids[..7].to_vec(), Domain::Vocabulary(40)).unwrap(),
        _ => partial((0..10).map(TokenId).collect(), Domain::Listed).unwrap(),
    }
}

fn behavior(tokens: std::ops::Range<usize>, support: fn(usize) -> Support) -> BehaviorDistribution {
    let mut behavior = BehaviorDistribution::default();
    tokens.for_each(|at| behavior.push(&support(at)));
    behavior
}

/// An answer of two versions, two engines.
fn rollout(request: &Request, tokens: usize) -> Rollout {
    let part = |from: usize, to: usize, step: u64, engine: &str| Delta {
        rollout: request.id,
        start: from as u32,
        behavior: behavior(from..to, support),
        stamp: Stamp::declared(WeightVersion { epoch: 1, step }, Evidence::Digest(Digest([step as u8; 32]))).unwrap(),
        kv: KvHistory::Recomputed,
        profile: profile(engine),
        finish: (to == tokens).then_some(FinishReason::Length),
    };
    let middle = tokens / 2;
    Rollout::fold(request.clone(), [part(0, middle, 3, "one"), part(middle, tokens, 4, "two")]).unwrap()
}

fn batch(tokens: usize) -> Batch {
    let limits = Limits { stop: vec![TokenId(9)], max_new_tokens: tokens as u32 };
    let params = SamplingParams::new(0.8, Truncation { top_k: 0, top_p: 0.95, min_p: 0.0 }, limits, 5).unwrap();
    let group = PromptGroup { prompt: vec![TokenId(1)], answers: vec![params; 2] };
    let mut plan = BatchPlan::open(6, vec![group.clone(), group]).unwrap();
    for request in plan.requests().to_vec() {
        plan.arrive(rollout(&request, tokens)).unwrap();
    }
    plan.seal().unwrap()
}

/// Any scores of the right shape: those of q itself.
fn scores(batch: &Batch) -> Vec<RolloutLogProbs> {
    let of = |behavior: &BehaviorDistribution| {
        let mut scores = SupportLogProbs::default();
        for support in behavior.rows() {
            let row = RowLogProbs {
                log_p: support.log_q().to_vec(),
                log_p_sampled: support.sampled().log_q,
                log_rest: support.log_rest(),
            };
            scores.push(&support, &row);
        }
        scores
    };
    let rollouts = batch.rollouts().iter();
    rollouts.map(|rollout| rollout.segments().iter().map(|segment| of(&segment.behavior)).collect()).collect()
}

fn read(chunks: Vec<proto::BatchChunk>) -> BatchReader {
    let mut pieces = chunks.into_iter().flat_map(|chunk| chunk.pieces);
    let mut reader = BatchReader::begin(pieces.next().unwrap()).unwrap();
    pieces.for_each(|piece| reader.push(piece).unwrap());
    reader
}

fn scored(tokens: usize) -> (ScoredBatch, Vec<RolloutLogProbs>) {
    let (batch, mut book) = (batch(tokens), RewardBook::default());
    batch.rollouts().iter().zip(0u8..).for_each(|(rollout, at)| book.post(rollout.id(), f64::from(at)).unwrap());
    let log_s = scores(&batch);
    (batch.with_rewards(&mut book).unwrap(), log_s)
}

#[test]
fn a_batch_arrives_as_it_was_sent_in_messages_that_stay_small() {
    for tokens in [4, 60_000] {
        let (sent, log_s) = scored(tokens);
        let options = StepOptions { rule: Rule::dlc(), horizon: 24 };
        let purpose = Purpose::Step { options: &options, rewards: sent.rewards(), log_s: &log_s };
        let chunks = write_batch(sent.batch(), purpose);
        let largest = chunks.iter().map(Message::encoded_len).max().unwrap();
        assert!(largest <= CHUNK_BYTES + 1024, "{largest} bytes in one message");
        assert_eq!(chunks.len() > 1, tokens > 1000);
        let reader = read(chunks);
        assert_eq!(StepOptions::try_from(reader.header.options.clone().unwrap()).unwrap(), options);
        assert_eq!(reader.into_scored().unwrap(), (sent, log_s));
    }
}

#[test]
fn every_correction_arrives_as_it_was_asked_for() {
    let rules = Method::ALL.map(Rule::Method).into_iter().chain([Rule::Uncorrected, Rule::dlc()]);
    for rule in rules {
        let options = StepOptions { rule, horizon: 12 };
        let wire = super::proto::StepOptions::from(&options);
        assert_eq!(StepOptions::try_from(wire.clone()).unwrap(), options);
    }
    let mut wire = super::proto::StepOptions::from(&StepOptions { rule: Rule::dlc(), horizon: 12 });
    wire.rule = Some(super::proto::Rule { rule: Some(super::proto::rule::Rule::Method("dlc_z".into())) });
    let error = StepOptions::try_from(wire).unwrap_err().to_string();
    assert!(error.starts_with("there is no correction \"dlc_z\""), "{error}");
}

#[test]
fn scores_arrive_as_they_were_sent() {
    let batch = batch(60_000);
    let scored = ScoredAt { version: WeightVersion { epoch: 1, step: 3 }, rollouts: scores(&batch) };
    let mut reader = ScoreReader::new(batch.rollouts().len());
    for chunk in write_scored(&scored) {
        assert!(chunk.encoded_len() <= CHUNK_BYTES + 1024);
        chunk.scores.iter().for_each(|scores| reader.push(scores).unwrap());
    }
    assert_eq!(reader.finish(&batch).unwrap(), scored.rollouts);
}

#[test]
fn pieces_that_make_no_batch_are_refused() {
    let chunks = write_batch(&batch(4), Purpose::Score(WeightVersion { epoch: 1, step: 3 }));
    let pieces: Vec<proto::BatchPiece> = chunks.into_iter().flat_map(|chunk| chunk.pieces).collect();
    assert!(BatchReader::begin(pieces[1].clone()).is_err(), "no header");
    let without = |left_out: usize| {
        let mut reader = BatchReader::begin(pieces[0].clone()).unwrap();
        let others = pieces.iter().enumerate().skip(1).filter(|(at, _)| *at != left_out);
        let pushed = others.into_iter().try_for_each(|(_, piece)| reader.push(piece.clone()));
        pushed.and_then(|()| reader.into_batch()).map_err(|error| error.to_string())
    };
    assert!(without(0).is_ok());
    (1..pieces.len()).for_each(|at| assert!(without(at).is_err(), "piece {at} is not missed"));
    let reader = read(vec![proto::BatchChunk { pieces }]);
    let unscored = reader.into_scored().unwrap_err().to_string();
    assert_eq!(unscored, "rollout p6.r0 has scores of 0 segments, not 2");
}

#[test]
fn a_token_costs_what_the_budget_allows() {
    let cost = |support: fn(usize) -> Support| {
        let behavior = proto::Behavior::from(&behavior(0..10_000, support));
        behavior.encoded_len() as f64 / 10_000.0
    };
    assert!(cost(|_| Support::singleton(TokenId(3))) <= 12.0);
    assert!(cost(|_| support(1)) <= 75.0);
}

#[test]
fn a_split_answer_folds_back_into_itself() {
    let batch = batch(60_000);
    let rollout = &batch.rollouts()[0];
    let parts: Vec<Delta> = split(rollout).collect();
    assert!(parts.len() > 2);
    assert_eq!(&Rollout::fold(rollout.request().clone(), parts).unwrap(), rollout);
}

#[test]
fn every_end_comes_back() {
    for finish in [FinishReason::Stop(TokenId(3)), FinishReason::Length, FinishReason::StopText] {
        assert_eq!(FinishReason::try_from(proto::Finish::from(finish)).unwrap(), finish);
    }
}
