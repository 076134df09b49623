//! A report as one page of HTML that a person can send on: no script, nothing from outside.

mod plot;

use crate::{check::Verdict, junit::escaped, report::Report, report::Row};
use std::fmt::Write;

const STYLE: &str = include_str!("page/style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escaped(&report.badge())
    );
    head(&mut out, report);
    report.rows.iter().for_each(|row| check(&mut out, row));
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn head(out: &mut String, report: &Report) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<h1>Is this pair training on what was sampled?</h1>\n<p class=\"badge {}\">{}</p>\n\
         <p>{}. {} tokens were drawn. An honest pair fails with probability at most {:.1e}.</p>\n<nav><ul>",
        match report.exit_code() {
            0 => "pass",
            1 => "fail",
            _ => "unrun",
        },
        escaped(&report.badge()),
        report.counts(),
        report.tokens,
        report.family_false_alarm
    );
    for row in &report.rows {
        let (kind, id) = (kind(&row.verdict), escaped(&row.id));
        let _ = writeln!(out, "<li class=\"{kind}\"><a href=\"#{id}\">{id}</a></li>");
    }
    out.push_str("</ul></nav>\n");
}

fn kind(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass(_) => "pass",
        Verdict::Fail(_) => "fail",
        Verdict::NotApplicable(_) => "absent",
        Verdict::CouldNotRun(_) => "unrun",
    }
}

fn check(out: &mut String, row: &Row) {
    let (kind, id) = (kind(&row.verdict), escaped(&row.id));
    let _ = writeln!(
        out,
        "<section id=\"{id}\" class=\"check\">\n<h2><span class=\"verdict {kind}\">{}</span> {id}</h2>\n<p>{}.</p>\n\
         <p class=\"evidence\">{}</p>",
        row.verdict.word(),
        escaped(&row.demand),
        escaped(row.verdict.evidence())
    );
    if !row.figures.is_empty() {
        out.push_str("<div class=\"figures\">\n");
        row.figures.iter().for_each(|figure| plot::figure(out, figure));
        out.push_str("</div>\n");
    }
    let reported = row.cases.iter().map(|case| escaped(case)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        out,
        "<p class=\"small\">{} tokens drawn. False alarm {:.0e}: {}. Reported as {reported}.</p>\n</section>",
        row.tokens,
        row.false_alarm,
        escaped(&row.false_alarm_why)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Suite, pair};

    #[tokio::test]
    async fn a_real_report_is_one_page_without_script_that_escapes_what_it_quotes() {
        let mut report = Suite::all().run(&pair::rounded(3), &mut |_| {}).await;
        report.rows[1].verdict = Verdict::Fail("<script>alert(1)</script>".into());
        let page = page(&report);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert"));
        for kind in ["histogram", "points", "cells", "tokens", "spans"] {
            assert!(page.contains(&format!("<figure class=\"{kind}\"")), "no {kind}");
        }
        assert_eq!(page.matches("<section").count(), report.rows.len());
        if let Some(directory) = std::env::var_os("LOCKSTEP_REPORT_DIR") {
            std::fs::write(std::path::Path::new(&directory).join("conformance.html"), &page).unwrap();
        }
    }
}
