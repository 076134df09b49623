//! One connection of HTTP/1.1 to an engine, used by one request at a time and by that request's own task: no task and no
//! channel stands between a request and its socket. Knows nothing of JSON, patience or bounds on a reply.

use hyper::StatusCode;
use std::{
    io::{self, Error, ErrorKind},
    mem::MaybeUninit,
    net::SocketAddr,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Most bytes of a reply's head, and of what stands between two chunks.
const MOST_HEAD: usize = 64 << 10;
/// Most header fields of a reply.
const MOST_FIELDS: usize = 128;
/// Room that is made before the socket is read.
const READ: usize = 16 << 10;

/// A socket, and the bytes that came from it and belong to nothing yet.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    raw: Vec<u8>,
}

/// What is left of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// So many bytes.
    Bytes(u64),
    /// Chunks; a chunk's size comes next.
    Chunks,
    /// So many bytes of a chunk.
    OfChunk(u64),
    /// The end of a chunk's line.
    ChunkEnd,
    /// Fields after the last chunk, to an empty line.
    Trailer,
    /// Everything until the connection ends.
    ToTheEnd,
    /// Nothing.
    Nothing,
}

/// The head of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Its status.
    pub(super) status: StatusCode,
    /// How its body is framed.
    pub(super) body: Left,
    /// Whether another request may follow.
    pub(super) keeps: bool,
}

fn broken(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

impl Connection {
    /// # Errors
    /// Nobody there.
    pub(super) async fn open(authority: &str) -> io::Result<Self> {
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host(authority).await?.collect();
        let stream = TcpStream::connect(&*addresses).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, raw: Vec::new() })
    }

    /// Whether an idle connection can take another request: nothing came, its end neither.
    pub(super) fn is_quiet(&self) -> bool {
        let peeked = socket2::SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]);
        self.raw.is_empty() && peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Gives back the room for bytes, while none are expected.
    pub(super) fn rest(&mut self) {
        self.raw = Vec::new();
    }

    /// Sends a request, head and body in one.
    ///
    /// # Errors
    /// A broken connection.
    pub(super) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// The head of the reply; those of provisional replies are passed over.
    ///
    /// # Errors
    /// A broken connection, something else than HTTP/1.
    pub(super) async fn head(&mut self) -> io::Result<Head> {
        loop {
            match parse(&self.raw)? {
                Some((head, bytes)) => {
                    self.raw.drain(..bytes);
                    if !head.status.is_informational() {
                        return Ok(head);
                    }
                }
                None if self.raw.len() > MOST_HEAD => return Err(broken("the head of the reply has no end")),
                None => {
                    if !self.fill().await? {
                        return Err(Error::new(ErrorKind::UnexpectedEof, "the connection ended before a reply began"));
                    }
                }
            }
        }
    }

    /// Appends what has come of a body; waits until something has. False at the end of the body.
    ///
    /// # Errors
    /// A broken connection, chunks that are none, an end before the body's.
    pub(super) async fn body(&mut self, left: &mut Left, to: &mut Vec<u8>) -> io::Result<bool> {
        let had = to.len();
        loop {
            take(&mut self.raw, left, to)?;
            if to.len() > had {
                return Ok(true);
            }
            if *left == Left::Nothing {
                return Ok(false);
            }
            if self.raw.len() > MOST_HEAD {
                return Err(broken("what stands between two chunks has no end"));
            }
            if !self.fill().await? {
                if *left == Left::ToTheEnd {
                    *left = Left::Nothing;
                    return Ok(false);
                }
                return Err(Error::new(ErrorKind::UnexpectedEof, "the connection ended before the reply did"));
            }
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        self.raw.reserve(READ);
        Ok(self.stream.read_buf(&mut self.raw).await? > 0)
    }
}

/// A head and its length, when all of it is there.
fn parse(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut reply = httparse::Response::new(&mut fields);
    let length = match reply.parse(bytes).map_err(|error| broken(format!("no HTTP/1 reply: {error}")))? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let status = reply.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| broken("a reply without a status"))?;
    let (mut body, mut keeps) = (Left::ToTheEnd, reply.version == Some(1));
    let mut chunked = false;
    for field in reply.headers.iter() {
        let has = |word: &[u8]| field.value.to_ascii_lowercase().windows(word.len()).any(|part| part == word);
        if field.name.eq_ignore_ascii_case("connection") {
            keeps &= !has(b"close");
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked |= has(b"chunked");
        } else if field.name.eq_ignore_ascii_case("content-length") {
            let number = std::str::from_utf8(field.value).ok().and_then(|text| text.trim().parse().ok());
            body = Left::Bytes(number.ok_or_else(|| broken("a content-length that is no number"))?);
        }
    }
    let empty = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational();
    body = match body {
        _ if empty => Left::Nothing,
        _ if chunked => Left::Chunks,
        Left::Bytes(0) => Left::Nothing,
        body => body,
    };
    Ok(Some((Head { status, body, keeps: keeps && body != Left::ToTheEnd }, length)))
}

