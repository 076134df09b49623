//! `lockstep record` and `lockstep replay`: an engine's exchanges into a file, and out of it again.

use super::{DONE, Outcome, print};
use crate::{
    process::LISTENING,
    record::{self, Recorder, Replayer},
};
use axum::Router;
use clap::Args;
use std::{io, net::SocketAddr, path::PathBuf};
use tokio::net::TcpListener;

/// Arguments of `lockstep record`.
#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    /// Address of the engine.
    #[arg(long, value_name = "URL")]
    engine: String,
    /// Address to listen on; port 0 takes a free one. The first line on standard output says which.
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// Where the exchanges go; must not be there yet.
    #[arg(long)]
    file: PathBuf,
}

/// Arguments of `lockstep replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// The exchanges.
    #[arg(long)]
    file: PathBuf,
    /// Address to listen on; port 0 takes a free one. The first line on standard output says which.
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
}

pub(super) async fn record(arguments: RecordArguments) -> Outcome {
    let recorder = Recorder::create(&arguments.engine, &arguments.file)?;
    serve(recorder.router(), arguments.listen).await
}

pub(super) async fn replay(arguments: ReplayArguments) -> Outcome {
    let replayer = Replayer::load(&arguments.file)?;
    serve(replayer.router(), arguments.listen).await
}

async fn serve(router: Router, address: SocketAddr) -> Outcome {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
    print(&format!("{LISTENING}{}", listener.local_addr()?));
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    record::serve(router, listener, stop).await?;
    Ok(DONE)
}
