//! What a person sees while they wait: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};

/// Progress of one piece of work; on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    name: &'static str,
    total: u64,
}

impl Progress {
    /// Work of `total` steps.
    pub fn new(name: &'static str, total: u64) -> Self {
        let style = ProgressStyle::with_template("{prefix} {bar:28} {pos}/{len} [{elapsed} < {eta}] {msg}");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_prefix(name);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, name, total }
    }

    /// The work stands at step `done`.
    pub fn at(&self, done: u64, message: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(message.to_owned());
            }
            None => say(&format!("{} {done}/{} {message}", self.name, self.total)),
        }
    }

    /// The work is over; the bar's last state stays.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// One line on standard error. Nobody may be listening there, and that is no fault of the work.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
