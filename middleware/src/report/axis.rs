//! Axes of a plot: the range, the round numbers on it, and where a value lies. Draws nothing.

use super::text::{grouped, power_of_ten};

/// How values are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spacing {
    Linear,
    Log,
}

/// A labelled value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// A range with its ticks.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    spacing: Spacing,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<Tick>,
}

/// Sizes beyond which a range cannot be computed with.
const PLOTTABLE: std::ops::Range<f64> = 1e-150..1e150;

impl Spacing {
    /// Whether a value has a place on an axis spaced like this.
    pub(super) fn shows(self, value: f64) -> bool {
        match self {
            Self::Linear => value == 0.0 || PLOTTABLE.contains(&value.abs()),
            Self::Log => PLOTTABLE.contains(&value),
        }
    }

    /// The axis of the values that it can show; a linear one starts at zero, or reaches it.
    pub(super) fn axis(self, values: impl Iterator<Item = f64>) -> Axis {
        let shown = values.filter(|&value| self.shows(value));
        let range = shown.fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((value.min(low), value.max(high)))
        });
        match self {
            Self::Linear => linear(range.map_or((0.0, 0.0), |(low, high)| (low.min(0.0), high.max(0.0)))),
            Self::Log => log(range.unwrap_or((0.1, 1.0))),
        }
    }
}

impl Axis {
    /// The axis of step numbers: as long as the run, ticks at whole numbers.
    pub(super) fn steps(first: u64, last: u64) -> Self {
        let (low, high) =
            if first == last { (first as f64 - 1.0, first as f64 + 1.0) } else { (first as f64, last as f64) };
        let step = round_step(high - low, 6.0).max(1.0);
        Self { spacing: Spacing::Linear, low, high, ticks: multiples(first as f64, last as f64, step) }
    }

    /// Where a value lies, from 0 at the low end to 1 at the high end.
    pub(super) fn position(&self, value: f64) -> f64 {
        match self.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        }
    }
}

fn linear((low, high): (f64, f64)) -> Axis {
    let high = if low == high { low + 1.0 } else { high };
    let step = round_step(high - low, 5.0);
    let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
    Axis { spacing: Spacing::Linear, low, high, ticks: multiples(low, high, step) }
}

/// 1, 2 or 5 times a power of ten: the smallest that cuts the span into at most about `parts`.
fn round_step(span: f64, parts: f64) -> f64 {
    let rough = span / parts;
    let power = 10f64.powf(decade(rough));
    let leading = [1.0, 2.0, 5.0].into_iter().find(|leading| leading * power >= rough * 0.999);
    leading.unwrap_or(10.0) * power
}

fn multiples(low: f64, high: f64, step: f64) -> Vec<Tick> {
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|k| tick(k as f64 * step, step)).collect()
}

/// `1.5e−6`: narrow enough for the margin of a plot.
fn compact(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$e}").replace('-', "−")
}

/// The power of ten of a value's first digit.
fn decade(value: f64) -> f64 {
    (value.abs() * (1.0 + 1e-9)).log10().floor()
}

fn tick(value: f64, step: f64) -> Tick {
    let decimals = (-decade(step)).max(0.0) as usize;
    let label = match step {
        _ if value == 0.0 => "0".into(),
        _ if (1e-3..1e4).contains(&step) => grouped(&format!("{value:.decimals$}")),
        _ => compact(value, (decade(value) - decade(step)).max(0.0) as usize),
    };
    Tick { value, label }
}

/// Whole decades around the range, at most about six of them labelled; 2 and 5 too where the range is within two.
fn log((low, high): (f64, f64)) -> Axis {
    let first = (low.log10() + 1e-9).floor() as i32;
    let last = ((high.log10() - 1e-9).ceil() as i32).max(first + 1);
    let stride = ((last - first) as usize).div_ceil(6);
    let leading: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = (first..=last).step_by(stride);
    let ticks = decades.flat_map(|exponent| leading.iter().map(move |&leading| log_tick(leading, exponent)));
    let high = 10f64.powi(last);
    let ticks = ticks.filter(|tick| tick.value <= high * 1.001).collect();
    Axis { spacing: Spacing::Log, low: 10f64.powi(first), high, ticks }
}

fn log_tick(leading: f64, exponent: i32) -> Tick {
    let power = power_of_ten(&exponent.to_string());
    let label = if leading == 1.0 { power } else { format!("{leading}×{power}") };
    Tick { value: leading * 10f64.powi(exponent), label }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| &tick.label[..]).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_hold_the_values() {
        for (values, expected) in [
            (vec![0.12, 0.93], vec!["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (vec![3.0, 41.0], vec!["0", "10", "20", "30", "40", "50"]),
            (vec![-0.4, 0.9], vec!["−0.5", "0", "0.5", "1.0"]),
            (vec![7777.0], vec!["0", "2,000", "4,000", "6,000", "8,000"]),
            (vec![0.0, 0.0], vec!["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (vec![2.1e-6], vec!["0", "5e−7", "1.0e−6", "1.5e−6", "2.0e−6", "2.5e−6"]),
            (vec![3e-7], vec!["0", "1e−7", "2e−7", "3e−7"]),
        ] {
            let axis = Spacing::Linear.axis(values.iter().copied());
            assert_eq!(labels(&axis), expected, "{values:?}");
            assert!(values.iter().all(|&value| (0.0..=1.0).contains(&axis.position(value))), "{values:?}");
        }
    }

    #[test]
    fn log_ticks_are_powers_of_ten_and_zero_has_no_place() {
        let axis = Spacing::Log.axis([3e-6, 0.0, -1.0, 2e-2, f64::NAN].into_iter());
        assert_eq!(labels(&axis), ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²", "10⁻¹"]);
        assert!((axis.position(1e-6) - 0.0).abs() < 1e-12 && (axis.position(1e-1) - 1.0).abs() < 1e-12);
        assert!(!Spacing::Log.shows(0.0) && !Spacing::Log.shows(-1.0) && !Spacing::Log.shows(f64::INFINITY));
        assert_eq!(labels(&Spacing::Log.axis([1e-3].into_iter())), ["10⁻³", "2×10⁻³", "5×10⁻³", "10⁻²"]);
    }

    #[test]
    fn steps_have_whole_ticks() {
        assert_eq!(labels(&Axis::steps(1, 3)), ["1", "2", "3"]);
        assert_eq!(labels(&Axis::steps(1, 120)), ["20", "40", "60", "80", "100", "120"]);
        assert_eq!(labels(&Axis::steps(7, 7)), ["7"]);
        assert_eq!(Axis::steps(7, 7).position(7.0), 0.5);
    }

    #[test]
    fn extreme_values_give_finite_axes() {
        for value in [f64::MAX, f64::MIN_POSITIVE, 1e149, 1e-149, f64::NAN, f64::NEG_INFINITY] {
            for spacing in [Spacing::Linear, Spacing::Log] {
                let axis = spacing.axis([value].into_iter());
                assert!(axis.low.is_finite() && axis.high.is_finite() && axis.low < axis.high, "{value:e} {axis:?}");
                assert!((2..=12).contains(&axis.ticks.len()), "{value:e} {axis:?}");
            }
        }
    }
}
