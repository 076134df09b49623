//! The words around a plot: its legend, its notes on gaps, and its description for those who cannot see it.

use super::{
    axis::Spacing,
    plot::{Curve, Mark, Plot},
    text::{count, exact, grouped, number, step as step_number},
};

impl Curve {
    /// The values that have a place on an axis.
    pub(super) fn shown(&self, spacing: Spacing) -> impl Iterator<Item = f64> {
        self.values.iter().flatten().copied().filter(move |&value| spacing.shows(value))
    }
}

impl Plot<'_> {
    /// One line a curve, with its value at the last step, which the hover script replaces.
    pub(super) fn legend(&self) -> String {
        let curves = self.curves.iter().map(|Curve { name, class, column, values, .. }| {
            let last = values.last().copied().flatten().map_or_else(|| "–".into(), number);
            let key = key(&format!(r#"<path class="curve {class}" d="M1 5H23"/>"#));
            format!("<li>{key}{name} <b data-value=\"{column}\">{last}</b></li>\n")
        });
        let threshold = self.threshold.map(|threshold| {
            let key = key(r#"<path class="threshold" d="M1 5H23"/>"#);
            format!("<li>{key}threshold <b>{}</b></li>\n", exact(threshold))
        });
        curves.chain(threshold).collect()
    }

    /// What is missing from the curves, and why.
    pub(super) fn notes(&self) -> String {
        let note = |curve: &Curve| {
            let due = curve.values.iter().flatten().count();
            let gaps = due - curve.shown(self.spacing).count();
            let (name, steps, due, gap) = (&curve.name, count(gaps, "step"), grouped(&due.to_string()), curve.gap);
            (gaps > 0).then(|| format!("<p class=\"note\">{name}: {steps} of {due} not drawn, {gap}.</p>\n"))
        };
        self.curves.iter().filter_map(note).collect()
    }

    /// Range and end of every curve, in words.
    pub(super) fn description(&self) -> String {
        let (first, last) = (self.steps.first().copied().unwrap_or(0), self.steps.last().copied().unwrap_or(0));
        let curve = |curve: &Curve| {
            let shown = || curve.shown(self.spacing);
            let (low, high) = (shown().reduce(f64::min)?, shown().reduce(f64::max)?);
            let (start, end) = (shown().next()?, shown().last()?);
            let [start, end, low, high] = [start, end, low, high].map(number);
            Some(format!(" {}: starts at {start}, ends at {end}, between {low} and {high}.", curve.name))
        };
        let curves: String = self.curves.iter().filter_map(curve).collect();
        let resyncs = count(self.marks.len(), "re-synchronisation");
        let (first, last) = (step_number(first), step_number(last));
        format!("{} over steps {first} to {last}, with {resyncs}.{curves}", self.unit)
    }
}

/// The key to the marks, shared by all plots.
pub(super) fn marks(marks: &[Mark], names: &[(&str, &str)]) -> String {
    let item = |&(class, name): &(&str, &str)| {
        let times = marks.iter().filter(|mark| mark.class == class).count();
        let key = key(&format!(r#"<g class="key-mark {class}"><path class="head" d="M12 9l-4 -8h8z"/></g>"#));
        (times > 0).then(|| format!("<li>{key}{name} <b>{}</b></li>\n", count(times, "time")))
    };
    names.iter().filter_map(item).collect()
}

fn key(drawing: &str) -> String {
    format!(r#"<svg class="key" viewBox="0 0 24 10" aria-hidden="true">{drawing}</svg>"#)
}
