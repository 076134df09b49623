//! What the machine is told, what it asks for, and what it refuses.

use crate::token::RolloutId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A sampler among several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SamplerId(pub u32);

impl fmt::Display for SamplerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sampler {}", self.0)
    }
}

/// In which order complete plans are trained on. Which rollouts a plan has is the same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Batch n is plan n.
    #[default]
    Strict,
    /// A complete plan may be trained on before older ones, as long as it is among the oldest so many that were not yet.
    Windowed {
        /// Width of the window, in plans; 1 is `Strict`.
        plans: u32,
    },
}

/// What bounds the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Plans that may be open at a time, at least 1.
    pub max_open_plans: u32,
    /// Order of training.
    pub mode: Mode,
    /// How often an answer may be sampled from its first token.
    pub max_attempts: u32,
    /// How often an answer may be broken off.
    pub max_interruptions: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { max_open_plans: 1, mode: Mode::Strict, max_attempts: 4, max_interruptions: 3 }
    }
}

impl Rules {
    /// Width of the window, in plans.
    pub fn window(&self) -> u64 {
        match self.mode {
            Mode::Strict => 1,
            Mode::Windowed { plans } => u64::from(plans.max(1)),
        }
    }

    /// Most steps the trainer makes between the opening of a plan and the step on it: `max_open_plans - 1` on plans that were
    /// open before, and `window - 1` on plans that overtake it.
    pub fn max_lag(&self) -> u64 {
        u64::from(self.max_open_plans.max(1)) - 1 + self.window() - 1
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A sampler is there.
    Joined {
        /// Which.
        sampler: SamplerId,
        /// Answers it draws at a time.
        slots: u32,
        /// Whether it goes on from given tokens.
        resumes: bool,
    },
    /// Tokens of an answer are durable.
    Recorded {
        /// Who drew them.
        sampler: SamplerId,
        /// Of which answer.
        rollout: RolloutId,
        /// How many more.
        tokens: u32,
    },
    /// An answer is complete and durable.
    Finished {
        /// Who drew it.
        sampler: SamplerId,
        /// Which.
        rollout: RolloutId,
    },
    /// An answer came that no sampler of this machine drew: the trainer sent its request itself.
    Arrived {
        /// Which.
        rollout: RolloutId,
    },
    /// An answer that no sampler of this machine draws broke off, and goes on.
    Broke {
        /// Which.
        rollout: RolloutId,
    },
    /// A sampler's lease ran out, or it broke off: its answers go on elsewhere.
    Lost {
        /// Which.
        sampler: SamplerId,
    },
    /// The recorded tokens of an answer cannot be read any more.
    Gone {
        /// Which.
        rollout: RolloutId,
    },
    /// The outcome of an answer's reward is recorded, be it a number, a failure or a timeout.
    Judged {
        /// Which.
        rollout: RolloutId,
    },
    /// A trainer made its step on a plan.
    Consumed {
        /// Which.
        plan: u64,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Have an answer drawn.
    Sample {
        /// By whom.
        sampler: SamplerId,
        /// Which.
        rollout: RolloutId,
        /// Recorded tokens to go on from; 0 begins anew.
        tokens: u32,
        /// 1, and one more for every time its tokens were lost.
        attempt: u32,
    },
    /// Stop an answer of a plan that failed.
    Cancel {
        /// By whom it is being drawn.
        sampler: SamplerId,
        /// Which.
        rollout: RolloutId,
    },
    /// Every answer of a plan is there.
    Seal {
        /// Which plan.
        plan: u64,
    },
    /// A sealed and judged plan may be trained on, after those released before it.
    Release {
        /// Which plan.
        plan: u64,
    },
    /// A plan cannot be completed. It is not made smaller, and in its order nothing passes it.
    Fail(Failure),
}

/// Why a plan cannot be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An answer was sampled from its first token too often.
    #[error("rollout {rollout} of plan {} lost its tokens {limit} times, and may be sampled {limit} times", rollout.plan)]
    Attempts {
        /// The answer.
        rollout: RolloutId,
        /// The limit.
        limit: u32,
    },
    /// An answer was broken off too often.
    #[error("rollout {rollout} of plan {} was broken off {} times, {limit} are allowed", rollout.plan, limit + 1)]
    Interruptions {
        /// The answer.
        rollout: RolloutId,
        /// The limit.
        limit: u32,
    },
    /// An answer has tokens, and no sampler goes on from tokens.
    #[error("rollout {rollout} of plan {} has {tokens} recorded tokens, and none of {samplers} samplers resumes", rollout.plan)]
    NobodyResumes {
        /// The answer.
        rollout: RolloutId,
        /// Its tokens.
        tokens: u32,
        /// Samplers there are.
        samplers: usize,
    },
}

impl Failure {
    /// The answer it failed by.
    pub fn rollout(&self) -> RolloutId {
        match *self {
            Self::Attempts { rollout, .. }
            | Self::Interruptions { rollout, .. }
            | Self::NobodyResumes { rollout, .. } => rollout,
        }
    }
}

/// An event that contradicts what the machine knows. It changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// No plan may be opened now.
    #[error("{open} plans are open, at most {max} may be")]
    Full {
        /// Plans open.
        open: usize,
        /// The limit.
        max: u32,
    },
    /// A plan of nothing.
    #[error("plan {0} has no rollouts")]
    Empty(u64),
    /// A plan that is not open.
    #[error("plan {0} is not open")]
    NoPlan(u64),
    /// A rollout of no open plan.
    #[error("rollout {0} is of no open plan")]
    NoRollout(RolloutId),
    /// A sampler that joined twice.
    #[error("{0} is there already")]
    SamplerTwice(SamplerId),
    /// A sampler nobody knows, or that was lost.
    #[error("{0} is not there")]
    NoSampler(SamplerId),
    /// Tokens from a sampler that does not hold the answer any more.
    #[error("rollout {rollout} is not being drawn by {sampler}")]
    NotHeld {
        /// Who sent them.
        sampler: SamplerId,
        /// The answer.
        rollout: RolloutId,
    },
    /// An answer twice.
    #[error("rollout {0} arrived twice")]
    Twice(RolloutId),
    /// A step on a plan that was not released.
    #[error("plan {0} was trained on before it was released")]
    NotReleased(u64),
}

/// An answer of a plan that was open when the process ended, as the ledger tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Its recorded tokens.
    pub tokens: u32,
    /// Its attempts so far; 0 when it was never sent.
    pub attempts: u32,
    /// Whether it is complete.
    pub finished: bool,
    /// Whether the outcome of its reward is recorded.
    pub judged: bool,
}
