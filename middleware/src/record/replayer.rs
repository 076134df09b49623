//! Serves recorded exchanges again. The same request gets its recorded answers in their order, then the last one again.

use super::{Exchange, MAX_REQUEST, RecordError, exchange::canonical};
use crate::serve::refusal::Refusal;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Method, path and query, body.
type Asked = (String, String, Vec<u8>);

#[derive(Debug, Default)]
struct Answers {
    recorded: Vec<Answer>,
    told: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Answer {
    number: u64,
    status: StatusCode,
    content_type: Option<HeaderValue>,
    chunks: Vec<Bytes>,
    broken: Option<String>,
}

/// The exchanges of a file.
#[derive(Debug)]
pub struct Replayer {
    name: String,
    answers: BTreeMap<Asked, Answers>,
}

impl Replayer {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is no exchange.
    pub fn load(path: &Path) -> Result<Arc<Self>, RecordError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| RecordError::Io { action: "read", path: path.to_owned(), source })?;
        let mut answers = BTreeMap::<Asked, Answers>::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |reason: String| RecordError::Line { path: path.to_owned(), line: at + 1, reason };
            let exchange: Exchange = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let (asked, answer) = read(exchange).map_err(wrong)?;
            answers.entry(asked).or_default().recorded.push(answer);
        }
        for answers in answers.values_mut() {
            answers.recorded.sort_by_key(|answer| answer.number);
        }
        Ok(Arc::new(Self { name: path.display().to_string(), answers }))
    }

    /// Answers what was recorded.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    fn find(&self, asked: &Asked) -> Result<&Answer, Refusal> {
        let found = self.answers.get(asked).and_then(|answers| {
            let at = answers.told.fetch_add(1, Ordering::Relaxed).min(answers.recorded.len().saturating_sub(1));
            answers.recorded.get(at)
        });
        found.ok_or_else(|| {
            let (method, path, body) = asked;
            let others = self.answers.keys().filter(|(_, other, _)| other == path).count();
            let shown: String = String::from_utf8_lossy(body).chars().take(300).collect();
            let (name, bytes) = (&self.name, body.len());
            Refusal::unknown(format!(
                "{method} {path} with this body of {bytes} bytes is not recorded in {name} ({others} others of this path are): \
                 {shown}"
            ))
        })
    }
}

fn read(exchange: Exchange) -> Result<(Asked, Answer), String> {
    let Exchange { number, method, path, request, status, content_type, chunks, broken } = exchange;
    let body = request.bytes().map_err(|error| format!("request: {error}"))?;
    let status = StatusCode::from_u16(status).map_err(|_| format!("status {status} is none"))?;
    let content_type = content_type.map(|kind| HeaderValue::from_str(&kind)).transpose().map_err(|e| e.to_string())?;
    let chunks = chunks.iter().map(|chunk| chunk.bytes().map(Bytes::from)).collect::<Result<_, _>>();
    let chunks = chunks.map_err(|error| format!("chunks: {error}"))?;
    Ok(((method, path, canonical(&body)), Answer { number, status, content_type, chunks, broken }))
}

async fn answer(State(replayer): State<Arc<Replayer>>, request: Request) -> Response {
    let told = async {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, MAX_REQUEST).await.map_err(|_| Refusal::too_large(MAX_REQUEST))?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        replayer.find(&(parts.method.to_string(), path, canonical(&body))).map(told)
    };
    told.await.unwrap_or_else(IntoResponse::into_response)
}

fn told(answer: &Answer) -> Response {
    let Answer { status, content_type, chunks, broken, .. } = answer.clone();
    let body = match broken {
        None if chunks.len() == 1 => Body::from(chunks.into_iter().next().unwrap_or_default()),
        broken => {
            let pieces = stream::iter(chunks.into_iter().map(Ok));
            let end = stream::iter(broken).then(|why| async {
                // What precedes goes out first.
                tokio::task::yield_now().await;
                Err(std::io::Error::other(why))
            });
            Body::from_stream(pieces.chain(end))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(kind) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}
