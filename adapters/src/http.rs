//! One engine over HTTP: bounded memory, bounded silence. Knows no dialect.

use crate::{json::shortened, options::Options};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use lockstep_core::ports::{PortError, PortResult};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Most bytes of an error's body.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// An engine's address, and the connections to it.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    most_bytes: usize,
    patience: Duration,
}

/// A reply with its status, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Its body.
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The body as JSON, null where it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The engine's own sentence.
    pub(crate) fn sentence(&self) -> String {
        sentence(&self.body)
    }
}

impl Http {
    /// # Errors
    /// An address that is no `http://host:port`.
    pub(crate) fn new(address: &str, options: &Options) -> Result<Self, String> {
        let base = address.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|error| format!("address {address:?}: {error}"))?;
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(format!("address {address:?} is not of the form http://host:port"));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, base, most_bytes: options.most_bytes, patience: options.patience })
    }

    /// Where the engine is.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Asks, and reads the whole reply whatever its status.
    ///
    /// # Errors
    /// Nobody there, silence, a reply without end.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> PortResult<Reply> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let body = self.body(response).whole().await?;
        Ok(Reply { status, body })
    }

    /// Asks for something that must succeed.
    ///
    /// # Errors
    /// As [`Http::ask`]; also the engine's own refusal or failure.
    pub(crate) async fn get(&self, path: &str) -> PortResult<Value> {
        let reply = self.ask(Method::GET, path, None).await?;
        self.succeeded(reply.status, &reply.body)?;
        Ok(reply.json())
    }

    /// As [`Http::get`], with a body.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub(crate) async fn post(&self, path: &str, body: &Value) -> PortResult<Vec<u8>> {
        let reply = self.ask(Method::POST, path, Some(body)).await?;
        self.succeeded(reply.status, &reply.body)?;
        Ok(reply.body)
    }

    /// Asks for a stream of lines.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> PortResult<Body> {
        let response = self.send(Method::POST, path, Some(body)).await?;
        let status = response.status();
        let mut body = self.body(response);
        if status.is_success() {
            return Ok(body);
        }
        body.most_bytes = MOST_ERROR_BYTES;
        let text = body.whole().await?;
        self.succeeded(status, &text)?;
        Err(PortError::Failed(format!("engine at {}: {status}", self.base)))
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> PortResult<Response<Incoming>> {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(bytes));
        let request = request.map_err(|error| PortError::Refused(format!("{}{path}: {error}", self.base)))?;
        let answer = timeout(self.patience, self.client.request(request)).await;
        let answer = answer.map_err(|_| self.silent())?;
        answer.map_err(|error| PortError::Unavailable(format!("engine at {}: {}", self.base, chain(&error))))
    }

    fn body(&self, response: Response<Incoming>) -> Body {
        Body {
            incoming: response.into_body(),
            buffer: Vec::new(),
            searched: 0,
            most_bytes: self.most_bytes,
            patience: self.patience,
            base: self.base.clone(),
        }
    }

    fn silent(&self) -> PortError {
        PortError::Unavailable(format!("engine at {} said nothing for {} s", self.base, self.patience.as_secs_f64()))
    }

    fn succeeded(&self, status: StatusCode, body: &[u8]) -> PortResult<()> {
        let text = || format!("engine at {}: {status}: {}", self.base, sentence(body));
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(PortError::Unavailable(text())),
            status if status.is_client_error() => Err(PortError::Refused(text())),
            _ => Err(PortError::Failed(text())),
        }
    }
}

/// A body on its way.
#[derive(Debug)]
pub(crate) struct Body {
    incoming: Incoming,
    buffer: Vec<u8>,
    searched: usize,
    most_bytes: usize,
    patience: Duration,
    base: String,
}

impl Body {
    /// The next line without its end; `None` when there is none. A last line without an end is not given: it was cut.
    ///
    /// # Errors
    /// Silence, a broken connection, a line without end.
    pub(crate) async fn line(&mut self) -> PortResult<Option<Vec<u8>>> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
            if let Some(ahead) = found {
                let rest = self.buffer.split_off(self.searched + ahead + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.truncate(line.trim_ascii_end().len());
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// Everything to the end.
    ///
    /// # Errors
    /// Silence, a broken connection, a body without end.
    pub(crate) async fn whole(mut self) -> PortResult<Vec<u8>> {
        while self.more().await? {}
        Ok(self.buffer)
    }

    /// Bytes that came and belong to no line.
    pub(crate) fn left_over(&self) -> usize {
        self.buffer.len()
    }

    async fn more(&mut self) -> PortResult<bool> {
        let frame = timeout(self.patience, self.incoming.frame()).await.map_err(|_| {
            let seconds = self.patience.as_secs_f64();
            PortError::Unavailable(format!("engine at {} fell silent for {seconds} s within a reply", self.base))
        })?;
        let Some(frame) = frame else { return Ok(false) };
        let frame = frame.map_err(|error| {
            PortError::Unavailable(format!("engine at {} broke off its reply: {}", self.base, chain(&error)))
        })?;
        let bytes = frame.into_data().unwrap_or_default();
        if self.buffer.len() + bytes.len() > self.most_bytes {
            let (base, most) = (&self.base, self.most_bytes);
            return Err(PortError::Failed(format!("engine at {base} sent more than {most} bytes in one piece")));
        }
        self.buffer.extend_from_slice(&bytes);
        Ok(true)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}

/// The sentence in an error's body, wherever the engine puts it.
fn sentence(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/error/message", "/error", "/detail", "/message"];
    let found = places.iter().find_map(|place| value.pointer(place).and_then(Value::as_str).map(str::to_owned));
    shortened(&found.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned()))
}
