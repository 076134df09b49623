use super::*;

const A: SamplerId = SamplerId(0);
const B: SamplerId = SamplerId(1);

fn id(plan: u64, index: u32) -> RolloutId {
    RolloutId { plan, index }
}

fn machine(max_open_plans: u32, mode: Mode) -> Dispatch {
    Dispatch::new(Rules { max_open_plans, mode, ..Rules::default() }, 0)
}

fn join(dispatch: &mut Dispatch, sampler: SamplerId, slots: u32) -> Vec<Action> {
    dispatch.on(Event::Joined { sampler, slots, resumes: true }).unwrap()
}

fn sampled(actions: &[Action]) -> Vec<(SamplerId, RolloutId, u32, u32)> {
    let sample = |action: &Action| match *action {
        Action::Sample { sampler, rollout, tokens, attempt } => Some((sampler, rollout, tokens, attempt)),
        _ => None,
    };
    actions.iter().filter_map(sample).collect()
}

fn finish(dispatch: &mut Dispatch, sampler: SamplerId, rollout: RolloutId) -> Vec<Action> {
    let mut actions = dispatch.on(Event::Finished { sampler, rollout }).unwrap();
    actions.extend(dispatch.on(Event::Judged { rollout }).unwrap());
    actions
}

#[test]
fn slots_are_filled_in_dispatch_order_across_plans_and_samplers() {
    let mut dispatch = machine(2, Mode::Strict);
    let mut actions = join(&mut dispatch, A, 2);
    actions.extend(join(&mut dispatch, B, 1));
    actions.extend(dispatch.open(2).unwrap().1);
    actions.extend(dispatch.open(2).unwrap().1);
    assert_eq!(sampled(&actions), [(A, id(0, 0), 0, 1), (A, id(0, 1), 0, 1), (B, id(1, 0), 0, 1)]);
    let full = dispatch.open(2).unwrap_err().to_string();
    assert_eq!(full, "2 plans are open, at most 2 may be");
    assert_eq!(sampled(&finish(&mut dispatch, A, id(0, 0))), [(A, id(1, 1), 0, 1)]);
}

#[test]
fn a_lost_sampler_is_resumed_elsewhere_and_lost_tokens_are_sampled_again() {
    let mut dispatch = machine(1, Mode::Strict);
    join(&mut dispatch, A, 2);
    dispatch.open(2).unwrap();
    dispatch.on(Event::Recorded { sampler: A, rollout: id(0, 1), tokens: 17 }).unwrap();
    join(&mut dispatch, B, 2);
    let actions = dispatch.on(Event::Lost { sampler: A }).unwrap();
    assert_eq!(sampled(&actions), [(B, id(0, 0), 0, 2), (B, id(0, 1), 17, 1)]);
    let late = dispatch.on(Event::Recorded { sampler: A, rollout: id(0, 1), tokens: 3 }).unwrap_err();
    assert_eq!(late.to_string(), "rollout p0.r1 is not being drawn by sampler 0");
    let actions = dispatch.on(Event::Gone { rollout: id(0, 1) }).unwrap();
    assert_eq!(actions[0], Action::Cancel { sampler: B, rollout: id(0, 1) });
    assert_eq!(sampled(&actions), [(B, id(0, 1), 0, 2)]);
}

#[test]
fn a_limit_ends_the_plan_and_names_the_rollout() {
    let mut dispatch = machine(2, Mode::Strict);
    let mut last = dispatch.open(2).unwrap().1;
    for _ in 0..4 {
        join(&mut dispatch, A, 1);
        last = dispatch.on(Event::Lost { sampler: A }).unwrap();
    }
    let failure = Failure::Interruptions { rollout: id(0, 0), limit: 3 };
    assert_eq!(last, [Action::Fail(failure)]);
    assert_eq!(failure.to_string(), "rollout p0.r0 of plan 0 was broken off 4 times, 3 are allowed");
    assert_eq!(join(&mut dispatch, A, 1), [], "its other answer waits for nothing");
    dispatch.open(1).unwrap();
    let actions = finish(&mut dispatch, A, id(1, 0));
    assert_eq!(actions, [Action::Seal { plan: 1 }], "nothing passes a plan that failed");
}

