//! What a person sees while they wait: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// Progress of one piece of work; on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    name: &'static str,
    total: u64,
    /// Steps that were done before the work began.
    before: u64,
    started: Instant,
}

impl Progress {
    /// Work of `total` steps.
    pub fn new(name: &'static str, total: u64) -> Self {
        Self::after(name, total, 0)
    }

    /// Work of `total` steps, of which `before` are done: they say nothing of the time that is left.
    pub fn after(name: &'static str, total: u64, before: u64) -> Self {
        let style = ProgressStyle::with_template("{prefix} {bar:28} {pos}/{len} [{elapsed} < {eta}] {msg}");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_prefix(name);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(before);
            bar.reset_eta();
            bar
        });
        Self { bar, name, total, before, started: Instant::now() }
    }

    /// The work stands at step `done`.
    pub fn at(&self, done: u64, message: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(message.to_owned());
            }
            None => {
                let left = time_left(
                    self.started.elapsed(),
                    done.saturating_sub(self.before),
                    self.total.saturating_sub(done),
                );
                let left = left.map_or_else(String::new, |left| format!("[{} left] ", words(left)));
                say(&format!("{} {done}/{} {left}{message}", self.name, self.total));
            }
        }
    }

    /// The work is over; the bar's last state stays.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Time for `left` steps when `done` took `elapsed`.
fn time_left(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

/// A time in the two units that say most of it.
pub fn words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// One line on standard error. Nobody may be listening there, and that is no fault of the work.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_before_says_nothing_of_the_time_left() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(6 * second, 3, 7), Some(14 * second));
        assert_eq!(time_left(6 * second, 0, 7), None);
        assert_eq!([7, 65, 7265].map(|s| words(s * second)), ["7s", "1m 05s", "2h 01m"]);
    }
}
