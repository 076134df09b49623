//! What this gateway has done, as counters, and in Prometheus' text format.

use super::Gateway;
use lockstep_core::{Delta, delta::KvHistory};
use std::{
    fmt::{Display, Write},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The counters.
#[derive(Debug, Default)]
pub struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    tokens: AtomicU64,
    answers: AtomicU64,
    failed: AtomicU64,
    resumed: AtomicU64,
    abandoned: AtomicU64,
    undeclared: AtomicU64,
    unattributed: AtomicU64,
    inexact: AtomicU64,
    differences: AtomicU64,
}

impl Counts {
    /// A request came in.
    pub fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// A request was refused.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// An answer broke off for good.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// An answer was taken up again after its engine broke off.
    pub fn resumed(&self) {
        self.resumed.fetch_add(1, Relaxed);
    }

    /// A client left before its answer ended.
    pub fn abandoned(&self) {
        self.abandoned.fetch_add(1, Relaxed);
    }

    /// A trainer trained on something else than its plan.
    pub fn difference(&self) {
        self.differences.fetch_add(1, Relaxed);
    }

    /// Tokens passed.
    pub fn tokens(&self, delta: &Delta) {
        let tokens = delta.behavior.len() as u64;
        self.tokens.fetch_add(tokens, Relaxed);
        if delta.finish.is_some() {
            self.answers.fetch_add(1, Relaxed);
        }
        if delta.stamp.version().is_none() {
            self.undeclared.fetch_add(tokens, Relaxed);
        }
        if matches!(delta.kv, KvHistory::Stale | KvHistory::Ambiguous) {
            self.unattributed.fetch_add(tokens, Relaxed);
        }
        if let Some(rest) = &delta.behavior.columns().rest {
            let inexact = rest.log_rest.iter().filter(|log_rest| log_rest.is_finite()).count();
            self.inexact.fetch_add(inexact as u64, Relaxed);
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Sampled tokens so far.
    pub fn total_tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    /// Answers taken up again so far.
    pub fn resumptions(&self) -> u64 {
        self.resumed.load(Relaxed)
    }
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        let _ = writeln!(self.0, "lockstep_{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        let _ = writeln!(self.0, "lockstep_{name} {value}");
    }
}

/// Everything in Prometheus' text format.
pub fn page(gateway: &Gateway) -> String {
    let counts = &gateway.counts;
    let mut page = Page(String::new());
    page.counter("requests_total", "Requests that asked for answers.", counts.requests.load(Relaxed));
    page.counter("requests_refused_total", "Requests that were refused.", counts.refused.load(Relaxed));
    page.counter("answers_total", "Answers drawn to their end.", counts.answers.load(Relaxed));
    page.counter("answers_failed_total", "Answers that broke off for good.", counts.failed.load(Relaxed));
    page.counter("answers_resumed_total", "Times an answer was resumed elsewhere.", counts.resumed.load(Relaxed));
    page.counter("answers_abandoned_total", "Answers whose client left.", counts.abandoned.load(Relaxed));
    page.counter("tokens_total", "Sampled tokens checked.", counts.tokens.load(Relaxed));
    page.counter("tokens_undeclared_total", "Tokens of undeclared weights.", counts.undeclared.load(Relaxed));
    page.counter(
        "tokens_unattributed_total",
        "Tokens drawn on a stale or unknown KV cache.",
        counts.unattributed.load(Relaxed),
    );
    page.counter("tokens_inexact_total", "Tokens whose support is partly unknown.", counts.inexact.load(Relaxed));
    page.counter("plan_differences_total", "Reports of training on something else.", counts.differences.load(Relaxed));
    page.counter("weight_updates_total", "Weight updates that passed.", gateway.updates.count());
    page.gauge("plans_open", "Plans that are open or sealed.", gateway.plans.open_plans().len());
    page.gauge("paused", "Whether sampling is paused.", u8::from(gateway.pool.is_paused()));
    ledger(&mut page, gateway);
    replicas(&mut page, gateway);
    page.0
}

fn ledger(page: &mut Page, gateway: &Gateway) {
    let written = gateway.capture.written();
    page.counter("ledger_entries_total", "Entries written to the ledger.", written.entries.load(Relaxed));
    page.counter("ledger_syncs_total", "Syncs of the ledger.", written.syncs.load(Relaxed));
    let seconds = written.microseconds.load(Relaxed) as f64 / 1e6;
    page.counter("ledger_seconds_total", "Seconds spent writing and syncing.", seconds);
}

fn replicas(page: &mut Page, gateway: &Gateway) {
    page.family("replica_in_flight", "gauge", "Answers a replica is drawing.");
    for replica in gateway.pool.replicas() {
        let _ = writeln!(page.0, "lockstep_replica_in_flight{{replica={:?}}} {}", replica.name(), replica.in_flight());
    }
    page.family("replica_failures", "gauge", "Failures of a replica since the last answer it finished.");
    for replica in gateway.pool.replicas() {
        let _ = writeln!(page.0, "lockstep_replica_failures{{replica={:?}}} {}", replica.name(), replica.failures());
    }
}
