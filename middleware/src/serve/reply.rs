//! Answers on the wire: one JSON body, or server-sent events while the tokens arrive.

use super::{Gateway, ask::Drawn, refusal::Refusal};
use crate::ledger::Record;
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::{StreamExt, stream};
use lockstep_core::Delta;
use serde::Serialize;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Seconds since 1970, as OpenAI's objects carry.
pub(super) fn created() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Tokens asked and answered.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) total_tokens: usize,
    pub(super) completion_tokens: usize,
}

impl Usage {
    pub(super) fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens + completion_tokens, completion_tokens }
    }
}

/// One JSON body.
pub(super) fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let body = serde_json::to_vec(value).map_err(|error| Refusal::internal(error.to_string()))?;
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// One event of a stream.
pub(super) fn event(value: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    let mut line = b"data: ".to_vec();
    serde_json::to_writer(&mut line, value).map_err(|error| Refusal::internal(error.to_string()))?;
    line.extend_from_slice(b"\n\n");
    Ok(line)
}

/// What a dialect makes of the pieces of a stream.
pub(super) trait Telling: Send + 'static {
    /// The events of the next piece of answer `index`.
    fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal>;

    /// What must be durable before the events of the last piece go out.
    fn to_keep(&mut self) -> Option<Record> {
        None
    }

    /// The events after all answers have ended, before `[DONE]`.
    fn close(&mut self) -> Result<Vec<u8>, Refusal> {
        Ok(Vec::new())
    }
}

/// The pieces of an answer with its index.
type Pieces = stream::BoxStream<'static, (usize, Result<Arc<Delta>, Refusal>)>;

struct Streaming<T> {
    pieces: stream::SelectAll<Pieces>,
    telling: T,
    gateway: Arc<Gateway>,
    ended: bool,
}

/// Server-sent events while the answers arrive. An answer that breaks off is told by an error event, and no `[DONE]` follows.
pub(super) fn events(gateway: Arc<Gateway>, drawn: Vec<Drawn>, telling: impl Telling) -> Response {
    let pieces = stream::select_all(drawn.into_iter().map(pieces));
    let state = Streaming { pieces, telling, gateway, ended: false };
    let body = Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), state))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn pieces(drawn: Drawn) -> Pieces {
    let unfolded = stream::unfold(Some(drawn), |drawn| async move {
        let mut drawn = drawn?;
        let index = drawn.index;
        match drawn.next().await {
            Ok(Some(delta)) => {
                let rest = delta.finish.is_none().then_some(drawn);
                Some(((index, Ok(delta)), rest))
            }
            Ok(None) => {
                let id = drawn.request.id;
                let gone = Refusal::unavailable(format!("rollout {id} was given up before its end")).keeping(&[id]);
                Some(((index, Err(gone)), None))
            }
            Err(refusal) => Some(((index, Err(refusal)), None)),
        }
    });
    unfolded.boxed()
}

impl<T: Telling> Streaming<T> {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        let told = match self.pieces.next().await {
            Some((index, Ok(delta))) => self.piece(index, &delta).await,
            Some((_, Err(refusal))) => Err(refusal),
            None => {
                self.ended = true;
                self.telling.close().map(|mut last| {
                    last.extend_from_slice(b"data: [DONE]\n\n");
                    last
                })
            }
        };
        Some(told.unwrap_or_else(|refusal| {
            self.ended = true;
            self.gateway.counts.refused();
            let mut line = b"data: ".to_vec();
            line.extend(refusal.body());
            line.extend_from_slice(b"\n\n");
            line
        }))
    }

    async fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal> {
        let told = self.telling.piece(index, delta)?;
        if let Some(record) = self.telling.to_keep() {
            let kept = self.gateway.capture.record_durably(record).await;
            kept.map_err(|error| Refusal::internal(error.to_string()))?;
        }
        Ok(told)
    }
}
