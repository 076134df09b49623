//! One engine over HTTP: bounded memory, bounded silence. Knows no dialect.

mod connection;
mod idle;

use crate::{json::shortened, options::Options};
use connection::{Connection, Left};
use hyper::{Method, StatusCode, Uri};
use idle::Idle;
use lockstep_core::ports::{PortError, PortResult};
use serde::Serialize;
use serde_json::Value;
use std::{io, sync::Arc, time::Duration};
use tokio::time::timeout;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Most bytes of an error's body.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// A request without a body.
pub(crate) const NOTHING: Option<&Value> = None;

/// An engine's address, and the connections to it.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    idle: Arc<Idle>,
    base: String,
    /// Host and port.
    authority: String,
    /// What stands before every path.
    prefix: String,
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
        let authority = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let authority = if uri.port_u16().is_some() { authority } else { format!("{authority}:80") };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let (most_bytes, patience) = (options.most_bytes, options.patience);
        Ok(Self { idle: Arc::default(), base, authority, prefix, most_bytes, patience })
    }

    /// Where the engine is.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Asks, and reads the whole reply whatever its status.
    ///
    /// # Errors
    /// Nobody there, silence, a reply without end.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> PortResult<Reply> {
        let (status, body) = self.send(&method, path, body).await?;
        let body = body.whole().await?;
        Ok(Reply { status, body })
    }

    /// Asks for something that must succeed.
    ///
    /// # Errors
    /// As [`Http::ask`]; also the engine's own refusal or failure.
    pub(crate) async fn get(&self, path: &str) -> PortResult<Value> {
        let reply = self.ask(Method::GET, path, NOTHING).await?;
        self.succeeded(reply.status, &reply.body)?;
        Ok(reply.json())
    }

    /// As [`Http::get`], with a body.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> PortResult<Vec<u8>> {
        let reply = self.ask(Method::POST, path, Some(body)).await?;
        self.succeeded(reply.status, &reply.body)?;
        Ok(reply.body)
    }

    /// Asks for a stream of lines.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub(crate) async fn stream(&self, path: &str, body: &impl Serialize) -> PortResult<Body> {
        let (status, mut body) = self.send(&Method::POST, path, Some(body)).await?;
        if status.is_success() {
            return Ok(body);
        }
        body.most_bytes = MOST_ERROR_BYTES;
        let text = body.whole().await?;
        self.succeeded(status, &text)?;
        Err(PortError::Failed(format!("engine at {}: {status}", self.base)))
    }

    async fn send(&self, method: &Method, path: &str, body: Option<&impl Serialize>) -> PortResult<(StatusCode, Body)> {
        let request = self.request(method, path, body)?;
        let mut connection = match self.idle.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answered = async {
            connection.send(&request).await?;
            connection.head().await
        };
        let head = timeout(self.patience, answered).await.map_err(|_| self.silent())?;
        let head = head.map_err(|error| self.unreachable(&error))?;
        let (most_bytes, patience) = (self.most_bytes, self.patience);
        let mut body = Body {
            connection: Some(connection),
            idle: head.keeps.then(|| self.idle.clone()),
            left: head.body,
            buffer: Vec::new(),
            read: 0,
            searched: 0,
            most_bytes,
            patience,
            base: self.base.clone(),
        };
        body.release();
        Ok((head.status, body))
    }

    /// A request as it is sent: the body behind its head, so that both go out at once.
    fn request(&self, method: &Method, path: &str, body: Option<&impl Serialize>) -> PortResult<Vec<u8>> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| PortError::Refused(format!("{}{path}: {error}", self.base)))?;
        let body = body.unwrap_or_default();
        let head = format!(
            "{method} {}{path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: */*\r\n\
             content-length: {}\r\n\r\n",
            self.prefix,
            self.authority,
            body.len()
        );
        Ok([head.as_bytes(), &body].concat())
    }

    async fn connect(&self) -> PortResult<Connection> {
        let opened = timeout(CONNECT, Connection::open(&self.authority)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in 10 s")));
        opened.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &io::Error) -> PortError {
        PortError::Unavailable(format!("engine at {}: {error}", self.base))
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

/// A body on its way. Dropped before its end, it closes its connection, which makes the engine stop.
#[derive(Debug)]
pub(crate) struct Body {
    connection: Option<Connection>,
    /// Where the connection goes after the body's end, if it may be used again.
    idle: Option<Arc<Idle>>,
    left: Left,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given away.
    read: usize,
    /// Bytes of the buffer that have no line's end, or were given away.
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
    pub(crate) async fn line(&mut self) -> PortResult<Option<&[u8]>> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
            if let Some(ahead) = found {
                let line = self.read..self.searched + ahead;
                (self.read, self.searched) = (line.end + 1, line.end + 1);
                return Ok(Some(self.buffer[line].trim_ascii_end()));
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
        self.buffer.len() - self.read
    }

    async fn more(&mut self) -> PortResult<bool> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        self.buffer.drain(..self.read);
        (self.searched, self.read) = (self.searched - self.read, 0);
        let came = timeout(self.patience, connection.body(&mut self.left, &mut self.buffer)).await;
        let came = came.map_err(|_| {
            let seconds = self.patience.as_secs_f64();
            PortError::Unavailable(format!("engine at {} fell silent for {seconds} s within a reply", self.base))
        })?;
        let came = came.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => PortError::Failed(format!("engine at {}: {error}", self.base)),
            _ => PortError::Unavailable(format!("engine at {} broke off its reply: {error}", self.base)),
        })?;
        if self.buffer.len() > self.most_bytes {
            let (base, most) = (&self.base, self.most_bytes);
            return Err(PortError::Failed(format!("engine at {base} sent more than {most} bytes in one piece")));
        }
        self.release();
        Ok(came)
    }

    /// Gives the connection to the next request once the body has ended.
    fn release(&mut self) {
        if self.left == Left::Nothing
            && let Some(connection) = self.connection.take()
            && let Some(idle) = &self.idle
        {
            idle.keep(connection);
        }
    }
}

/// The sentence in an error's body, wherever the engine puts it.
fn sentence(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/error/message", "/error", "/detail", "/message"];
    let found = places.iter().find_map(|place| value.pointer(place).and_then(Value::as_str).map(str::to_owned));
    shortened(&found.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::mpsc,
    };

    /// Answers two requests a connection, and says when it has closed one.
    async fn serve(listener: TcpListener, closed: mpsc::UnboundedSender<()>) -> io::Result<()> {
        loop {
            let (mut stream, _) = listener.accept().await?;
            for _ in 0..2 {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await?;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
            }
            drop(stream);
            closed.send(()).map_err(io::Error::other)?;
        }
    }

    #[tokio::test]
    async fn a_connection_serves_the_next_request_unless_its_end_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, mut closed) = mpsc::unbounded_channel();
        tokio::spawn(serve(listener, sender));
        let http = Http::new(&address, &Options::default()).unwrap();
        http.get("/").await.unwrap();
        http.get("/").await.unwrap();
        closed.recv().await.unwrap();
        // On the old connection this one would never be answered.
        http.get("/").await.unwrap();
        assert!(closed.try_recv().is_err(), "the third request came on a connection of its own");
    }
}
