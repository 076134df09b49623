//! A sampler or a trainer as a child process: started, waited for, and gone when its parent is.

use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

/// What a child says first, before its address.
pub const LISTENING: &str = "listening on ";

/// How long a child may take to load its model and listen.
const PATIENCE: Duration = Duration::from_secs(600);

/// A child that did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started.
    #[error("cannot start the {name}: {source}")]
    Start {
        /// What it should be.
        name: &'static str,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// It ended, or said something else.
    #[error("the {name} did not come up: {said}")]
    NotUp {
        /// What it should be.
        name: &'static str,
        /// What it said.
        said: String,
    },
    /// It took too long.
    #[error("the {name} did not listen within {} seconds", PATIENCE.as_secs())]
    Slow {
        /// What it should be.
        name: &'static str,
    },
}

/// A running child; ends when this is dropped, or when this process dies: its standard input closes then.
#[derive(Debug)]
pub struct Service {
    address: String,
    child: Child,
}

impl Service {
    /// Starts this program with other arguments and waits until it listens.
    ///
    /// # Errors
    /// A child that cannot be started, or that ends or stays silent instead of listening.
    pub async fn start(name: &'static str, arguments: &[String]) -> Result<Self, ProcessError> {
        let start = |source| ProcessError::Start { name, source };
        let program = std::env::current_exe().map_err(start)?;
        let mut command = Command::new(program);
        command.arg(name).args(arguments).args(["--listen", "127.0.0.1:0", "--until-stdin-closes"]);
        // candle's own pool spins while it waits, beside rayon's threads that do the work.
        if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
            command.env("CANDLE_NUM_THREADS", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(start)?;
        let mut said = String::new();
        let stdout = child.stdout.take();
        let first = async {
            match stdout {
                Some(stdout) => BufReader::new(stdout).read_line(&mut said).await,
                None => Ok(0),
            }
        };
        let read = tokio::time::timeout(PATIENCE, first).await.map_err(|_| ProcessError::Slow { name })?;
        read.map_err(start)?;
        match said.trim_end().strip_prefix(LISTENING) {
            Some(address) => {
                forward(&mut child);
                Ok(Self { address: address.to_owned(), child })
            }
            None => Err(ProcessError::NotUp { name, said: last_words(&mut child, said).await }),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Process id, for tests that end it.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

/// What a child that did not come up said, without the prefix this program's own errors have.
async fn last_words(child: &mut Child, mut said: String) -> String {
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut said).await;
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended without a word");
    last.trim().trim_start_matches("error: ").to_owned()
}

/// Passes on what a child says on standard error.
fn forward(child: &mut Child) {
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                crate::progress::say(&line);
            }
        });
    }
}
