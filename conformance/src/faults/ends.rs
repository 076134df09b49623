//! Faults of where an answer ends.

use super::tampered::{Call, answering, asking, with_params};
use crate::check::Fault;
use lockstep_core::{BehaviorDistribution, Delta, Support, TokenId, delta::FinishReason, ports::PortResult};

/// Trims the stop id.
pub const STOP_TRIMMED: Fault = Fault {
    id: "stop-trimmed",
    does: "takes the stop id off the ids it returns",
    break_target: |target| {
        answering(target, |delta, _| {
            let long = delta.start > 0 || delta.behavior.len() > 1;
            let stopped = matches!(delta.finish, Some(FinishReason::Stop(_)));
            Ok(if long && stopped { with_last(delta, None) } else { delta })
        })
    },
};

/// Adds an end that was not drawn.
pub const SYNTHETIC_EOS: Fault = Fault {
    id: "synthetic-eos",
    does: "puts a stop id that was not drawn in the place of the last token of an answer that reached its limit",
    break_target: |target| {
        let fallback = target.ask.stop.first().copied().unwrap_or(TokenId(0));
        answering(target, move |delta, call| synthetic(delta, call, fallback))
    },
};

/// Runs on after a stop id.
pub const RUNS_ON: Fault = Fault {
    id: "runs-on",
    does: "goes on after a stop id, to the limit",
    break_target: |target| asking(target, |asked| with_params(asked, |_, _, limits| limits.stop.clear())),
};

/// Draws one token too many.
pub const LIMIT_EXCEEDED: Fault = Fault {
    id: "limit-exceeded",
    does: "draws one token more than the limit",
    break_target: |target| asking(target, |asked| with_params(asked, |_, _, limits| limits.max_new_tokens += 1)),
};

/// Ends before the limit.
pub const CUT_EARLY: Fault = Fault {
    id: "cut-early",
    does: "ends an answer one token before the limit and says that it was the limit",
    break_target: |target| {
        asking(target, |asked| {
            with_params(asked, |_, _, limits| {
                limits.max_new_tokens = limits.max_new_tokens.saturating_sub(1).max(1);
            })
        })
    },
};

/// Names a stop text nobody asked for.
pub const FOREIGN_TEXT: Fault = Fault {
    id: "foreign-stop-text",
    does: "says of an answer that reached its limit that a stop text ended it",
    break_target: |target| {
        answering(target, |delta, _| {
            let finish = delta.finish.map(|finish| match finish {
                FinishReason::Length => FinishReason::StopText,
                other => other,
            });
            Ok(Delta { finish, ..delta })
        })
    },
};

fn synthetic(mut delta: Delta, call: &Call, fallback: TokenId) -> PortResult<Delta> {
    let limits = call.request.request.params.limits();
    if delta.finish == Some(FinishReason::Length) && limits.max_new_tokens > 1 && !delta.behavior.is_empty() {
        let stop = limits.stop.first().copied().unwrap_or(fallback);
        delta.finish = Some(FinishReason::Stop(stop));
        return Ok(with_last(delta, Some(stop)));
    }
    Ok(delta)
}

/// The delta with its last token replaced by one that was certain, or gone.
fn with_last(mut delta: Delta, last: Option<TokenId>) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    delta.behavior.rows().take(delta.behavior.len() - 1).for_each(|support| behavior.push(&support));
    last.into_iter().for_each(|token| behavior.push(&Support::singleton(token)));
    delta.behavior = behavior;
    delta
}
