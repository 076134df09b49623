//! An engine recorded, and served again without it.

use super::{Recorder, Replayer, serve};
use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, StatusCode},
    response::Response,
    routing::{get, post},
};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{convert::Infallible, net::SocketAddr, path::Path};
use tokio::net::TcpListener;
use tower::ServiceExt;

type Client = legacy::Client<HttpConnector, Full<Bytes>>;

/// Pieces of a stream, the first cut within a character.
const PIECES: [&[u8]; 2] = [b"data: caf\xc3", b"\xa9\n\n"];

async fn listening(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(router, listener, std::future::pending()));
    address
}

fn engine() -> Router {
    let counted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = move || {
        let now = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move { now.to_string() }
    };
    let pieces = || async {
        let pieces = stream::iter(PIECES.map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece))));
        Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(pieces)).unwrap()
    };
    let breaks = || async {
        let whole = stream::iter([Ok(Bytes::from_static(b"half"))]);
        let pieces = futures_util::StreamExt::chain(
            whole,
            stream::once(async {
                tokio::task::yield_now().await;
                Err::<Bytes, _>(std::io::Error::other("gone"))
            }),
        );
        Response::new(Body::from_stream(pieces))
    };
    let refuse = || async { (StatusCode::BAD_REQUEST, "no") };
    Router::new()
        .route("/count", get(count))
        .route("/stream", post(pieces))
        .route("/breaks", post(breaks))
        .route("/refuse", post(refuse))
}

/// Status and body of one exchange; no body when it broke off.
async fn ask(client: &Client, to: SocketAddr, what: &str, body: &str) -> (u16, Option<Vec<u8>>) {
    let (method, path) = what.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(format!("http://{to}{path}"));
    let response = client.request(request.body(Full::from(body.to_owned())).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.ok().map(|body| body.to_bytes().to_vec()))
}

async fn recorded(file: &Path) {
    let client: Client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let engine = listening(engine()).await;
    let recorder = Recorder::create(&format!("http://{engine}"), file).unwrap();
    let address = listening(recorder.router()).await;
    for expected in [b"0", b"1"] {
        assert_eq!(ask(&client, address, "GET /count", "").await, (200, Some(expected.to_vec())));
    }
    let said = ask(&client, address, "POST /stream", r#"{"a":1,"b":2}"#).await;
    assert_eq!(said, (200, Some(PIECES.concat())));
    assert_eq!(ask(&client, address, "POST /refuse", "x").await, (400, Some(b"no".to_vec())));
    assert_eq!(ask(&client, address, "POST /breaks", "").await, (200, None));
}

#[tokio::test]
async fn what_was_recorded_is_served_again_without_the_engine() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("exchanges.jsonl");
    recorded(&file).await;
    let client: Client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let address = listening(Replayer::load(&file).unwrap().router()).await;
    for expected in [b"0", b"1", b"1"] {
        assert_eq!(ask(&client, address, "GET /count", "").await, (200, Some(expected.to_vec())));
    }
    let said = ask(&client, address, "POST /stream", r#"{ "b": 2, "a": 1 }"#).await;
    assert_eq!(said, (200, Some(PIECES.concat())));
    assert_eq!(ask(&client, address, "POST /refuse", "x").await, (400, Some(b"no".to_vec())));
    assert_eq!(ask(&client, address, "POST /breaks", "").await, (200, None));
    let (status, body) = ask(&client, address, "POST /stream", r#"{"a":2}"#).await;
    let told = String::from_utf8(body.unwrap()).unwrap();
    assert_eq!(status, 404);
    assert!(told.contains("POST /stream with this body of 7 bytes is not recorded"), "{told}");
}

#[tokio::test]
async fn files_that_are_there_or_damaged_and_addresses_that_are_none_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("exchanges.jsonl");
    std::fs::write(&file, "{\"number\":0}\n").unwrap();
    let there = Recorder::create("http://127.0.0.1:1", &file).unwrap_err().to_string();
    assert!(there.starts_with("cannot create"), "{there}");
    let damaged = Replayer::load(&file).unwrap_err().to_string();
    assert!(damaged.starts_with("line 1 of ") && damaged.contains("missing field"), "{damaged}");
    let other = directory.path().join("other");
    assert!(Recorder::create("ftp://x", &other).unwrap_err().to_string().contains("no address"));
    let recorder = Recorder::create("http://127.0.0.1:1", &other).unwrap();
    let request = Request::get("/health").body(Body::empty()).unwrap();
    let gone = recorder.router().oneshot(request).await.unwrap();
    assert_eq!(gone.status(), StatusCode::SERVICE_UNAVAILABLE);
}