#[test]
fn tokens_without_a_sampler_that_resumes_are_an_error() {
    let mut dispatch = machine(1, Mode::Strict);
    dispatch.recover(0, &[Recovered { tokens: 5, attempts: 1, finished: false, judged: false }]).unwrap();
    let actions = dispatch.on(Event::Joined { sampler: A, slots: 1, resumes: false }).unwrap();
    let failure = Failure::NobodyResumes { rollout: id(0, 0), tokens: 5, samplers: 1 };
    assert_eq!(actions, [Action::Fail(failure)]);
}

#[test]
fn strict_waits_for_the_oldest_and_a_window_does_not() {
    let released = |mode| {
        let mut dispatch = machine(3, mode);
        join(&mut dispatch, A, 9);
        for _ in 0..3 {
            dispatch.open(1).unwrap();
        }
        let mut order = Vec::new();
        for plan in [2, 1, 0] {
            let actions = finish(&mut dispatch, A, id(plan, 0));
            order.extend(actions.into_iter().filter(|action| matches!(action, Action::Release { .. })));
        }
        let plan = |action: &Action| match action {
            Action::Release { plan } => *plan,
            _ => unreachable!(),
        };
        order.iter().map(plan).collect::<Vec<_>>()
    };
    assert_eq!(released(Mode::Strict), [0, 1, 2]);
    assert_eq!(released(Mode::Windowed { plans: 2 }), [1, 0, 2]);
    assert_eq!(released(Mode::Windowed { plans: 3 }), [2, 1, 0]);
}

#[test]
fn a_plan_stays_open_until_it_is_trained_on() {
    let mut dispatch = machine(1, Mode::Strict);
    join(&mut dispatch, A, 1);
    dispatch.open(1).unwrap();
    assert_eq!(dispatch.on(Event::Consumed { plan: 0 }), Err(DispatchError::NotReleased(0)));
    assert_eq!(finish(&mut dispatch, A, id(0, 0)), [Action::Seal { plan: 0 }, Action::Release { plan: 0 }]);
    assert_eq!(dispatch.on(Event::Finished { sampler: A, rollout: id(0, 0) }), Err(DispatchError::Twice(id(0, 0))));
    assert_eq!(dispatch.may_open(), None);
    dispatch.on(Event::Consumed { plan: 0 }).unwrap();
    assert_eq!(dispatch.may_open(), Some(1));
}

#[test]
fn answers_that_nobody_here_drew_are_taken_in_once() {
    let mut dispatch = machine(1, Mode::Strict);
    dispatch.open(2).unwrap();
    assert_eq!(dispatch.on(Event::Arrived { rollout: id(0, 1) }).unwrap(), []);
    assert_eq!(dispatch.on(Event::Arrived { rollout: id(0, 1) }), Err(DispatchError::Twice(id(0, 1))));
    assert_eq!(dispatch.on(Event::Arrived { rollout: id(0, 0) }).unwrap(), [Action::Seal { plan: 0 }]);
    assert_eq!(dispatch.on(Event::Arrived { rollout: id(3, 0) }), Err(DispatchError::NoRollout(id(3, 0))));
}

#[test]
fn leases_end_when_nobody_says_otherwise() {
    let mut leases = lease::Leases::new(30);
    leases.renew("a", 0);
    leases.renew("b", 10);
    leases.renew("a", 20);
    assert_eq!((leases.next(), leases.expire(39)), (Some(40), vec![]));
    assert_eq!(leases.expire(40), ["b"]);
    assert!(leases.runs(&"a", 49) && !leases.runs(&"a", 50));
}

#[test]
fn an_answer_drawn_elsewhere_may_break_off_so_often_and_no_more() {
    let mut dispatch = machine(1, Mode::Strict);
    dispatch.open(2).unwrap();
    let broke = Event::Broke { rollout: id(0, 1) };
    (0..3).for_each(|_| assert_eq!(dispatch.on(broke), Ok(vec![])));
    let failure = Failure::Interruptions { rollout: id(0, 1), limit: 3 };
    assert_eq!(dispatch.on(broke), Ok(vec![Action::Fail(failure)]));
    dispatch.on(Event::Arrived { rollout: id(0, 0) }).unwrap();
    assert!(dispatch.on(Event::Broke { rollout: id(0, 0) }).is_err(), "it is complete");
    assert_eq!(dispatch.failure(0), Some(failure));
}
