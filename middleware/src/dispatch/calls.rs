//! The streams of every sampler, as one.

use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, AbortHandle, BoxStream, SelectAll},
};
use lockstep_core::{
    Delta, RolloutId,
    ports::{PortError, SampleRequest, Sampler},
};
use std::sync::Arc;

/// Most deltas that one sync of the ledger makes durable.
const DELTAS_A_SYNC: usize = 1024;

/// A sampler at one stretch of its life: after it was lost and joined again, what the earlier stretch still says is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) station: usize,
    pub(super) count: u32,
}

/// What a sampler said.
#[derive(Debug)]
pub(super) enum Said {
    Delta(Box<Delta>),
    Broke(PortError),
    /// The end of a call for these answers.
    Ended(Vec<RolloutId>),
}

/// Calls that are being answered.
#[derive(Default)]
pub(super) struct Calls {
    streams: SelectAll<BoxStream<'static, (Life, Said)>>,
}

impl Calls {
    /// Asks a sampler; the handle ends the call. In a later stretch of its life it may still be drawing what it was asked in an
    /// earlier one, for nobody: that is called off first, where it can be.
    pub(super) fn begin(&mut self, life: Life, sampler: Arc<dyn Sampler>, requests: Vec<SampleRequest>) -> AbortHandle {
        let ids: Vec<RolloutId> = requests.iter().map(|request| request.request.id).collect();
        let ended = Said::Ended(ids.clone());
        let asked = async move {
            if life.count > 0
                && let Err(error) = sampler.cancel(&ids).await
            {
                if matches!(error, PortError::Unavailable(_)) {
                    return Err(error);
                }
                tracing::warn!(%error, "the sampler does not cancel");
            }
            sampler.generate(requests).await
        };
        let deltas = stream::once(asked).try_flatten();
        let said = deltas.map(move |said| match said {
            Ok(delta) => (life, Said::Delta(Box::new(delta))),
            Err(error) => (life, Said::Broke(error)),
        });
        let said = said.chain(stream::once(std::future::ready((life, ended))));
        let (said, handle) = stream::abortable(said);
        self.streams.push(said.boxed());
        handle
    }

    /// Waits until something was said; gives everything said by then. Nothing is lost where this is dropped while it waits.
    pub(super) async fn next(&mut self) -> Option<Vec<(Life, Said)>> {
        (&mut self.streams).ready_chunks(DELTAS_A_SYNC).next().await
    }
}
