use super::*;
use crate::dispatch::fixture::{answer, request};
use futures_util::FutureExt;
use lockstep_core::dispatch::Mode;

fn plans(max_open_plans: u32) -> Plans {
    Plans::new(Rules { max_open_plans, mode: Mode::Strict, ..Rules::default() }, 0, 1000)
}

fn consumer(name: &str, rank: u32, ranks: u32) -> Consumer {
    Consumer { name: name.into(), rank, ranks }
}

/// Answers with index + 1 tokens each, two to a group, with their rewards.
fn fill(plans: &Plans, plan: u64, ids: &[RolloutId]) {
    for id in ids.iter().rev() {
        plans.judge(*id, &Outcome::Reward(f64::from(id.index))).unwrap();
        plans.arrive(answer(&request(plan, id.index, id.index / 2), id.index + 1)).unwrap();
    }
}

fn trained(ids: impl IntoIterator<Item = RolloutId>) -> Vec<Trained> {
    ids.into_iter().map(|rollout| Trained { rollout, tokens: rollout.index + 1, kept: 1 }).collect()
}

#[test]
fn a_driven_trainer_is_held_to_its_plan() {
    let plans = plans(1);
    let (plan, ids) = plans.open(2, 2).unwrap();
    assert_eq!(ids.len(), 4);
    assert_eq!(plans.open(2, 2).unwrap_err().to_string(), "1 plans are open, at most 1 may be");
    let early = plans.report_consumed(plan, (0, 1), &trained(ids.clone())).unwrap_err();
    assert_eq!(early.to_string(), "plan 0 waits for 4 of 4 rollouts and cannot have been trained on");
    let mut sealing = std::pin::pin!(plans.seal(plan));
    assert!(sealing.as_mut().now_or_never().is_none(), "it waits for the slowest");
    for id in &ids {
        plans.arrive(answer(&request(plan, id.index, id.index / 2), id.index + 1)).unwrap();
    }
    let (batch, rewards) = plans.seal(plan).now_or_never().unwrap().unwrap();
    assert_eq!((batch.rollouts().len(), rewards), (4, vec![None; 4]));
    let mut less = trained(ids.clone());
    let dropped = less.remove(3);
    let difference = plans.report_consumed(plan, (0, 1), &less).unwrap_err().to_string();
    let said = "plan 0: 3 rollouts were trained on, 4 were given; p0.r3 not trained on, none of no such plan";
    assert_eq!(difference, said);
    less.push(Trained { tokens: 1, ..dropped });
    let length = plans.report_consumed(plan, (0, 1), &less).unwrap_err().to_string();
    assert_eq!(length, "rollout p0.r3 was trained on with 1 tokens, 4 were sampled");
    assert_eq!(plans.report_consumed(plan, (0, 1), &trained(ids)), Ok(true));
    assert_eq!(plans.open(2, 2).unwrap().0, 1);
}

#[test]
fn ranks_pull_their_parts_and_a_dead_one_is_replaced() {
    let plans = plans(2);
    let (plan, ids) = plans.open(2, 2).unwrap();
    let ranks = [consumer("a", 0, 2), consumer("b", 1, 2)];
    assert!(plans.next(&ranks[0], 0).now_or_never().is_none());
    fill(&plans, plan, &ids);
    let parts: Vec<ScoredBatch> =
        ranks.iter().map(|rank| plans.next(rank, 0).now_or_never().unwrap().unwrap()).collect();
    assert_eq!((parts[0].rewards(), parts[1].rewards()), (&[0.0, 1.0][..], &[2.0, 3.0][..]));
    assert_eq!(plans.report_consumed(plan, (1, 2), &trained(ids[2..].to_vec())), Ok(false));
    let replacement = consumer("c", 0, 2);
    let held = plans.next(&replacement, 999).now_or_never().unwrap().unwrap_err();
    assert_eq!(held.to_string(), "rank 0 of 2 is held by a until its lease ends");
    let again = plans.next(&replacement, 1000).now_or_never().unwrap().unwrap();
    assert_eq!(again, parts[0], "what the dead one was given is given again");
    assert_eq!(plans.report_consumed(plan, (0, 2), &trained(ids[..2].to_vec())), Ok(true));
    let third = plans.next(&consumer("d", 0, 3), 1001).now_or_never().unwrap().unwrap_err();
    assert_eq!(third.to_string(), "there is no rank 0 of 3; the consumers so far have 2 ranks");
}

#[test]
fn plans_are_trained_on_in_their_order() {
    let plans = plans(2);
    let (_, first) = plans.open(1, 2).unwrap();
    let (second, ids) = plans.open(1, 2).unwrap();
    fill(&plans, second, &ids);
    let early = plans.report_consumed(second, (0, 1), &trained(ids.clone())).unwrap_err();
    assert_eq!(early.to_string(), "plan 1 was trained on before it was released");
    let only = consumer("a", 0, 1);
    let mut next = std::pin::pin!(plans.next(&only, 0));
    assert!(next.as_mut().now_or_never().is_none(), "the second plan waits for the first");
    fill(&plans, 0, &first);
    assert_eq!(next.now_or_never().unwrap().unwrap().batch().plan(), 0);
}
