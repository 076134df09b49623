//! Stands before an engine, passes everything on, and writes it down.

use super::{Chunk, Exchange, MAX_REQUEST, RecordError};
use crate::serve::refusal::Refusal;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Uri, header, response::Parts},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Headers of one connection alone, which are not passed on.
const OF_THE_CONNECTION: [header::HeaderName; 4] =
    [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// Writes every exchange with an engine to a file.
#[derive(Debug)]
pub struct Recorder {
    engine: Uri,
    client: legacy::Client<HttpConnector, Full<Bytes>>,
    path: PathBuf,
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// Records an engine into a file, which must not be there yet.
    ///
    /// # Errors
    /// A file that is there or cannot be created, an address that is none.
    pub fn create(engine: &str, path: &Path) -> Result<Arc<Self>, RecordError> {
        let wrong = || RecordError::Address(engine.to_owned());
        let uri: Uri = engine.trim_end_matches('/').parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong());
        }
        let file = File::create_new(path);
        let file = file.map_err(|source| RecordError::Io { action: "create", path: path.to_owned(), source })?;
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        let (path, file, next) = (path.to_owned(), Mutex::new(file), AtomicU64::new(0));
        Ok(Arc::new(Self { engine: uri, client, path, file, next }))
    }

    /// Everything that is asked goes to the engine.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(pass).with_state(self.clone())
    }

    fn write(&self, exchange: &Exchange) -> Result<(), Refusal> {
        let line = serde_json::to_string(exchange).map_err(|error| Refusal::internal(error.to_string()))? + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(line.as_bytes());
        written.map_err(|error| Refusal::internal(format!("cannot write {}: {error}", self.path.display())))
    }

    async fn ask(&self, request: Request) -> Result<(Exchange, Parts, hyper::body::Incoming), Refusal> {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, MAX_REQUEST).await.map_err(|_| Refusal::too_large(MAX_REQUEST))?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let exchange = Exchange {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            method: parts.method.to_string(),
            path: path.clone(),
            request: Chunk::of(&body),
            status: 0,
            content_type: None,
            chunks: Vec::new(),
            broken: None,
        };
        let base = self.engine.to_string();
        let mut request = Request::builder().method(parts.method).uri(format!("{}{path}", base.trim_end_matches('/')));
        for (name, value) in parts.headers.iter().filter(|(name, _)| !OF_THE_CONNECTION.contains(name)) {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| Refusal::request(error.to_string()))?;
        let answer = self.client.request(request).await;
        let answer =
            answer.map_err(|error| Refusal::unavailable(format!("engine {base} cannot be reached: {error}")))?;
        let (parts, body) = answer.into_parts();
        Ok((exchange, parts, body))
    }
}

async fn pass(State(recorder): State<Arc<Recorder>>, request: Request) -> Response {
    match recorder.ask(request).await {
        Ok((exchange, parts, body)) => recorded(recorder, exchange, (parts, body)),
        Err(refusal) => refusal.into_response(),
    }
}

fn recorded(recorder: Arc<Recorder>, exchange: Exchange, (parts, body): (Parts, hyper::body::Incoming)) -> Response {
    let content_type = kind(&parts.headers);
    let exchange = Exchange { status: parts.status.as_u16(), content_type: content_type.clone(), ..exchange };
    let passing = Passing { recorder, exchange, body, ended: false };
    let mut response = Response::new(Body::from_stream(stream::unfold(passing, |mut passing| async move {
        let chunk = passing.next().await?;
        Some((chunk, passing))
    })));
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response
}

fn kind(headers: &HeaderMap) -> Option<String> {
    headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned)
}

/// An answer on its way. Whatever came of it is written when it ends, breaks, or its client leaves.
struct Passing {
    recorder: Arc<Recorder>,
    exchange: Exchange,
    body: hyper::body::Incoming,
    ended: bool,
}

impl Passing {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        if self.ended {
            return None;
        }
        while let Some(frame) = self.body.frame().await {
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(bytes)) => {
                    self.exchange.chunks.push(Chunk::of(&bytes));
                    return Some(Ok(bytes));
                }
                Ok(Err(_)) => {}
                Err(error) => {
                    self.exchange.broken = Some(error.to_string());
                    self.end();
                    return Some(Err(std::io::Error::other(error)));
                }
            }
        }
        self.end();
        None
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true)
            && let Err(refusal) = self.recorder.write(&self.exchange)
        {
            tracing::error!(%refusal, "an exchange is not recorded");
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.ended {
            self.exchange.broken = Some("the client left".to_owned());
            self.end();
        }
    }
}
