//! The `lockstep` binary as its users run it: built once, with a cache of the tests' own, no longer than [`LIMIT`].
//!
//! Waits on pipes and channels, never on a clock.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long one run of the binary may take.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The binary, of the same profile and in the same target directory as the running test.
pub fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let profile = profile_directory();
        let name =
            profile.file_name().and_then(|name| name.to_str()).map(|name| if name == "debug" { "dev" } else { name });
        let name = name.unwrap_or_else(|| panic!("{} has no name", profile.display()));
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--workspace", "--profile", name, "--target-dir"]);
        build.arg(target_directory()).current_dir(env!("CARGO_MANIFEST_DIR"));
        let built = build.status().expect("cargo starts");
        assert!(built.success(), "{build:?} ended with {built}");
        profile.join("lockstep")
    })
}

/// `target/debug`, where the running test lies in `target/debug/deps`.
fn profile_directory() -> PathBuf {
    let executable = std::env::current_exe().expect("a running test has a path");
    let directory = executable.ancestors().nth(2);
    directory.unwrap_or_else(|| panic!("{} lies in no target directory", executable.display())).to_owned()
}

fn target_directory() -> PathBuf {
    profile_directory().parent().expect("a profile has its directory inside another").to_owned()
}

/// The cache the runs share; the small model is in it when this returns.
pub fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let cache = target_directory().join("tmp/lockstep-cache");
        let elsewhere = target_directory().join(format!("tmp/lockstep-first-run-{}", std::process::id()));
        std::fs::create_dir_all(&elsewhere).expect("the target directory can be written");
        let mut first = isolated(path(), &elsewhere, &cache);
        first.args(["demo", "--steps", "1", "--set", "batch.prompts=1", "--set", "batch.answers=1"]);
        let first = run(first);
        assert_eq!(first.code, Some(0), "{}", first.stderr);
        std::fs::remove_dir_all(&elsewhere).expect("the target directory can be written");
        cache
    })
}

/// The model directory of the built-in task.
pub fn small_model() -> PathBuf {
    let made = std::fs::read_dir(cache().join("lockstep")).expect("the cache holds the small model");
    let made = made.map(|entry| entry.expect("the cache can be read").path());
    let newest = made.max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok());
    newest.expect("the cache holds the small model")
}

/// `lockstep`, about to be run in `directory`.
pub fn lockstep(directory: &Path) -> Command {
    isolated(path(), directory, cache())
}

/// `lockstep`, about to be run in `directory` with a cache of its own.
pub fn lockstep_with_cache(directory: &Path, cache: &Path) -> Command {
    isolated(path(), directory, cache)
}

/// `lockstep`, about to be run in `directory` by a shell that first runs `preparation`.
pub fn lockstep_after(preparation: &str, directory: &Path) -> Command {
    let mut shell = isolated(Path::new("sh"), directory, cache());
    shell.arg("-c").arg(format!("{preparation}; exec \"$0\" \"$@\"")).arg(path());
    shell
}

/// A command that sees nothing of the user's own home and settings, in a process group of its own.
fn isolated(program: &Path, directory: &Path, cache: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env("HOME", directory).env("XDG_CACHE_HOME", cache);
    command
        .env_remove("LOCKSTEP_LOG")
        .env_remove("LOCKSTEP_LISTEN")
        .env_remove("LOCKSTEP_DEVICE")
        .env_remove("RUST_BACKTRACE");
    command.process_group(0);
    command
}

/// What a run left behind.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command to its end.
pub fn run(command: Command) -> Finished {
    Running::start(command).finish()
}

/// A run that goes on. Everything in its process group is killed when this is dropped before its end.
#[derive(Debug)]
pub struct Running {
    pid: u32,
    deadline: Instant,
    events: mpsc::Receiver<Event>,
    stdout: String,
    stderr: String,
    end: Option<ExitStatus>,
}

#[derive(Debug)]
enum Event {
    Stdout(String),
    Stderr(String),
    End(ExitStatus),
}

impl Running {
    /// Starts a command.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (send, events) = mpsc::channel();
        let readers = [
            child.stdout.take().map(|stdout| forward(stdout, Event::Stdout, send.clone())),
            child.stderr.take().map(|stderr| forward(stderr, Event::Stderr, send.clone())),
        ];
        let pid = child.id();
        std::thread::spawn(move || await_end(child, readers.into_iter().flatten(), &send));
        let deadline = Instant::now() + LIMIT;
        Self { pid, deadline, events, stdout: String::new(), stderr: String::new(), end: None }
    }

    /// Its process id, which is also its group's.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for a line on standard error that begins like this.
    pub fn wait_for(&mut self, beginning: &str) {
        while !self.stderr.lines().any(|line| line.starts_with(beginning)) {
            self.next();
            assert!(self.end.is_none(), "ended before it said {beginning:?}:\n{}", self.stderr);
        }
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        let end = loop {
            match self.end {
                Some(end) => break end,
                None => self.next(),
            }
        };
        let (stdout, stderr) = (std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr));
        Finished { code: end.code(), signal: end.signal(), stdout, stderr }
    }

    fn next(&mut self) {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(left) {
            Ok(Event::Stdout(line)) => self.stdout += &line,
            Ok(Event::Stderr(line)) => self.stderr += &line,
            Ok(Event::End(end)) => self.end = Some(end),
            Err(error) => panic!("no end within {} s ({error}):\n{}{}", LIMIT.as_secs(), self.stdout, self.stderr),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.end.is_none() {
            signal("KILL", &format!("-{}", self.pid));
        }
    }
}

/// Passes lines on, their ends included.
fn forward(from: impl Read + Send + 'static, event: fn(String) -> Event, to: mpsc::Sender<Event>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            let _ = to.send(event(String::from_utf8_lossy(&line).into_owned()));
            line.clear();
        }
    })
}

fn await_end(mut child: Child, readers: impl Iterator<Item = JoinHandle<()>>, to: &mpsc::Sender<Event>) {
    readers.for_each(|reader| drop(reader.join()));
    if let Ok(end) = child.wait() {
        let _ = to.send(Event::End(end));
    }
}

/// Sends a signal to a process, or to a group when the id has a minus before it.
pub fn signal(name: &str, id: &str) {
    let sent = Command::new("sh").args(["-c", r#"kill -s "$0" -- "$1""#, name, id]).status();
    assert!(sent.as_ref().is_ok_and(ExitStatus::success) || std::thread::panicking(), "SIG{name} to {id}: {sent:?}");
}
