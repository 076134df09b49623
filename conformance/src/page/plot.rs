//! Figures as SVG and tables. Sizes are those of a narrow window, so that text stays readable there.

use crate::{
    figure::{Figure, Run, TokenRow},
    junit::escaped,
};
use std::fmt::Write;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 332.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 146.0;
/// Answers on a time line, at most.
const ANSWERS: usize = 12;

/// Adds a figure.
pub(super) fn figure(out: &mut String, figure: &Figure) {
    match figure {
        Figure::Histogram { title, unit, low, high, counts } => histogram(out, (title, unit), (*low, *high), counts),
        Figure::Points { title, x, y, points } => self::points(out, (title, x, y), points),
        Figure::Cells { title, cells } => self::cells(out, title, cells),
        Figure::Tokens { title, tokens } => self::tokens(out, title, tokens),
        Figure::Spans { title, answers } => spans(out, title, answers),
    }
}

/// A number in few digits.
fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".to_owned(),
        _ if (0.01..10_000.0).contains(&size) => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.1e}"),
    }
}

fn open(out: &mut String, kind: &str, title: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "<figure class=\"{kind}\">\n<figcaption>{}</figcaption>", escaped(title));
}

fn frame(out: &mut String, title: &str, empty: bool) {
    let class = if empty { "plot empty" } else { "plot" };
    let _ = writeln!(
        out,
        "<svg class=\"{class}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{}</title>\n\
         <path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>",
        escaped(title)
    );
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words));
}

fn close(out: &mut String) {
    out.push_str("</svg>\n</figure>\n");
}

fn histogram(out: &mut String, (title, unit): (&str, &str), (low, high): (f64, f64), counts: &[u64]) {
    open(out, "histogram", title);
    let most = counts.iter().copied().max().unwrap_or(0);
    frame(out, title, most == 0);
    let (step, tall) = ((RIGHT - LEFT) / counts.len().max(1) as f64, most.max(1) as f64);
    let mut bars = String::new();
    for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (x, y) = (LEFT + at as f64 * step, BOTTOM - (BOTTOM - TOP) * count as f64 / tall);
        let _ = write!(bars, "M{:.1} {BOTTOM}V{y:.1}h{:.1}V{BOTTOM}z", x + 0.5, step - 1.0);
    }
    let _ = writeln!(out, "<path class=\"curve bars\" d=\"{bars}\"/>");
    text(out, (LEFT, TOP - 8.0), "start", &format!("at most {most}"));
    text(out, (LEFT, HEIGHT - 6.0), "start", &short(low));
    text(out, (WIDTH / 2.0, HEIGHT - 6.0), "middle", unit);
    text(out, (RIGHT, HEIGHT - 6.0), "end", &short(high));
    close(out);
}

/// Smallest and largest of some numbers, apart.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low < high { (low, high) } else { (low.min(0.0), low.max(0.0) + f64::from(u8::from(low == 0.0))) }
}

fn points(out: &mut String, (title, x, y): (&str, &str, &str), points: &[(f64, f64)]) {
    open(out, "points", title);
    frame(out, title, points.is_empty());
    if let Some(first) = points.first() {
        let (left, right) = range(points.iter().map(|point| point.0));
        let (low, high) = range(points.iter().map(|point| point.1));
        let place = |(x, y): &(f64, f64)| {
            let (x, y) = ((x - left) / (right - left), (y - low) / (high - low));
            format!("{:.1},{:.1}", LEFT + (RIGHT - LEFT) * x, BOTTOM - (BOTTOM - TOP) * y)
        };
        let all: Vec<String> = points.iter().map(place).collect();
        let _ = writeln!(out, "<polyline class=\"curve\" points=\"{} {}\"/>", place(first), all.join(" "));
        text(out, (LEFT, TOP - 8.0), "start", &format!("{y}: {} to {}", short(low), short(high)));
        text(out, (LEFT, HEIGHT - 6.0), "start", &short(left));
        text(out, (WIDTH / 2.0, HEIGHT - 6.0), "middle", x);
        text(out, (RIGHT, HEIGHT - 6.0), "end", &short(right));
    }
    close(out);
}

