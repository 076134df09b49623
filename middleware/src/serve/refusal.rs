//! What a client is told when its request is not answered: one sentence, in the shape OpenAI's clients read.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use lockstep_core::{RolloutId, ports::PortError};
use serde::Serialize;

/// A request that was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: &'static str,
    rollouts: Vec<RolloutId>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code, rollouts: Vec::new() }
    }

    /// 400: the request itself is wrong.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// 400: a field is wrong or would change the distribution.
    pub fn field(name: &str, message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::BAD_REQUEST, "invalid_field", message);
        Self { param: Some(name.to_owned()), ..refusal }
    }

    /// 404: nothing of that name.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 409: it exists, but not in a state that allows this.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// 413: more bytes than one request may have.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request's body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// 429: more answers in flight than this gateway takes.
    pub fn busy(limit: usize) -> Self {
        let message = format!("{limit} answers are in flight, which is this gateway's limit");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_in_flight", message)
    }

    /// 501: this gateway was started without what the route needs.
    pub fn absent(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_configured", message)
    }

    /// 500: a fault of this gateway.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// 502: the engine broke.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "engine_failed", message)
    }

    /// 503: the engine is not there.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "engine_unavailable", message)
    }

    /// The same refusal, with the rollouts whose tokens are kept, so that the client can resume them.
    #[must_use]
    pub fn keeping(mut self, rollouts: &[RolloutId]) -> Self {
        self.rollouts = rollouts.to_vec();
        self
    }

    /// Its HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The error object, as it also stands in a stream that broke off.
    pub fn body(&self) -> Vec<u8> {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let rollout_ids = self.rollouts.iter().map(ToString::to_string).collect();
        let (message, param, code) = (&*self.message, self.param.as_deref(), self.code);
        let shown = Shown { error: Inner { message, kind, param, code, rollout_ids } };
        serde_json::to_vec(&shown).unwrap_or_else(|_| br#"{"error":{"message":"unprintable error"}}"#.to_vec())
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rollout_ids: Vec<String>,
}

impl From<PortError> for Refusal {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Refused(what) => Self::request(what),
            PortError::Unavailable(what) => Self::unavailable(what),
            PortError::Failed(what) => Self::engine(what),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}
