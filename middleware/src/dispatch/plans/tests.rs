use super::*;
use crate::{
    dispatch::{
        History,
        fixture::{delta, request},
    },
    ledger::{DeltaRecord, Record, SentAnswer, SentRecord},
};
use futures_util::FutureExt;
use lockstep_core::dispatch::Mode;

fn rules(max_open_plans: u32) -> Rules {
    Rules { max_open_plans, mode: Mode::Strict, ..Rules::default() }
}

fn plans(max_open_plans: u32) -> Plans {
    Plans::new(rules(max_open_plans), 0, 1000)
}

fn consumer(name: &str, rank: u32, ranks: u32) -> Consumer {
    Consumer { name: name.into(), rank, ranks }
}

fn taken(plans: &Plans, id: RolloutId) -> Taken {
    let asked = request(id.plan, id.index, id.index / 2);
    plans.take(id, &asked.prompt, asked.params).unwrap()
}

/// Draws an answer of index + 1 tokens; two answer one prompt.
fn answered(plans: &Plans, id: RolloutId) {
    let taken = taken(plans, id);
    plans.ended(&taken.request, vec![Arc::new(delta(id, (0, id.index + 1), 0, true))]).unwrap();
}

fn fill(plans: &Plans, ids: &[RolloutId]) {
    for &id in ids.iter().rev() {
        plans.judge(id, &Outcome::Reward(f64::from(id.index))).unwrap();
        answered(plans, id);
    }
}

fn trained(ids: &[RolloutId]) -> Vec<TrainedOn> {
    let whole = |&rollout: &RolloutId| TrainedOn { rollout, tokens: rollout.index + 1, masked_in: rollout.index + 1 };
    ids.iter().map(whole).collect()
}

fn given(plans: &Plans, consumer: &Consumer, now: u64) -> Sealed {
    plans.next(consumer, now).now_or_never().unwrap().unwrap().unwrap()
}

#[test]
fn a_driven_trainer_is_held_to_its_plan() {
    let plans = plans(1);
    let Opened { plan, rollouts: ids, .. } = plans.open(2, 2, None).unwrap();
    assert_eq!(ids.len(), 4);
    assert_eq!(plans.open(2, 2, None).unwrap_err().to_string(), "1 plans are open, at most 1 may be");
    let refused = |trained: &[TrainedOn]| plans.report_consumed(plan, trained, true).unwrap_err();
    let early = refused(&trained(&ids));
    assert_eq!(early.to_string(), "plan 0 waits for 4 of 4 rollouts and cannot have been trained on");
    let mut sealing = std::pin::pin!(plans.seal(plan));
    assert!(sealing.as_mut().now_or_never().is_none(), "it waits for the slowest");
    ids.iter().for_each(|&id| answered(&plans, id));
    let sealed = plans.seal(plan).now_or_never().unwrap().unwrap();
    assert_eq!((sealed.batch.rollouts().len(), sealed.rewards, sealed.first), (4, vec![None; 4], true));
    let mut less = trained(&ids);
    let dropped = less.remove(3);
    let said = "plan 0: 3 rollouts were trained on, 4 were given; p0.r3 not trained on, none of no such plan";
    assert_eq!(refused(&less).to_string(), said);
    less.push(TrainedOn { tokens: 1, ..dropped });
    assert_eq!(refused(&less).to_string(), "rollout p0.r3 was trained on with 1 tokens, 4 were sampled");
    less[3] = TrainedOn { masked_in: 0, ..dropped };
    assert_eq!(refused(&less).to_string(), "rollout p0.r3 has 4 sampled tokens, but the mask kept 0");
    assert!(refused(&less).is_selection());
    assert_eq!(plans.report_consumed(plan, &trained(&ids), false), Ok(Reported::Whole));
    assert_eq!(plans.report_consumed(plan, &trained(&ids), true), Ok(Reported::Whole));
    assert_eq!(plans.report_consumed(plan, &trained(&ids), true), Ok(Reported::Again));
    assert_eq!(plans.report_consumed(plan, &less, true), Err(PlansError::Closed(plan)));
    assert_eq!(plans.open(2, 2, None).unwrap().plan, 1);
}

#[test]
fn a_rollout_goes_on_from_its_tokens_and_is_told_again_when_it_is_complete() {
    let plans = plans(1);
    let Opened { rollouts: ids, .. } = plans.open(1, 2, None).unwrap();
    let first = taken(&plans, ids[0]);
    assert!(first.first && first.have.is_empty());
    let again = plans.take(ids[0], &first.request.prompt, first.request.params.clone());
    assert_eq!(again.unwrap_err(), PlansError::Drawing(ids[0]));
    plans.ended(&first.request, vec![Arc::new(delta(ids[0], (0, 3), 0, false))]).unwrap();
    let resumed = taken(&plans, ids[0]);
    assert!(!resumed.first && resumed.have[0].behavior.len() == 3);
    let other = plans.take(ids[1], &[TokenId(9)], first.request.params.clone()).unwrap_err().to_string();
    assert!(other.contains("p0.r0 and p0.r1 answer one prompt"), "{other}");
    let whole = vec![resumed.have[0].clone(), Arc::new(delta(ids[0], (3, 1), 1, true))];
    plans.ended(&resumed.request, whole).unwrap();
    answered(&plans, ids[1]);
    let told = taken(&plans, ids[0]);
    assert_eq!(told.have.iter().map(|delta| delta.behavior.len()).sum::<usize>(), 4);
}

