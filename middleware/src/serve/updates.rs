//! What the gateway knows of weight updates, because they pass through it: how many there were, and on which cache the
//! tokens after them were drawn.

use lockstep_core::{Delta, Stamp, delta::KvHistory};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an update did to the KV cache of running answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEffect {
    /// Rebuilt by the new weights.
    Recomputed,
    /// Kept, though the old weights built it.
    Kept,
    /// Not known.
    Unknown,
}

impl CacheEffect {
    fn history(self) -> KvHistory {
        match self {
            Self::Recomputed => KvHistory::Recomputed,
            Self::Kept => KvHistory::Stale,
            Self::Unknown => KvHistory::Ambiguous,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    updates: u64,
    effect: Option<CacheEffect>,
    /// What the next update will do, as the pause before it said.
    announced: Option<CacheEffect>,
    /// Whether a prefix cache may hold entries of older weights.
    stale_prefixes: bool,
}

/// The updates so far.
#[derive(Debug, Default)]
pub struct Updates(Mutex<State>);

/// Where the updates stood when an answer began, and the weights of its first token.
#[derive(Debug, Clone)]
pub struct Began {
    updates: u64,
    stale_prefixes: bool,
    first: Option<Stamp>,
}

impl Updates {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pause says what the update under it will do to running answers.
    pub fn announce(&self, effect: CacheEffect) {
        self.state().announced = Some(effect);
    }

    /// New weights are in. `flushed` says whether the prefix cache was emptied.
    pub fn updated(&self, without_pause: CacheEffect, flushed: bool) {
        let mut state = self.state();
        state.updates += 1;
        let effect = state.announced.unwrap_or(without_pause);
        state.effect = Some(effect);
        state.stale_prefixes = !flushed && effect != CacheEffect::Recomputed;
    }

    /// The prefix cache is empty.
    pub fn flushed(&self) {
        self.state().stale_prefixes = false;
    }

    /// Running answers go on.
    pub fn resumed(&self) {
        self.state().announced = None;
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.state().updates
    }

    /// An answer begins.
    pub fn begin(&self) -> Began {
        let state = self.state();
        Began { updates: state.updates, stale_prefixes: state.stale_prefixes, first: None }
    }

    /// Says of a delta on which cache it was drawn, as far as the updates tell more than the engine does: tokens of other
    /// weights than the answer's first came after an update, and on what that update left of the cache.
    pub fn stamp(&self, delta: &mut Delta, began: &mut Began) {
        let first = began.first.get_or_insert_with(|| delta.stamp.clone());
        if *first != delta.stamp {
            let effect = self.state().effect;
            delta.kv = effect.map_or(KvHistory::Ambiguous, CacheEffect::history);
            return;
        }
        let old_prefix = began.stale_prefixes && delta.kv == KvHistory::Fresh;
        let unknown = delta.stamp.version().is_none() && self.count() != began.updates;
        if old_prefix || unknown {
            delta.kv = KvHistory::Ambiguous;
        }
    }
}

impl Began {
    /// The weights of the answer's first token, when some tokens are there already.
    pub fn resumes(&mut self, first: Option<Stamp>) {
        self.first = first;
    }
}
