//! Connections that wait for their next request, on the thread that used them last: a socket is woken by the reactor of the
//! thread that opened it, so another thread's request would wait for two threads.

use super::connection::Connection;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Longest time a connection waits.
const LONGEST: Duration = Duration::from_secs(60);
/// Most connections that wait on one thread.
const MOST: usize = 4096;

type Waiting = Vec<(Connection, Instant)>;

/// The idle connections to one engine.
#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<HashMap<ThreadId, Waiting>>);

impl Idle {
    fn threads(&self) -> MutexGuard<'_, HashMap<ThreadId, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last on this thread and can take another request.
    pub(super) fn take(&self) -> Option<Connection> {
        loop {
            let (connection, since) = self.threads().get_mut(&thread::current().id())?.pop()?;
            if since.elapsed() < LONGEST && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request; those that waited too long are closed.
    pub(super) fn keep(&self, mut connection: Connection) {
        connection.rest();
        let mut threads = self.threads();
        let waiting = threads.entry(thread::current().id()).or_default();
        let stale = waiting.iter().take_while(|(_, since)| since.elapsed() > LONGEST).count();
        waiting.drain(..stale);
        if waiting.len() < MOST {
            waiting.push((connection, Instant::now()));
        }
    }
}
