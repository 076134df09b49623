//! A ledger as a table, one row a rollout, for pandas, datasets and whoever reads JSON.
//!
//! Rows are made and written one after the other; a whole answer is in memory, a whole ledger never.

mod parquet;

use super::{Catalogue, LedgerError, PlanState, StoredRollout};
use ::parquet::errors::ParquetError;
use lockstep_core::{FinishReason, delta::KvHistory, support::Domain};
use serde::Serialize;
use std::io::{self, Write};

/// A ledger that cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The file.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
    /// A row that is no JSON.
    #[error("cannot write the export: {0}")]
    Json(#[from] serde_json::Error),
    /// The Parquet file.
    #[error("cannot write the export: {0}")]
    Parquet(#[from] ParquetError),
}

/// A rollout as a row. Columns of `T` sampled tokens, `N` entries of their supports, `S` segments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name, `p12.r3`.
    pub rollout: String,
    /// Its plan.
    pub plan: u64,
    /// Its place in the plan's dispatch order.
    pub index: u32,
    /// Index of its group; none where the opening of its plan is not in the ledger, as for all that was asked.
    pub group: Option<u32>,
    /// The prompt's ids.
    pub prompt: Option<Vec<u32>>,
    /// Temperature it was asked with.
    pub temperature: Option<f64>,
    /// top-k it was asked with; 0 is off.
    pub top_k: Option<u32>,
    /// top-p it was asked with; 1 is off.
    pub top_p: Option<f64>,
    /// min-p it was asked with; 0 is off.
    pub min_p: Option<f64>,
    /// Seed it was asked with.
    pub seed: Option<u64>,
    /// The sampled ids, `[T]`.
    pub tokens: Vec<u32>,
    /// log q of each, in nats, `[T]`.
    pub log_q: Vec<f32>,
    /// Ids in each support, `[T]`.
    pub support_sizes: Vec<u32>,
    /// The supports' ids, one after the other, `[N]`.
    pub support_ids: Vec<u32>,
    /// log q of each; none where it is not known, `[N]`.
    pub support_log_q: Vec<Option<f32>>,
    /// Log mass of what is not known of each support; none where all is, `[T]`.
    pub log_rest: Vec<Option<f32>>,
    /// Size of the vocabulary where the support is all of it; none where it is the listed ids, `[T]`.
    pub vocabulary: Vec<Option<u32>>,
    /// Tokens of each run of one version, `[S]`.
    pub segment_tokens: Vec<u32>,
    /// The weights that drew it, `e0.s12`; none where they are undeclared, `[S]`.
    pub segment_versions: Vec<Option<String>>,
    /// The KV cache it was drawn on, `[S]`.
    pub segment_kv: Vec<&'static str>,
    /// The engine that drew it, `[S]`.
    pub segment_engines: Vec<String>,
    /// `stop` or `length`; none while it is not finished.
    pub finish: Option<&'static str>,
    /// Its reward, once it has one.
    pub reward: Option<f64>,
    /// Whether the trainer made a step of it.
    pub consumed: bool,
}

impl Row {
    /// The row of a rollout.
    pub fn new(rollout: &StoredRollout) -> Self {
        let request = rollout.request.as_ref();
        let params = request.map(|request| &request.params);
        let finish = rollout.deltas.last().and_then(|delta| delta.finish);
        let mut row = Self {
            rollout: rollout.id.to_string(),
            plan: rollout.id.plan,
            index: rollout.id.index,
            group: request.map(|request| request.group),
            prompt: request.map(|request| request.prompt.iter().map(|token| token.0).collect()),
            temperature: params.map(|params| params.temperature()),
            top_k: params.map(|params| params.truncation().top_k),
            top_p: params.map(|params| params.truncation().top_p),
            min_p: params.map(|params| params.truncation().min_p),
            seed: params.map(|params| params.seed()),
            tokens: vec![],
            log_q: vec![],
            support_sizes: vec![],
            support_ids: vec![],
            support_log_q: vec![],
            log_rest: vec![],
            vocabulary: vec![],
            segment_tokens: vec![],
            segment_versions: vec![],
            segment_kv: vec![],
            segment_engines: vec![],
            finish: finish.map(|finish| match finish {
                FinishReason::Stop(_) => "stop",
                FinishReason::Length => "length",
                FinishReason::StopText => "stop_text",
            }),
            reward: rollout.reward,
            consumed: rollout.state == PlanState::Consumed,
        };
        row.supports(rollout);
        row.segments(rollout);
        row
    }

    fn supports(&mut self, rollout: &StoredRollout) {
        for support in rollout.deltas.iter().flat_map(|delta| delta.behavior.rows()) {
            self.tokens.push(support.sampled().token.0);
            self.log_q.push(support.sampled().log_q as f32);
            self.support_sizes.push(support.ids().len() as u32);
            self.support_ids.extend(support.ids().iter().map(|id| id.0));
            self.support_log_q.extend(support.log_q().iter().map(|&log_q| Some(log_q as f32)));
            self.support_log_q.resize(self.support_ids.len(), None);
            self.log_rest.push(support.log_rest().map(|log_rest| log_rest as f32));
            self.vocabulary.push(match support.domain() {
                Domain::Listed => None,
                Domain::Vocabulary(size) => Some(size),
            });
        }
    }

    fn segments(&mut self, rollout: &StoredRollout) {
        let same = |a: &&lockstep_core::Delta, b: &&lockstep_core::Delta| {
            a.stamp == b.stamp && a.kv == b.kv && a.profile == b.profile
        };
        let deltas: Vec<_> = rollout.deltas.iter().filter(|delta| !delta.behavior.is_empty()).collect();
        for run in deltas.chunk_by(same) {
            self.segment_tokens.push(run.iter().map(|delta| delta.behavior.len() as u32).sum());
            self.segment_versions.push(run[0].stamp.version().map(|version| version.to_string()));
            self.segment_kv.push(kv(run[0].kv));
            self.segment_engines.push(format!("{} {}", run[0].profile.engine, run[0].profile.version));
        }
    }
}

/// The name of a KV history.
pub fn kv(kv: KvHistory) -> &'static str {
    match kv {
        KvHistory::Fresh => "fresh",
        KvHistory::Recomputed => "recomputed",
        KvHistory::Stale => "stale",
        KvHistory::Ambiguous => "ambiguous",
    }
}

/// Writes a ledger as JSON, one rollout a line. Gives their number.
///
/// # Errors
/// A ledger that cannot be read, a file that cannot be written.
pub fn jsonl(catalogue: &Catalogue, out: &mut dyn Write) -> Result<u64, ExportError> {
    each(catalogue, |row| {
        serde_json::to_writer(&mut *out, row)?;
        out.write_all(b"\n")?;
        Ok(())
    })
}

/// Writes a ledger as a Parquet file. Gives the number of rollouts.
///
/// # Errors
/// A ledger that cannot be read, a file that cannot be written.
pub fn parquet(catalogue: &Catalogue, out: impl Write + Send) -> Result<u64, ExportError> {
    let mut table = parquet::Table::create(out)?;
    let rows = each(catalogue, |row| Ok(table.push(row)?))?;
    table.finish()?;
    Ok(rows)
}

fn each(catalogue: &Catalogue, mut of: impl FnMut(&Row) -> Result<(), ExportError>) -> Result<u64, ExportError> {
    let mut rows = 0;
    for plan in catalogue.plans() {
        for rollout in catalogue.rollouts(plan)? {
            of(&Row::new(&rollout?))?;
            rows += 1;
        }
    }
    Ok(rows)
}
