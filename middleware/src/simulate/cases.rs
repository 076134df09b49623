//! Public fault reports, each as a schedule that is sound here and as the broken twin that is flagged.

use super::{
    Disturbance, Policy, Scenario, Simulated, simulate,
    tests::{busy, noticed},
};
use crate::{
    audit::{Audit, Selector},
    dispatch::fixture::{delta, request},
};
use lockstep_conformance::{Suite, pair};
use lockstep_core::{
    Rollout, RolloutId, Stamp, Support, TokenId,
    dlc::{
        Rule,
        loss::{DomainRow, Scale, loss},
        weigh,
        weigh::Position,
    },
    score::{RowLogProbs, versions},
};
use std::collections::BTreeMap;

const SEEDS: u64 = 10;

fn audited(seed: u64, policy: Policy) -> (Simulated, Audit) {
    let simulated = simulate(&busy(seed, policy));
    let audit = Audit::of(&simulated.account);
    (simulated, audit)
}

/// The same schedule, sound and broken: the audit passes the one and flags the other, by membership and by `seen`.
fn flags(broken: Policy, seen: impl Fn(&Audit) -> bool) {
    let mut shown = 0;
    for seed in 0..SEEDS {
        let (_, sound) = audited(seed, Policy::Planned);
        assert!(!sound.is_red(), "seed {seed}\n{}", sound.table());
        let (_, red) = audited(seed, broken);
        assert!(!red.broken.is_empty(), "seed {seed}\n{}", red.table());
        shown += u64::from(seen(&red));
    }
    assert_eq!(shown, SEEDS, "{broken:?} does not show in every schedule");
}

fn rho(audit: &Audit, of: &str, with: Selector) -> (f64, f64) {
    let found = audit.correlations.iter().find(|it| it.of == of && it.with == with);
    found.and_then(|it| it.rho.zip(it.p)).unwrap_or((0.0, 1.0))
}

/// Answers that take longer than the age limit are discarded and queued again, for ever.
#[test]
fn thinking_machines_lab_tinker_cookbook_822() {
    flags(Policy::DropByAge { steps: 1 }, |red| {
        let (Some(generated), Some(trained)) = (red.length.generated, red.length.trained) else { return false };
        trained.mean < generated.mean && trained.count < generated.count
    });
}

/// The slowest rows of every step are evicted, which are the longest.
#[test]
fn nvidia_nemo_rl_3665() {
    flags(Policy::EvictSlowest { keep: 0.75 }, |red| {
        let (rho, p) = rho(red, "length", Selector::Trained);
        rho < 0.0 && p < 0.01
    });
}

/// A whole group is cancelled when one slow member ages.
#[test]
fn prime_intellect_prime_rl_2960() {
    flags(Policy::CancelGroups { steps: 1 }, |red| !red.length.is_equal());
    for seed in 0..SEEDS {
        let scenario = busy(seed, Policy::CancelGroups { steps: 1 });
        let simulated = simulate(&scenario);
        let mut kept = BTreeMap::<(u64, u32), u32>::new();
        for (id, _) in simulated.account.batches.iter().flat_map(|batch| &batch.trained) {
            *kept.entry((id.plan, id.index / scenario.answers)).or_default() += 1;
        }
        assert!(
            kept.values().all(|&members| members == scenario.answers),
            "groups go whole, one slow member takes three"
        );
    }
}

/// Groups are filtered by a shaped reward, so that which of them is trained on depends on the shaping.
#[test]
fn verl_project_verl_recipe_125() {
    let plain = Policy::DropZeroVarianceShaped { shaping: 0.0 };
    let shaped = Policy::DropZeroVarianceShaped { shaping: 0.3 };
    flags(plain, |red| !red.reward.is_equal());
    for seed in 0..SEEDS {
        let trained = |policy| simulate(&busy(seed, policy)).account.trained();
        let (plain, shaped) = (trained(plain), trained(shaped));
        assert!(plain.len() < shaped.len(), "shaping lets groups through in which every answer failed");
        assert_eq!(trained(Policy::Planned).len(), 20 * 16);
    }
}

