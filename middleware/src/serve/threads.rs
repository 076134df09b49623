//! One thread a core, each with a runtime of its own: a request is read, drawn and answered on the thread that has its
//! connection, and wakes no other.

use super::{Gateway, serve};
use axum::serve::{Listener, ListenerExt};
use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpStream as StdStream},
    sync::Arc,
    thread::JoinHandle,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
};

/// Connections that one thread was handed.
struct Handed {
    connections: mpsc::UnboundedReceiver<(StdStream, SocketAddr)>,
    address: SocketAddr,
}

impl Listener for Handed {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let Some((stream, address)) = self.connections.recv().await else { std::future::pending().await };
            match TcpStream::from_std(stream) {
                Ok(stream) => return (stream, address),
                Err(error) => tracing::warn!(%error, "a connection was lost on its way to its thread"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

struct Thread {
    connections: mpsc::UnboundedSender<(StdStream, SocketAddr)>,
    handle: JoinHandle<io::Result<()>>,
}

impl Thread {
    fn start(gateway: Arc<Gateway>, address: SocketAddr, mut stop: watch::Receiver<bool>) -> io::Result<Self> {
        let (sender, connections) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stopping = async move {
            // A sender that is gone has stopped as well.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let listener = Handed { connections, address };
        let thread = std::thread::Builder::new().name("lockstep-serve".to_owned());
        let handle = thread.spawn(move || runtime.block_on(serve(gateway, listener, stopping)))?;
        Ok(Self { connections: sender, handle })
    }
}

/// Serves on so many threads until `stop` is done; running answers then get the grace to end. Connections go to the threads
/// in turn.
///
/// # Errors
/// The system has no thread to give, a thread that ended in an error.
pub async fn serve_on_threads(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    threads: usize,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let (told, telling) = watch::channel(false);
    let start = |_| Thread::start(gateway.clone(), address, telling.clone());
    let threads = (0..threads.max(1)).map(start).collect::<io::Result<Vec<_>>>()?;
    tokio::select! {
        () = hand_out(listener, &threads) => {}
        () = stop => {}
    }
    told.send_replace(true);
    for thread in threads {
        let ended = tokio::task::spawn_blocking(move || thread.handle.join()).await?;
        ended.map_err(|_| io::Error::other("a thread of the gateway panicked"))??;
    }
    Ok(())
}

async fn hand_out(listener: TcpListener, threads: &[Thread]) {
    let mut listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    for thread in threads.iter().cycle() {
        let (stream, address) = listener.accept().await;
        let handed = stream.into_std().map(|stream| thread.connections.send((stream, address)));
        match handed {
            Ok(Ok(())) => {}
            // A thread that is gone has ended in an error, which is told at the end.
            Ok(Err(_)) => return,
            Err(error) => tracing::warn!(%error, "a connection was lost on its way to its thread"),
        }
    }
}
