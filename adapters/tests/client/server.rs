//! A small HTTP server that says what a test tells it to.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What arrived.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// What is said.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    /// A JSON body with a status.
    Json(u16, Value),
    /// Lines of a stream, then a proper end.
    Lines(Vec<Value>),
    /// Bytes of a stream, then the connection dies.
    Cut(Vec<u8>),
    /// These bytes as a stream, then nothing more.
    Silent(Vec<u8>),
    /// As many bytes as are taken, without a line's end.
    Endless(usize),
    /// The connection dies at once.
    Dead,
}

pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
}

impl Server {
    /// Serves on a free port until the test ends.
    pub(crate) async fn start(answer: impl Fn(&Call) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(vec![]));
        let (answer, seen) = (Arc::new(answer), calls.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (answer.clone(), seen.clone());
                tokio::spawn(async move {
                    // A client that hangs up is part of the tests.
                    serve(stream, answer.as_ref(), &seen).await.ok();
                });
            }
        });
        Self { address, calls }
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call.path.clone()).collect()
    }

    pub(crate) fn bodies(&self, path: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.path.starts_with(path)).map(|call| call.body.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&Call) -> Say + Send + Sync),
    seen: &Mutex<Vec<Call>>,
) -> std::io::Result<()> {
    let Some(call) = read(&mut stream).await? else { return Ok(()) };
    seen.lock().unwrap().push(call.clone());
    match answer(&call) {
        Say::Json(status, value) => json_body(&mut stream, status, &value).await?,
        Say::Lines(lines) => {
            let text: String = lines.iter().map(event).collect();
            begin(&mut stream).await?;
            chunk(&mut stream, text.as_bytes()).await?;
            chunk(&mut stream, b"data: [DONE]\n\n").await?;
            stream.write_all(b"0\r\n\r\n").await?;
        }
        Say::Cut(bytes) => {
            begin(&mut stream).await?;
            chunk(&mut stream, &bytes).await?;
        }
        Say::Silent(bytes) => {
            begin(&mut stream).await?;
            chunk(&mut stream, &bytes).await?;
            // Until the client hangs up.
            stream.read_to_end(&mut Vec::new()).await?;
        }
        Say::Endless(bytes) => endless(&mut stream, bytes).await?,
        Say::Dead => {}
    }
    stream.shutdown().await
}

async fn json_body(stream: &mut TcpStream, status: u16, value: &Value) -> std::io::Result<()> {
    let body = value.to_string();
    let head = format!("HTTP/1.1 {status} said\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}

async fn endless(stream: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    begin(stream).await?;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..bytes >> 20 {
        chunk(stream, &piece).await?;
    }
    Ok(())
}

/// A line of a stream.
pub(crate) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

async fn begin(stream: &mut TcpStream) -> std::io::Result<()> {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        .await
}

async fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    stream.write_all(bytes).await?;
    stream.write_all(b"\r\n").await
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Option<Call>> {
    let mut text = Vec::new();
    let end = loop {
        if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await? {
            0 => return Ok(None),
            n => text.extend_from_slice(&piece[..n]),
        }
    };
    let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    while text.len() < end + length.unwrap_or(0) {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).await?;
        text.extend_from_slice(&piece[..n]);
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let body = serde_json::from_slice(&text[end..]).unwrap_or_default();
    Ok(Some(Call { path, body }))
}

/// A honest vLLM with masks: token `10 + n` at output position n, the only one kept; label `e0.s1`.
pub(crate) fn vllm(call: &Call) -> Say {
    match call.path.as_str() {
        "/version" => Say::Json(200, json!({ "version": "0.32.0" })),
        "/v1/models" => Say::Json(200, json!({ "data": [{ "id": "tiny" }] })),
        "/weight_info" => Say::Json(200, json!({ "weight_version": "e0.s1" })),
        "/inference/v1/generate" => generate(call, 1000),
        "/props" | "/model_info" => Say::Json(404, json!({ "detail": "Not Found" })),
        _ => Say::Json(200, json!({})),
    }
}

fn generate(call: &Call, vocabulary: u64) -> Say {
    let beyond = call.body["token_ids"].as_array().unwrap().iter().find(|id| id.as_u64().unwrap() >= vocabulary);
    if let Some(id) = beyond {
        return Say::Json(400, json!({ "error": { "message": format!("Token id {id} is out of vocabulary") } }));
    }
    let tokens = call.body["sampling_params"]["max_tokens"].as_u64().unwrap() as usize;
    let mut lines: Vec<Value> = (0..tokens).map(|at| piece(at, None)).collect();
    *lines.last_mut().unwrap() = piece(tokens - 1, Some("length"));
    Say::Lines(lines)
}

/// One token of that vLLM, the last one with its spans.
pub(crate) fn piece(at: usize, finish: Option<&str>) -> Value {
    let entry = |id: usize, value: f64| json!({ "token_id": id, "logprob": value, "rank": 1 });
    let id = 10 + at;
    let spans = finish.map(|_| json!([{ "version": "e0.s1", "start": 0, "end": at + 1 }]));
    json!({ "choices": [{
        "index": 0, "token_ids": [id], "finish_reason": finish, "sampling_mask": [[id]], "weight_versions": spans,
        "logprobs": { "content": [{ "token_id": id, "logprob": 0.0, "rank": 1,
            "top_logprobs": [entry(id, 0.0), entry(0, -9999.0), entry(1, -9999.0)] }] },
    }] })
}