/// Filtered groups are refilled from later ones: who is in a batch cannot be said before the rewards are known.
#[test]
fn areal_project_areal_450() {
    flags(Policy::RefillZeroVariance, |red| red.trained > 0);
    for seed in 0..SEEDS {
        let changed = |policy| {
            let disturbance = Disturbance::Rewards(99);
            noticed(&simulate(&busy(seed, policy)), &simulate(&Scenario { disturbance, ..busy(seed, policy) }))
        };
        assert!(changed(Policy::RefillZeroVariance) && !changed(Policy::Planned), "seed {seed}");
    }
}

/// An answer that waits in the queue of an engine that aborts comes back empty, and takes its tokens with it.
#[test]
fn sgl_project_sglang_11673() {
    flags(Policy::EmptyPartials, |red| {
        red.broken.iter().any(|rule| rule.contains("recorded tokens of it were thrown away"))
    });
}

/// A stretch of tokens drawn by the weights of one step.
type Stretch = (u64, u32);

/// What stands in the record of an answer whose engine drew these stretches and reported each as it was drawn.
fn recorded(truth: &[Stretch]) -> Vec<Stretch> {
    let asked = request(0, 0, 0);
    let mut start = 0;
    let deltas = truth.iter().enumerate().map(|(at, &(step, tokens))| {
        let delta = delta(asked.id, (start, tokens), step, at + 1 == truth.len());
        start += tokens;
        delta
    });
    let rollout = Rollout::fold(asked.clone(), deltas.collect::<Vec<_>>()).unwrap();
    let stretch =
        |segment: &lockstep_core::Segment| (segment.stamp.version().unwrap().step, segment.behavior.len() as u32);
    rollout.segments().iter().map(stretch).collect()
}

/// Tokens whose label is not the step that drew them, where one label is put on the whole answer.
fn mislabelled(truth: &[Stretch], label: u64) -> u32 {
    truth.iter().filter(|(step, _)| *step != label).map(|(_, tokens)| tokens).sum()
}

/// A group that was aborted twice and resumed: three versions in one answer.
#[test]
fn thudm_slime_2092() {
    let truth = [(2, 2), (4, 2), (6, 8)];
    assert_eq!(recorded(&truth), truth);
    assert_eq!(mislabelled(&truth, 6), 4, "one label for the whole answer");
}

/// The version is read after the response: an update between request and reply labels tokens with weights that never drew.
#[test]
fn inclusion_ai_areal_1569() {
    let truth = [(3, 12)];
    let at_reply = 4;
    assert_eq!(recorded(&truth), truth);
    assert_eq!(mislabelled(&truth, at_reply), 12);
}

/// An answer spans a refit although partial rollouts are off: it has two versions, and says so.
#[test]
fn nvidia_nemo_labs_molt_124() {
    let truth = [(7, 30), (8, 10)];
    assert_eq!(recorded(&truth), truth);
    assert_eq!((mislabelled(&truth, 7), mislabelled(&truth, 8)), (10, 30), "either label alone is wrong somewhere");
    let (simulated, _) = audited(1, Policy::Planned);
    assert!(simulated.largest_lag > 0, "answers of the schedule do outlive an update");
}

/// What a label means: admission, first token, or current. A request waits across an update, and another comes while it is
/// drawn: each of the three is wrong about some token. Undeclared is not version 0.
#[test]
fn vllm_project_vllm_54443() {
    let (admitted, truth, current) = (1, [(2, 5), (3, 6)], 4);
    assert_eq!(recorded(&truth), truth);
    assert_eq!([admitted, truth[0].0, current].map(|label| mislabelled(&truth, label)), [11, 6, 11]);
    let asked = request(0, 0, 0);
    let mut undeclared = delta(asked.id, (0, 3), 0, true);
    undeclared.stamp = Stamp::undeclared();
    let mut plan = lockstep_core::BatchPlan::restore(0, vec![asked.clone()]).unwrap();
    plan.arrive(Rollout::fold(asked, [undeclared]).unwrap()).unwrap();
    assert!(versions(&plan.seal().unwrap()).is_err(), "tokens of undeclared weights have no log p_s");
}

