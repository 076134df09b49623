//! Engines that break on the wire, behind the real adapter: cut within a character, endless, garbled, silent, gone.

use super::send;
use crate::serve::{Gateway, Options, Pool, pool::Replica};
use axum::{
    Router,
    body::{Body, Bytes},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use tokio::net::TcpListener;

/// Largest line the adapter reads here.
const MOST_BYTES: usize = 1 << 20;
/// What an endless engine sends, if nobody stops it.
const ENDLESS: usize = 100 << 20;

#[derive(Clone, Default)]
struct Engine {
    /// Whether it breaks, by the first id of the prompt.
    breaks: bool,
    sent: Arc<AtomicUsize>,
    prompts: Arc<Mutex<Vec<Value>>>,
}

fn piece(token: u64, last: bool) -> String {
    let half = 0.5f64.ln();
    let entry = |id: u64, rank: u64| json!({"token_id": id, "logprob": half, "rank": rank});
    let top = json!([entry(token, 1), entry(token + 1, 2), {"token_id": 1, "logprob": -9999.0, "rank": 3}]);
    let content = json!([{"token_id": token, "logprob": half, "rank": 1, "top_logprobs": top}]);
    let mut choice = json!({"index": 0, "token_ids": [token], "logprobs": {"content": content}});
    choice["finish_reason"] = if last { json!("length") } else { Value::Null };
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

type Chunk = Result<Bytes, std::io::Error>;

fn gone() -> Chunk {
    Err(std::io::Error::other("gone"))
}

impl Engine {
    fn answer(&self, asked: &Value) -> Response {
        let prompt = asked["token_ids"].as_array().unwrap();
        self.prompts.lock().unwrap().push(asked["token_ids"].clone());
        let (kind, known) = (prompt[0].as_u64().unwrap(), prompt.len() as u64 - 2);
        if self.breaks && kind != 9 {
            return self.broken(kind);
        }
        let left = asked["sampling_params"]["max_tokens"].as_u64().unwrap();
        let pieces: String = (0..left).map(|at| piece(10 + known + at, at + 1 == left)).collect();
        Response::new(Body::from(pieces))
    }

    fn broken(&self, kind: u64) -> Response {
        let first = Bytes::from(piece(10, false));
        let chunks: Vec<Chunk> = match kind {
            1 => vec![Ok(first), Ok(Bytes::from_static(b"data: {\"choices\":[{\"text\":\"caf\xc3")), gone()],
            2 => return Response::new(Body::from_stream(stream::iter([Ok(first)]).chain(self.endless()))),
            3 => vec![Ok(first), Ok(Bytes::from_static(b"data: not json\n\n"))],
            4 => return (StatusCode::INTERNAL_SERVER_ERROR, "boom").into_response(),
            5 => vec![gone()],
            _ => vec![Ok(first)],
        };
        let yielding = stream::iter(chunks).then(|chunk| async {
            tokio::task::yield_now().await;
            chunk
        });
        Response::new(Body::from_stream(yielding))
    }

    fn endless(&self) -> impl futures_core::Stream<Item = Chunk> + use<> {
        let sent = self.sent.clone();
        stream::iter(0..ENDLESS >> 16).map(move |_| {
            sent.fetch_add(1 << 16, Ordering::Relaxed);
            Ok(Bytes::from(vec![b'a'; 1 << 16]))
        })
    }

    async fn listen(&self) -> String {
        let engine = self.clone();
        let generate = move |body: Bytes| {
            let engine = engine.clone();
            async move { engine.answer(&serde_json::from_slice(&body).unwrap()) }
        };
        let router = Router::new()
            .route("/version", get(|| async { json!({"version": "0.32.0"}).to_string() }))
            .route("/v1/models", get(|| async { json!({"data": [{"id": "m"}]}).to_string() }))
            .route("/inference/v1/generate", post(generate));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }
}

async fn before(engines: &[&Engine]) -> Arc<Gateway> {
    let options = lockstep_adapters::Options {
        on_finding: lockstep_adapters::OnFinding::Report,
        vocabulary: Some(1000),
        most_bytes: MOST_BYTES,
        ..lockstep_adapters::Options::default()
    };
    let mut replicas = Vec::new();
    for engine in engines {
        let url = engine.listen().await;
        let connected = lockstep_adapters::connect(&url, &options).await.unwrap();
        replicas.push(Replica::new(url, connected.sampler.clone(), None).watched_by(connected));
    }
    Arc::new(Gateway::new(Pool::new(replicas).unwrap(), Options::default()))
}

fn body(kind: u64) -> String {
    json!({"prompt": [kind, 7], "max_tokens": 3, "return_token_ids": true}).to_string()
}

#[tokio::test]
async fn whatever_an_engine_does_on_the_wire_its_tokens_are_kept_and_another_goes_on() {
    for (kind, kept) in [(1, 1), (2, 1), (3, 1), (4, 0), (5, 0), (6, 1)] {
        let broken = Engine { breaks: true, ..Engine::default() };
        let healthy = Engine::default();
        let gateway = before(&[&broken, &healthy]).await;
        let said = send(&gateway, "/v1/completions", &[], &body(kind)).await.ok();
        assert_eq!(said["choices"][0]["token_ids"], json!([10, 11, 12]), "case {kind}");
        let resumed = healthy.prompts.lock().unwrap().last().unwrap().as_array().unwrap().len() - 2;
        assert_eq!(resumed, kept, "case {kind}");
        let sent = broken.sent.load(Ordering::Relaxed);
        assert!(sent < ENDLESS / 4, "case {kind}: {sent} bytes were read");
    }
}

#[tokio::test]
async fn alone_it_is_a_clear_error_with_the_rollout_and_others_are_untouched() {
    let broken = Engine { breaks: true, ..Engine::default() };
    let gateway = before(&[&broken]).await;
    for kind in [2, 3, 4] {
        let (bad, good) = (body(kind), body(9));
        let (said, other) =
            tokio::join!(send(&gateway, "/v1/completions", &[], &bad), send(&gateway, "/v1/completions", &[], &good));
        assert!(said.status.is_server_error(), "case {kind}: {}", said.text());
        let kept = said.json()["error"]["rollout_ids"][0].is_string();
        assert_eq!(kept, kind != 4, "case {kind}: {}", said.text());
        assert_eq!(other.ok()["choices"][0]["token_ids"], json!([10, 11, 12]));
    }
}
