//! Words and numbers of the page: escaping, number formats, the headline, and how to read it.

use super::{RunSummary, facts::Facts};
use lockstep_core::dlc::{ess::DEFAULT_HORIZON, resync::TriggerLevel};

/// Text from outside, harmless between tags and inside quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Three significant digits; a power of ten below 0.001 and from 100,000; a dash for what is no number.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".into(),
        _ if !value.is_finite() => "–".into(),
        _ if (1e-3..99_999.5).contains(&size) => {
            let decimals = (2 - size.log10().floor() as i32).max(0) as usize;
            grouped(&format!("{value:.decimals$}"))
        }
        _ => scientific(value),
    }
}

/// A number that was chosen, as it was written.
pub(super) fn exact(value: f64) -> String {
    if (1e-6..1e6).contains(&value.abs()) { grouped(&value.to_string()) } else { number(value) }
}

/// `1.23 × 10ⁿ`.
fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{} × {}", mantissa.replace('-', "−"), power_of_ten(exponent))
}

/// `10ⁿ`.
pub(super) fn power_of_ten(exponent: &str) -> String {
    let raised = |c: char| match c {
        '-' => '⁻',
        digit => "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit as usize - '0' as usize).unwrap_or(digit),
    };
    format!("10{}", exponent.chars().map(raised).collect::<String>())
}

/// A decimal number with a true minus sign and commas between thousands.
pub(super) fn grouped(decimal: &str) -> String {
    let (sign, digits) = decimal.strip_prefix('-').map_or(("", decimal), |digits| ("−", digits));
    let (whole, fraction) = digits.find('.').map_or((digits, ""), |point| digits.split_at(point));
    let mut text = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}

/// `no steps`, `1 step`, `1,200 steps`.
pub(super) fn count(n: usize, noun: &str) -> String {
    match n {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        n => format!("{} {noun}s", grouped(&n.to_string())),
    }
}

/// A share as a percentage with one decimal.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1}%", share * 100.0) } else { "–".into() }
}

/// A step number.
pub(super) fn step(step: u64) -> String {
    grouped(&step.to_string())
}

/// The word for a level.
pub(super) fn level(level: TriggerLevel) -> &'static str {
    match level {
        TriggerLevel::Horizon => "horizon",
        TriggerLevel::Sequence => "sequence",
        TriggerLevel::Token => "token",
    }
}

/// What happened, in one sentence.
pub(super) fn headline(summary: &RunSummary<'_>, facts: &Facts) -> String {
    let resyncs = match &facts.resyncs[..] {
        [] => "the sampler was never re-synchronised".into(),
        [(only, _)] => format!("the sampler was re-synchronised once, after step {}", step(*only)),
        many => format!("the sampler was re-synchronised {} times", grouped(&many.len().to_string())),
    };
    let ess = match facts.watched(summary.level) {
        Some((ess, at)) => {
            format!("the smallest {} ESS was {}, at step {}", level(summary.level), number(ess), step(at))
        }
        None => format!("the {} ESS was never a number", level(summary.level)),
    };
    let reward = match summary.metrics {
        [] => return "The run has no steps yet.".into(),
        [only] => format!("One step, with a mean reward of {}", number(only.reward)),
        steps => format!("Reward {} over {}", change(facts), count(steps.len(), "step")),
    };
    format!("{reward}; {resyncs}, and {ess}.")
}

fn change(facts: &Facts) -> String {
    let (first, last) = (number(facts.reward_first), number(facts.reward_last));
    let (of_first, of_last) = match facts.window {
        1 => ("at the first step".into(), "at the last".into()),
        n => (format!("in the first {n} steps"), format!("in the last {n}")),
    };
    let verb = match facts.reward_last.partial_cmp(&facts.reward_first) {
        _ if first == last => return format!("stayed at {first}"),
        Some(std::cmp::Ordering::Greater) => "rose",
        Some(_) => "fell",
        None => "went",
    };
    format!("{verb} from <b>{first}</b> {of_first} to <b>{last}</b> {of_last},")
}

/// Three sentences: ESS, lag, numeric.
pub(super) fn how_to_read(summary: &RunSummary<'_>) -> String {
    let horizon = summary.horizon_tokens().unwrap_or(DEFAULT_HORIZON);
    let threshold = exact(summary.threshold);
    let watched = level(summary.level);
    format!(
        r#"<p><b>ESS</b> is the effective sample size of the raw lag ratios of a batch, before any clip, as a share of the batch: 1 says that all of it
counts as drawn from the trainer's own weights, 0.5 that only half of it does; it is taken over tokens, over whole answers (sequence),
and over answers as if none were longer than {horizon} tokens (horizon), and when the {watched} ESS falls below {threshold} the sampler is
re-synchronised.</p>
<p><b>Lag</b>, log <i>p</i><sub>θ</sub> − log <i>p</i><sub>s</sub>, is what the trainer has learned since the sampler got its weights:
it grows with every step and falls back at a re-synchronisation.</p>
<p><b>Numeric</b>, log <i>p</i><sub>s</sub> − log <i>q</i>, is what differs at the same weights, because sampler and trainer use other
kernels, precision or quantisation: it should stay small and flat.</p>
"#
    )
}
