//! What got worse since an earlier report.

use crate::{check::Verdict, report::Report};

/// One line for each check that got worse: pass is better than not applicable, that is better than could not run, and
/// everything is better than fail. A check that has gone got worse; one that is new did not.
pub fn regressions(old: &Report, new: &Report) -> Vec<String> {
    let worse = |row: &crate::report::Row| {
        let before = row.verdict.word();
        match new.row(&row.id) {
            None => Some(format!("{}: {before} before, not asked now", row.id)),
            Some(now) if rank(&now.verdict) > rank(&row.verdict) => {
                let (word, line) = (now.verdict.word(), now.verdict.evidence());
                Some(format!("{}: {before} before, {word} now: {line}", row.id))
            }
            Some(_) => None,
        }
    };
    old.rows.iter().filter_map(worse).collect()
}

fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Pass(_) => 0,
        Verdict::NotApplicable(_) => 1,
        Verdict::CouldNotRun(_) => 2,
        Verdict::Fail(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn worse_is_named_better_and_new_are_not() {
        let row = |id: &str, verdict| Row { verdict, ..Row::named(id, "it holds") };
        let pass = || Verdict::Pass("1 of 1".into());
        let fail = || Verdict::Fail("0 of 1".into());
        let old = Report::new(vec![row("a.a", pass()), row("a.b", fail()), row("a.c", pass()), row("a.d", fail())]);
        let new = Report::new(vec![row("a.a", fail()), row("a.b", pass()), row("a.d", fail()), row("a.e", fail())]);
        let expected = ["a.a: pass before, FAIL now: 0 of 1", "a.c: pass before, not asked now"];
        assert_eq!(regressions(&old, &new), expected);
        assert!(regressions(&old, &old).is_empty());
    }
}
