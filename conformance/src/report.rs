//! What a suite found, as data and as text. Prints nothing.

use crate::{check::Verdict, figure::Figure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "lockstep-conformance/1";

/// What one check found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the check.
    pub id: String,
    /// Its demand.
    pub demand: String,
    /// Its verdict and the evidence.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Tokens drawn for it.
    pub tokens: u64,
    /// Probability of a fail on an honest pair.
    pub false_alarm: f64,
    /// Where that number comes from.
    pub false_alarm_why: String,
    /// Public reports of what it looks for, `owner/project#number`.
    #[serde(default)]
    pub cases: Vec<String>,
    /// What a page can draw of it.
    #[serde(default)]
    pub figures: Vec<Figure>,
}

/// What a suite found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// One row a check, in the order they ran.
    pub rows: Vec<Row>,
    /// Probability that an honest pair gets any fail: at most the sum over the checks (Bonferroni).
    pub family_false_alarm: f64,
    /// Tokens the sampler drew in all.
    #[serde(default)]
    pub tokens: u64,
}

#[cfg(test)]
impl Row {
    /// A row without numbers.
    pub(crate) fn named(id: &str, demand: &str) -> Self {
        let why = "equality".to_owned();
        let verdict = Verdict::Pass(String::new());
        let (cases, figures) = (vec![], vec![]);
        Self {
            id: id.into(),
            demand: demand.into(),
            verdict,
            tokens: 0,
            false_alarm: 0.0,
            false_alarm_why: why,
            cases,
            figures,
        }
    }
}

impl Report {
    /// A report of these rows.
    pub fn new(rows: Vec<Row>) -> Self {
        let family_false_alarm = rows.iter().map(|row| row.false_alarm).sum();
        let tokens = rows.iter().map(|row| row.tokens).sum();
        Self { schema: SCHEMA.to_owned(), rows, family_false_alarm, tokens }
    }

    /// 0 when every check passed or was not applicable, 1 when any failed, 2 when none failed but one could not run.
    pub fn exit_code(&self) -> u8 {
        let any = |kind: fn(&Verdict) -> bool| self.rows.iter().any(|row| kind(&row.verdict));
        if any(Verdict::is_fail) {
            1
        } else if any(|verdict| matches!(verdict, Verdict::CouldNotRun(_))) {
            2
        } else {
            0
        }
    }

    /// The row of a check.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// As JSON, indented.
    ///
    /// # Errors
    /// A number JSON cannot hold.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// As a table of plain text: verdict, check, tokens, and the evidence below each.
    pub fn table(&self) -> String {
        let width = |column: &dyn Fn(&Row) -> usize| self.rows.iter().map(column).max().unwrap_or(0);
        let (verdicts, ids) = (width(&|row| row.verdict.word().len()), width(&|row| row.id.len()));
        let mut out = String::new();
        for row in &self.rows {
            let (word, id) = (row.verdict.word(), &row.id);
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{word:verdicts$}  {id:ids$}  {:>7} tokens  {}", row.tokens, row.demand);
            let _ = writeln!(out, "{:verdicts$}  {}", "", row.verdict.evidence());
        }
        let _ = writeln!(
            out,
            "{}; {} tokens drawn; an honest pair fails with probability at most {:.1e}",
            self.counts(),
            self.tokens,
            self.family_false_alarm
        );
        out
    }

    /// How many checks got each verdict.
    pub fn counts(&self) -> String {
        let count = |word: &str| self.rows.iter().filter(|row| row.verdict.word() == word).count();
        let (pass, fail) = (count("pass"), count("FAIL"));
        let (absent, unrun) = (count("not applicable"), count("could not run"));
        format!("{pass} passed, {fail} failed, {absent} not applicable, {unrun} could not run")
    }

    /// The report in one short line, for a badge.
    pub fn badge(&self) -> String {
        let named = |word: &'static str| {
            self.rows.iter().filter(move |row| row.verdict.word() == word).map(|row| row.id.as_str())
        };
        let passed = named("pass").count();
        let ran = passed + named("FAIL").count() + named("could not run").count();
        match (named("FAIL").next(), self.exit_code()) {
            (Some(first), _) => format!("lockstep: red, {} of {ran} failed, {first} first", named("FAIL").count()),
            (None, 0) => format!("lockstep: green, {passed} of {ran}"),
            (None, _) => format!("lockstep: grey, {} of {ran} could not run", ran - passed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, verdict: Verdict) -> Row {
        Row { verdict, tokens: 96, false_alarm: 1e-6, ..Row::named(id, "the numbers add up") }
    }

    #[test]
    fn exit_codes_rank_fail_above_could_not_run_above_pass() {
        let (pass, fail) = (Verdict::Pass("1 of 1".into()), Verdict::Fail("0 of 1".into()));
        let (absent, unrun) = (Verdict::NotApplicable("no probe".into()), Verdict::CouldNotRun("timed out".into()));
        let code = |verdicts: &[&Verdict]| {
            Report::new(verdicts.iter().map(|&verdict| row("a.b", verdict.clone())).collect()).exit_code()
        };
        assert_eq!(code(&[&pass, &absent]), 0);
        assert_eq!(code(&[&pass, &fail, &unrun]), 1);
        assert_eq!(code(&[&pass, &unrun]), 2);
    }

    #[test]
    fn json_round_trips_and_the_table_lines_up() {
        let rows =
            vec![row("lag.zero", Verdict::Pass("0 of 4".into())), row("a.b", Verdict::CouldNotRun("gone".into()))];
        let report = Report::new(rows);
        let json = report.json().unwrap();
        assert!(json.contains("\"verdict\": \"could-not-run\"") && json.contains("\"evidence\": \"gone\""), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        let table = "\
pass           lag.zero       96 tokens  the numbers add up
               0 of 4
could not run  a.b            96 tokens  the numbers add up
               gone
1 passed, 0 failed, 0 not applicable, 1 could not run; 192 tokens drawn; an honest pair fails with probability at most 2.0e-6
";
        assert_eq!(report.table(), table);
    }
}