/// Moves what is complete of a body out of the raw bytes.
fn take(raw: &mut Vec<u8>, left: &mut Left, to: &mut Vec<u8>) -> io::Result<()> {
    let mut at = 0;
    loop {
        let bytes = &raw[at..];
        let (taken, next) = match *left {
            Left::Nothing => break,
            Left::ToTheEnd => (bytes.len(), Left::ToTheEnd),
            Left::Bytes(most) | Left::OfChunk(most) => {
                let taken = usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len()));
                let rest = most - taken as u64;
                let next = match *left {
                    Left::Bytes(_) if rest == 0 => Left::Nothing,
                    Left::Bytes(_) => Left::Bytes(rest),
                    _ if rest == 0 => Left::ChunkEnd,
                    _ => Left::OfChunk(rest),
                };
                (taken, next)
            }
            framing => match between(bytes, framing)? {
                Some((taken, next)) => {
                    (at, *left) = (at + taken, next);
                    continue;
                }
                None => break,
            },
        };
        to.extend_from_slice(&bytes[..taken]);
        (at, *left) = (at + taken, next);
        if taken == bytes.len() {
            break;
        }
    }
    raw.drain(..at);
    Ok(())
}

/// The bytes around chunks: how many there are and what follows, when they are complete.
fn between(bytes: &[u8], framing: Left) -> io::Result<Option<(usize, Left)>> {
    if framing == Left::Chunks {
        let size = httparse::parse_chunk_size(bytes).map_err(|_| broken("a chunk without a size"))?;
        return Ok(match size {
            httparse::Status::Partial => None,
            httparse::Status::Complete((taken, 0)) => Some((taken, Left::Trailer)),
            httparse::Status::Complete((taken, size)) => Some((taken, Left::OfChunk(size))),
        });
    }
    let line = bytes.windows(2).position(|two| two == b"\r\n");
    match (framing, line) {
        (Left::ChunkEnd, Some(0)) => Ok(Some((2, Left::Chunks))),
        (Left::ChunkEnd, _) if bytes.len() >= 2 => Err(broken("a chunk is longer than it says")),
        (Left::Trailer, Some(0)) => Ok(Some((2, Left::Nothing))),
        (Left::Trailer, Some(line)) => Ok(Some((line + 2, Left::Trailer))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of a reply that arrives byte by byte, and what is left of it.
    fn read(reply: &[u8]) -> Result<(Head, String, Left), String> {
        let (head, at) = parse(reply).map_err(|error| error.to_string())?.ok_or("half a head")?;
        let (mut raw, mut left, mut body) = (Vec::new(), head.body, Vec::new());
        for &byte in &reply[at..] {
            raw.push(byte);
            take(&mut raw, &mut left, &mut body).map_err(|error| error.to_string())?;
        }
        Ok((head, String::from_utf8(body).unwrap(), left))
    }

    #[test]
    fn bodies_of_every_framing_are_read_to_their_end() {
        let (head, body, left) = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        assert_eq!((head.keeps, &*body, left), (true, "hello", Left::Nothing));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: Close\r\n\r\n\
            3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nServer-Timing: 1\r\n\r\n";
        let (head, body, left) = read(chunked).unwrap();
        assert_eq!((head.keeps, &*body, left), (false, "hello", Left::Nothing));
        let (head, body, left) = read(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
        assert_eq!((head.keeps, &*body, left), (false, "hello", Left::ToTheEnd));
        let (head, _, _) = read(b"HTTP/1.0 204 No Content\r\nContent-Length: 5\r\n\r\n").unwrap();
        assert_eq!((head.keeps, head.body), (false, Left::Nothing));
    }

    #[test]
    fn what_is_no_reply_and_what_breaks_its_framing_is_named() {
        let chunks = |body: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}").into_bytes();
        assert_eq!(read(&chunks("3\r\nhello\r\n")).unwrap_err(), "a chunk is longer than it says");
        assert_eq!(read(&chunks("hello\r\n")).unwrap_err(), "a chunk without a size");
        assert_eq!(read(&chunks("3\r\nhe")).unwrap().2, Left::OfChunk(1));
        assert!(read(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap_err().starts_with("no HTTP/1 reply"));
        let length = read(b"HTTP/1.1 200 OK\r\ncontent-length: 5x\r\n\r\n").unwrap_err();
        assert_eq!(length, "a content-length that is no number");
    }
}