#[test]
fn a_closed_plan_takes_the_same_report_again_and_no_part_of_it() {
    let plans = plans(1);
    let Opened { plan, rollouts: ids, .. } = plans.open(2, 2, None).unwrap();
    ids.iter().for_each(|&id| answered(&plans, id));
    plans.seal(plan).now_or_never().unwrap().unwrap();
    let mut whole = trained(&ids);
    assert_eq!(plans.report_consumed(plan, &whole, true), Ok(Reported::Whole));
    whole.reverse();
    assert_eq!(plans.report_consumed(plan, &whole, true), Ok(Reported::Again));
    assert_eq!(plans.report_consumed(plan, &whole[..3], true), Err(PlansError::Closed(plan)));
    assert_eq!(plans.report_consumed(plan, &[], true), Err(PlansError::Closed(plan)));
}

#[test]
fn ranks_pull_their_parts_and_a_dead_one_is_replaced() {
    let plans = plans(2);
    plans.feed(true);
    let Opened { plan, rollouts: ids, .. } = plans.open(2, 2, None).unwrap();
    let ranks = [consumer("a", 0, 2), consumer("b", 1, 2)];
    assert!(plans.next(&ranks[0], 0).now_or_never().is_none());
    fill(&plans, &ids);
    let parts = ranks.each_ref().map(|rank| given(&plans, rank, 0));
    assert_eq!(parts[0].rewards, [Some(0.0), Some(1.0)]);
    assert_eq!(parts[1].rewards, [Some(2.0), Some(3.0)]);
    assert_eq!(plans.report_consumed(plan, &trained(&ids[2..]), true), Ok(Reported::Part));
    assert_eq!(plans.report_consumed(plan, &trained(&ids[2..]), true), Ok(Reported::Again));
    assert!(plans.next(&ranks[1], 0).now_or_never().is_none(), "its part is done, and the next plan is not there");
    let replacement = consumer("c", 0, 2);
    let held = plans.next(&replacement, 999).now_or_never().unwrap().unwrap_err();
    assert_eq!(held.to_string(), "rank 0 of 2 is held by a until its lease ends");
    let again = given(&plans, &replacement, 1000);
    assert_eq!(again.batch, parts[0].batch, "what the dead one was given is given again");
    assert_eq!(plans.report_consumed(plan, &trained(&ids[..2]), true), Ok(Reported::Whole));
    let third = plans.next(&consumer("d", 0, 3), 1001).now_or_never().unwrap().unwrap_err();
    assert_eq!(third.to_string(), "there is no rank 0 of 3; the consumers so far have 2 ranks");
    plans.feed(false);
    assert!(plans.next(&replacement, 1001).now_or_never().unwrap().unwrap().is_none(), "no more will come");
}

#[test]
fn plans_are_trained_on_in_their_order() {
    let plans = plans(2);
    let Opened { rollouts: first, .. } = plans.open(1, 2, None).unwrap();
    let Opened { plan: second, rollouts: ids, .. } = plans.open(1, 2, None).unwrap();
    fill(&plans, &ids);
    let early = plans.report_consumed(second, &trained(&ids), true).unwrap_err();
    assert_eq!(early.to_string(), "plan 1 was trained on before it was released");
    assert!(early.is_selection());
    let only = consumer("a", 0, 1);
    let mut next = std::pin::pin!(plans.next(&only, 0));
    assert!(next.as_mut().now_or_never().is_none(), "the second plan waits for the first");
    fill(&plans, &first);
    assert_eq!(next.now_or_never().unwrap().unwrap().unwrap().batch.plan(), 0);
}

#[test]
fn an_answer_that_breaks_off_too_often_ends_its_plan_and_whoever_waits_is_told() {
    let plans = plans(1);
    let Opened { plan, rollouts: ids, .. } = plans.open(1, 2, None).unwrap();
    (0..3).for_each(|_| plans.broke(ids[1]).unwrap());
    let limit = plans.broke(ids[1]).unwrap_err().to_string();
    assert_eq!(limit, "the plan ended: rollout p0.r1 of plan 0 was broken off 4 times, 3 are allowed");
    assert_eq!(plans.seal(plan).now_or_never().unwrap().unwrap_err().to_string(), limit);
    let next = plans.next(&consumer("a", 0, 1), 0).now_or_never().unwrap();
    assert_eq!(next.unwrap_err().to_string(), limit);
}