/// A label is a claim. What proves it is that the greedy log-probs of a probe prompt change with the weights; a sampler that takes
/// the new label and keeps the old weights is told by them.
#[tokio::test]
async fn gmiswe_tinker_cloud_32() {
    let (suite, mut shown) = (Suite::all(), 0);
    for check in suite.checks() {
        for fault in check.faults().filter(|fault| fault.id == "label-without-load") {
            for seed in 0..2 {
                assert!(check.run(&pair::target(seed)).await.is_pass(), "{}, seed {seed}", check.id);
                let broken = check.run(&(fault.break_target)(pair::target(seed))).await;
                assert!(broken.is_fail(), "{}, seed {seed}: {broken:?}", check.id);
                shown += 1;
            }
        }
    }
    assert!(shown > 0, "no check proves a label");
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let normaliser = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    logits.iter().map(|logit| (logit - normaliser).min(0.0)).collect()
}

/// Trains a policy over six tokens for 128 steps, each on answers drawn at its own weights by a sampler whose kernels differ a
/// little. Every answer has the same reward, so nothing is to be learnt. Gives the KL from the first policy to the last, and the
/// smallest ESS of a step: `1 / E_q[(p / q)^2]`.
fn trained(rule: &Rule) -> (f64, f64) {
    const KERNELS: [f64; 6] = [0.12, -0.05, 0.0, 0.04, -0.1, -0.01];
    let (mut logits, mut smallest) = (vec![0.3, 0.1, 0.0, -0.2, 0.2, -0.1], 1.0f64);
    let begin = log_softmax(&logits);
    for _ in 0..128 {
        let log_p = log_softmax(&logits);
        let log_q = log_softmax(&logits.iter().zip(KERNELS).map(|(logit, error)| logit + error).collect::<Vec<_>>());
        let second: f64 = log_p.iter().zip(&log_q).map(|(p, q)| (2.0 * p - q).exp()).sum();
        smallest = smallest.min(1.0 / second);
        let mut gradient = vec![0.0; logits.len()];
        for (token, q) in log_q.iter().map(|log_q| log_q.exp()).enumerate() {
            let ids = (0..logits.len() as u32).map(TokenId).collect();
            let support = Support::exact(TokenId(token as u32), ids, log_q.clone()).unwrap();
            let row = RowLogProbs { log_p: log_p.clone(), log_p_sampled: log_p[token], log_rest: None };
            let correction = weigh(&Position { support: &support, log_s: &row, log_theta: &row }, rule).unwrap();
            let known: Vec<usize> = (0..logits.len()).collect();
            let row = DomainRow { log_theta: &log_p, log_s: &log_p, known: &known, sampled: token };
            let mut of_token = vec![0.0; logits.len()];
            loss(&row, &correction, Scale { advantage: 1.0, temperature: 1.0 }, &mut of_token);
            gradient.iter_mut().zip(of_token).for_each(|(sum, part)| *sum += q * part);
        }
        logits.iter_mut().zip(gradient).for_each(|(logit, slope)| *logit -= slope);
    }
    let kl = begin.iter().zip(log_softmax(&logits)).map(|(begin, end)| begin.exp() * (begin - end)).sum();
    (kl, smallest)
}

/// Plain policy gradient at cadence 1 runs away although its ESS never falls below 0.989: a high ESS is no proof. What tells the
/// runs apart is drift that no reward asked for, of which the corrected one has none.
#[test]
fn marin_community_marin_8955() {
    let ((drifted, plain), (stayed, corrected)) = (trained(&Rule::Uncorrected), trained(&Rule::dlc()));
    assert!(plain > 0.989 && corrected > 0.989, "ESS {plain} and {corrected}");
    assert!(drifted > 0.1, "KL {drifted}");
    assert!(stayed < 1e-12, "KL {stayed}");
}

/// Whatever is cancelled comes back: a rollout id names one answer in the account, trained on once.
#[test]
fn every_dispatched_answer_is_trained_on_once() {
    let (simulated, audit) = audited(5, Policy::Planned);
    let trained: Vec<RolloutId> =
        simulated.account.batches.iter().flat_map(|batch| &batch.trained).map(|(id, _)| *id).collect();
    assert_eq!((trained.len(), audit.trained), (20 * 16, 20 * 16));
    assert!(simulated.account.rollouts.values().any(|rollout| rollout.attempts > 1), "some were sampled again");
}
