//! A report as JUnit XML, for a continuous-integration server.

use crate::{check::Verdict, report::Report};
use std::fmt::Write;

/// One test suite with a test case a check: a fail is a failure, what could not run an error, what is not applicable skipped.
pub fn junit(report: &Report) -> String {
    let count = |kind: fn(&Verdict) -> bool| report.rows.iter().filter(|row| kind(&row.verdict)).count();
    let (failures, errors) = (count(Verdict::is_fail), count(|verdict| matches!(verdict, Verdict::CouldNotRun(_))));
    let skipped = count(|verdict| matches!(verdict, Verdict::NotApplicable(_)));
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<testsuite name=\"lockstep conformance\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" \
         skipped=\"{skipped}\">",
        report.rows.len()
    );
    for row in &report.rows {
        let family = row.id.split('.').next().unwrap_or_default();
        let (family, id, line) = (escaped(family), escaped(&row.id), escaped(row.verdict.evidence()));
        let demand = escaped(&row.demand);
        let inside = match row.verdict {
            Verdict::Pass(_) => format!("<system-out>{line}</system-out>"),
            Verdict::Fail(_) => format!("<failure message=\"{demand}\">{line}</failure>"),
            Verdict::NotApplicable(_) => format!("<skipped message=\"{line}\"/>"),
            Verdict::CouldNotRun(_) => format!("<error message=\"{demand}\">{line}</error>"),
        };
        let _ = writeln!(out, "  <testcase classname=\"{family}\" name=\"{id}\">{inside}</testcase>");
    }
    out.push_str("</testsuite>\n");
    out
}

/// Text that may stand in XML and in HTML, inside an attribute or outside. What XML cannot hold becomes a replacement
/// character: evidence may quote a hostile target.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => out.push(character),
            _ => out.push('\u{fffd}'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn verdicts_become_test_cases_and_hostile_text_is_harmless() {
        let row = |id: &str, verdict| Row { verdict, ..Row::named(id, "a < b") };
        let rows = vec![
            row("a.pass", Verdict::Pass("1 of 1".into())),
            row("a.fail", Verdict::Fail("</failure>\u{1}<script>".into())),
            row("b.absent", Verdict::NotApplicable("no \"probe\"".into())),
            row("b.unrun", Verdict::CouldNotRun("gone".into())),
        ];
        let expected = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuite name=\"lockstep conformance\" tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\">
  <testcase classname=\"a\" name=\"a.pass\"><system-out>1 of 1</system-out></testcase>
  <testcase classname=\"a\" name=\"a.fail\"><failure message=\"a &lt; b\">&lt;/failure&gt;\u{fffd}&lt;script&gt;</failure></testcase>
  <testcase classname=\"b\" name=\"b.absent\"><skipped message=\"no &quot;probe&quot;\"/></testcase>
  <testcase classname=\"b\" name=\"b.unrun\"><error message=\"a &lt; b\">gone</error></testcase>
</testsuite>
";
        assert_eq!(junit(&Report::new(rows)), expected);
    }
}