/// Seen counts as bars, expected ones as a line.
fn cells(out: &mut String, title: &str, cells: &[(String, f64, f64)]) {
    open(out, "cells", title);
    frame(out, title, cells.is_empty());
    let most = cells.iter().map(|(_, expected, seen)| expected.max(*seen)).fold(1.0, f64::max);
    let step = (RIGHT - LEFT) / cells.len().max(1) as f64;
    let height = |count: f64| BOTTOM - (BOTTOM - TOP) * count / most;
    let (mut bars, mut line) = (String::new(), String::new());
    for (at, (_, expected, seen)) in cells.iter().enumerate() {
        let x = LEFT + at as f64 * step;
        let _ = write!(bars, "M{:.1} {BOTTOM}V{:.1}h{:.1}V{BOTTOM}z", x + 0.5, height(*seen), step - 1.0);
        let _ = write!(line, "M{x:.1} {:.1}h{step:.1}", height(*expected));
    }
    let _ = writeln!(out, "<path class=\"curve bars\" d=\"{bars}\"/>\n<path class=\"curve line\" d=\"{line}\"/>");
    text(out, (LEFT, TOP - 8.0), "start", &format!("bars: seen, lines: expected, at most {most:.0}"));
    if let (Some(first), Some(last)) = (cells.first(), cells.last()) {
        text(out, (LEFT, HEIGHT - 6.0), "start", &first.0);
        text(out, (RIGHT, HEIGHT - 6.0), "end", &last.0);
    }
    close(out);
}

fn tokens(out: &mut String, title: &str, tokens: &[TokenRow]) {
    open(out, "tokens", title);
    out.push_str(
        "<div class=\"scroll\"><table>\n<tr><th>answer</th><th>at</th><th>id</th><th>log q</th><th>log p</th></tr>\n",
    );
    for TokenRow { rollout, position, token, log_q, log_p } in tokens {
        let _ = writeln!(
            out,
            "<tr><td>{rollout}</td><td>{position}</td><td>{token}</td><td>{log_q:.4}</td><td>{log_p:.4}</td></tr>"
        );
    }
    out.push_str("</table></div>\n</figure>\n");
}

/// One line an answer, one colour a label.
fn spans(out: &mut String, title: &str, answers: &[Vec<Run>]) {
    open(out, "spans", title);
    let shown = &answers[..answers.len().min(ANSWERS)];
    frame(out, title, shown.is_empty());
    let longest = shown.iter().flatten().map(|run| run.end).max().unwrap_or(1).max(1) as f64;
    let mut labels: Vec<&str> = answers.iter().flatten().map(|run| run.label.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    let high = ((BOTTOM - TOP) / shown.len().max(1) as f64).min(16.0);
    for (at, label) in labels.iter().enumerate() {
        let mut bars = String::new();
        for (row, run) in shown.iter().enumerate().flat_map(|(row, runs)| runs.iter().map(move |run| (row, run))) {
            let place = |token: usize| LEFT + (RIGHT - LEFT) * token as f64 / longest;
            if run.label == *label {
                let (x, y, wide) = (place(run.start), TOP + row as f64 * high, place(run.end) - place(run.start));
                let _ = write!(bars, "M{x:.1} {:.1}h{wide:.1}v{:.1}h-{wide:.1}z", y + 1.0, high - 2.0);
            }
        }
        let _ = writeln!(out, "<path class=\"curve span-{}\" d=\"{bars}\"/>", at % 4);
    }
    text(out, (LEFT, TOP - 8.0), "start", &labels.iter().take(4).copied().collect::<Vec<_>>().join(" then "));
    text(out, (LEFT, HEIGHT - 6.0), "start", "token 0");
    text(out, (RIGHT, HEIGHT - 6.0), "end", &format!("{longest:.0}"));
    close(out);
}