#[test]
fn a_ledger_gives_the_plans_back_as_they_were() {
    let asked: Vec<Request> = (0..4).map(|index| request(0, index, index / 2)).collect();
    let drawn = |index: u32, ends| {
        let id = asked[index as usize].id;
        Record::Delta(DeltaRecord::new(&delta(id, (0, index + 1), 0, ends), 0))
    };
    let profile = Record::Profile((*crate::dispatch::fixture::profile()).clone());
    let mut records = vec![Record::PlanReserved { plan: 0, groups: 2, answers: 2 }, profile];
    records.extend(asked[..3].iter().cloned().map(Record::Dispatched));
    records.extend([drawn(0, true), drawn(2, false)]);
    records.push(Record::Reward { rollout: asked[0].id, reward: 0.5 });
    let answers = vec![SentAnswer { rollout: asked[1].id, attempt: 1, tokens: 0 }];
    records.push(Record::Sent(SentRecord { sampler: "fake".into(), at: 0, answers }));
    let recover = |records: &[Record]| {
        let mut history = History::of(records.to_vec()).unwrap();
        Plans::recover(rules(4), 1000, &mut history).unwrap()
    };
    let plans = recover(&records);
    let open = Progress { plan: 0, rollouts: 4, arrived: 1, judged: 1 };
    assert_eq!((plans.open_plans(), plans.next_number()), (vec![open], Some(1)));
    assert_eq!(taken(&plans, asked[2].id).have[0].behavior.len(), 3, "it goes on from its tokens");
    let (lost, new) = (taken(&plans, asked[1].id), taken(&plans, asked[3].id));
    assert_eq!(((lost.first, lost.attempt), (new.first, new.attempt)), ((false, 2), (true, 1)));
    let swapped = plans.take(asked[0].id, &[TokenId(9)], asked[0].params.clone());
    assert!(swapped.is_err(), "what was asked before stays as it was asked");
    let contradicts = plans.judge(asked[0].id, &Outcome::Reward(0.25)).unwrap_err().to_string();
    assert_eq!(contradicts, "rollout p0.r0 has reward 0.5 already, and now 0.25");

    records.extend([drawn(1, true), drawn(3, true)]);
    records.retain(|record| !matches!(record, Record::Delta(delta) if delta.rollout.index == 2));
    records.extend([Record::Dispatched(asked[3].clone()), drawn(2, true), Record::PlanSealed { plan: 0 }]);
    let ids: Vec<RolloutId> = asked.iter().map(|request| request.id).collect();
    let sealed = recover(&records).seal(0).now_or_never().unwrap().unwrap();
    assert!(!sealed.first, "the ledger knows that it is sealed");
    assert_eq!(sealed.rewards, [Some(0.5), None, None, None]);
    records.push(Record::Trained { plan: 0, rollouts: trained(&ids[..2]) });
    let half = recover(&records);
    half.heartbeat(&consumer("a", 0, 2), 0).unwrap();
    assert_eq!(half.report_consumed(0, &trained(&ids[..2]), true), Ok(Reported::Again), "a retry stores once");
    assert_eq!(half.report_consumed(0, &trained(&ids[2..]), true), Ok(Reported::Whole));
    records.push(Record::Trained { plan: 0, rollouts: trained(&ids[2..]) });
    let closed = recover(&records);
    assert_eq!((closed.open_plans(), closed.next_number()), (vec![], Some(1)));
    assert_eq!(closed.report_consumed(0, &trained(&ids), true), Ok(Reported::Again));
    assert_eq!(closed.seal(0).now_or_never().unwrap().unwrap_err(), PlansError::Closed(0));
}

/// The reply was lost: the trainer asks again, and there is one plan.
#[test]
fn a_plan_that_is_asked_for_by_its_number_may_be_asked_for_twice() {
    let plans = plans(2);
    let first = plans.open(2, 2, Some(0)).unwrap();
    assert_eq!(plans.open(2, 2, Some(0)).unwrap(), Opened { again: true, ..first.clone() });
    assert!(!first.again);
    let another = "plan 0 of 2 groups with 3 answers each was asked for; no such plan is open, and the next is 1";
    assert_eq!(plans.open(2, 3, Some(0)).unwrap_err().to_string(), another);
    let early = "plan 2 of 2 groups with 2 answers each was asked for; no such plan is open, and the next is 1";
    assert_eq!(plans.open(2, 2, Some(2)).unwrap_err().to_string(), early);
    assert_eq!(plans.open(2, 2, Some(1)).unwrap().plan, 1);
    assert_eq!(plans.open(2, 2, Some(2)).unwrap_err().to_string(), "2 plans are open, at most 2 may be");
}
