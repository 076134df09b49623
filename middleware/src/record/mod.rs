//! Exchanges with an engine, written to a file and served again without it: the fake engine of tests and of bug reports.
//!
//! One JSON object a line and exchange. Knows no engine's dialect: what was asked and what was answered are bytes.

mod exchange;
mod recorder;
mod replayer;

pub use exchange::{Chunk, Exchange, RecordError};
pub use recorder::Recorder;
pub use replayer::Replayer;

use axum::{Router, serve::ListenerExt};
use std::{future::Future, io, time::Duration};
use tokio::net::TcpListener;

/// Largest request that is passed on, in bytes.
const MAX_REQUEST: usize = 64 << 20;
/// How long running exchanges get when the command is told to end.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until `stop` is done.
///
/// # Errors
/// A listener that breaks.
pub async fn serve(
    router: Router,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let (told, telling) = tokio::sync::oneshot::channel();
    let stopping = async move {
        stop.await;
        let _ = told.send(());
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(stopping);
    tokio::select! {
        ended = async { serving.await } => ended,
        () = async { let _ = telling.await; tokio::time::sleep(GRACE).await } => Ok(()),
    }
}

#[cfg(test)]
mod tests;
