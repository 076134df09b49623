//! The gateway in front of engines that do what a test says, without a socket.

mod capture;
mod control;
mod dialects;
mod engine;
mod faults;
mod grpc;
mod plans;
mod pull;
mod refusals;
mod resyncs;
mod speaking;
mod trainers;
mod wire;

use super::{Gateway, Options, Pool, router};
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use engine::Fake;
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt;

/// Status and body of one request.
struct Said {
    status: StatusCode,
    body: Vec<u8>,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The message of an error, after its status has been checked.
    fn error(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        self.json()
    }

    /// The events of a stream, without its end, and whether that was `[DONE]`.
    fn events(&self) -> (Vec<Value>, bool) {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        let text = self.text();
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        let done = events.last() == Some(&"data: [DONE]");
        if done {
            events.pop();
        }
        let read = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        (events.into_iter().map(read).collect(), done)
    }
}

async fn send(gateway: &Arc<Gateway>, path: &str, headers: &[(&str, &str)], body: &str) -> Said {
    let mut request = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router(gateway.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec();
    Said { status, body }
}

async fn get(gateway: &Arc<Gateway>, path: &str) -> Said {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(gateway.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    Said { status, body: axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec() }
}

fn gateway(engines: Vec<Fake>) -> Gateway {
    gateway_with(engines, Options::default())
}

fn gateway_with(engines: Vec<Fake>, options: Options) -> Gateway {
    let named = engines.into_iter().enumerate();
    let replicas = named.map(|(at, engine)| super::pool::Replica::new(format!("engine {at}"), Arc::new(engine), None));
    Gateway::new(Pool::new(replicas.collect()).unwrap(), options)
}

/// A gateway before one engine that counts.
fn counting() -> Arc<Gateway> {
    Arc::new(gateway(vec![Fake::counting()]))
}
