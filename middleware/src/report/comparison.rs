//! The self-contained page of a comparison of many runs: a sentence, a table of verdicts, a table of numbers, and line plots of
//! up to three curves each. Knows nothing of what is compared.

use super::{
    STYLE,
    axis::Spacing,
    plot::{Curve, LEFT, Plot, RIGHT},
    text::escape,
};
use std::fmt::Write;

const CLASSES: [(&str, &str); 3] = [("a", "first"), ("b", "second"), ("c", "third")];

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells, a row a list.
    pub rows: Vec<Vec<String>>,
}

/// A plot over steps.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its id in the page.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What its y axis measures.
    pub unit: &'static str,
    /// Whether the y axis is logarithmic.
    pub log: bool,
    /// A line to hold the curves against.
    pub threshold: Option<f64>,
    /// Name and values of up to three curves, one value a step; `None` where there is none.
    pub curves: Vec<(String, Vec<Option<f64>>)>,
}

/// What the page shows.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Its heading.
    pub title: String,
    /// What came out, in a sentence or two.
    pub lead: String,
    /// The steps of every curve.
    pub steps: Vec<u64>,
    /// The plots.
    pub figures: Vec<Figure>,
    /// The tables, the most telling first.
    pub tables: Vec<Table>,
    /// What it was made with, as text.
    pub configuration: String,
}

/// The page as one HTML file: no network, no script, no fonts.
pub fn render(comparison: &Comparison) -> String {
    let title = escape(&comparison.title);
    let lead = escape(&comparison.lead);
    let tables: String = comparison.tables.iter().map(table).collect();
    let figures: String = comparison.figures.iter().map(|figure| plot(figure, &comparison.steps)).collect();
    let configuration = escape(&comparison.configuration);
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:" />
<link rel="icon" href="data:," />
<title>{title}</title>
<style>
{STYLE}.comparison {{ font-size: 13px; }}
.comparison th, .comparison td {{ padding: 4px 12px; vertical-align: baseline; border-top: 1px solid var(--rule); }}
.comparison td:first-child {{ white-space: nowrap; }}
</style>
</head>
<body>
<main>
<header>
<p class="stage">Lockstep experiment</p>
<h1>{title}</h1>
<p class="lead">{lead}</p>
</header>
<section id="curves" data-left="{LEFT}" data-right="{RIGHT}">
<h2>Over the steps</h2>
<div class="figures">
{figures}</div>
</section>
{tables}<section>
<h2>Everything behind it</h2>
<details>
<summary>Setting</summary>
<pre tabindex="0">{configuration}</pre>
</details>
</section>
</main>
</body>
</html>
"#
    )
}

fn table(table: &Table) -> String {
    let title = escape(&table.title);
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let mut html = format!(
        "<section>\n<h2>{title}</h2>\n<div class=\"scroll\" tabindex=\"0\">\n<table class=\"comparison\">\n<thead>\n<tr>{}</tr>\n</thead>\n<tbody>\n",
        cells("th", &table.columns)
    );
    for row in &table.rows {
        let _ = writeln!(html, "<tr>{}</tr>", cells("td", row));
    }
    html + "</tbody>\n</table>\n</div>\n</section>\n"
}

fn plot(figure: &Figure, steps: &[u64]) -> String {
    let Figure { id, title, unit, log, threshold, curves } = figure;
    if steps.is_empty() || curves.is_empty() {
        return String::new();
    }
    let curves = curves.iter().zip(CLASSES).map(|((name, values), (class, column))| Curve {
        name: escape(name),
        class,
        column,
        values: values.clone(),
        gap: "because the value has no place on the axis",
    });
    let spacing = if *log { Spacing::Log } else { Spacing::Linear };
    let curves = curves.collect();
    Plot { id, title, unit, spacing, steps, curves, marks: &[], threshold: *threshold, reach: &[] }.figure()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let figure = Figure {
            id: "stale",
            title: "Stale sampler",
            unit: "noise floors",
            log: false,
            threshold: Some(2.0),
            curves: vec![("none & <b>".into(), vec![Some(1.0), None, Some(3.0)]), ("dlc".into(), vec![Some(1.0); 3])],
        };
        let table = Table { title: "Rows".into(), columns: vec!["a".into()], rows: vec![vec!["<script>".into()]] };
        Comparison {
            title: "A & B".into(),
            lead: "It held.".into(),
            steps: vec![4, 8, 12],
            figures: vec![figure],
            tables: vec![table],
            configuration: "x = 1".into(),
        }
    }

    #[test]
    fn the_page_loads_nothing_and_escapes_what_it_is_given() {
        let page = render(&comparison());
        assert!(page.contains("A &amp; B") && page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert_eq!(page.matches("<figure").count(), 1);
        assert_eq!(page.matches("class=\"curve a\"").count() + page.matches("class=\"curve b\"").count(), 4);
    }

    #[test]
    fn a_figure_without_curves_is_left_out() {
        let mut comparison = comparison();
        comparison.figures[0].curves.clear();
        assert!(!render(&comparison).contains("<figure"));
    }
}
