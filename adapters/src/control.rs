//! The control plane of vLLM and SGLang: pause, load, resume, version. Both paths drop the caches that old weights built.

use crate::{
    answer::stamp,
    link::{Dialect, Link},
};
use async_trait::async_trait;
use lockstep_core::{
    Stamp,
    ports::{Control, ControlCapabilities, PortError, PortResult, PublishedWeights},
};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// An engine whose weights can be replaced while it runs.
#[derive(Debug)]
pub struct EngineControl {
    link: Arc<Link>,
    paused: AtomicBool,
}

impl EngineControl {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, paused: AtomicBool::new(false) }
    }

    async fn post(&self, path: &str, body: Value) -> PortResult<Value> {
        let bytes = self.link.http.post(path, &body).await?;
        let reply: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if reply.get("success").and_then(Value::as_bool) == Some(false) {
            let why = reply.get("message").and_then(Value::as_str).unwrap_or("it gives no reason");
            return Err(PortError::Failed(format!("engine at {}: {path} failed: {why}", self.link.http.base())));
        }
        Ok(reply)
    }

    fn is_vllm(&self) -> bool {
        matches!(self.link.dialect, Dialect::Vllm(_))
    }

    async fn replace(&self, weights: &PublishedWeights) -> PortResult<()> {
        let label = weights.version.to_string();
        if self.is_vllm() {
            let reload = json!({ "method": "reload_weights", "kwargs": { "weights_path": weights.path } });
            self.post("/collective_rpc", reload).await?;
            self.post("/reset_prefix_cache", json!({})).await?;
            self.post("/update_weight_version", json!({ "new_version": label })).await?;
            return Ok(());
        }
        let body = json!({
            "model_path": weights.path,
            "flush_cache": true,
            "abort_all_requests": false,
            "weight_version": label,
        });
        self.post("/update_weights_from_disk", body).await.map(drop)
    }

    pub(crate) async fn label(&self) -> PortResult<String> {
        let path = if self.is_vllm() { "/weight_info" } else { "/model_info" };
        let reply = self.link.http.get(path).await?;
        let label = reply.get("weight_version").and_then(Value::as_str).map(str::to_owned);
        label.ok_or_else(|| {
            PortError::Failed(format!("engine at {}: {path} has no weight_version", self.link.http.base()))
        })
    }

    /// Replaces the weights, and asks for the label afterwards.
    async fn update(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        self.replace(weights).await?;
        let (label, expected) = (self.label().await?, weights.version.to_string());
        if label != expected {
            let base = self.link.http.base();
            return Err(PortError::Failed(format!(
                "engine at {base} was given weights {expected}, but declares {label:?}"
            )));
        }
        Ok(stamp(&label))
    }
}

#[async_trait]
impl Control for EngineControl {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: false }
    }

    async fn pause(&self) -> PortResult<()> {
        if self.is_vllm() {
            // The running requests' caches are dropped too, and built anew by the weights that are there then.
            self.post("/pause?mode=keep&clear_cache=true", json!({})).await?;
        } else {
            self.post("/pause_generation", json!({ "mode": "retract" })).await?;
        }
        self.paused.store(true, Ordering::Release);
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let paused = self.paused.load(Ordering::Acquire);
        if !paused {
            self.pause().await?;
        }
        self.link.lock().updates += 1;
        let loaded = self.update(weights).await;
        {
            let mut known = self.link.lock();
            known.updates += 1;
            // After a failure nobody knows what the engine holds.
            known.label = loaded.as_ref().ok().map(|_| weights.version.to_string());
        }
        // After a failure it stays paused: what it would draw now has no version.
        let loaded = loaded?;
        if !paused {
            self.resume().await?;
        }
        Ok(loaded)
    }

    async fn resume(&self) -> PortResult<()> {
        if self.is_vllm() {
            self.post("/resume", json!({})).await?;
        } else {
            self.post("/continue_generation", json!({ "torch_empty_cache": false })).await?;
        }
        self.paused.store(false, Ordering::Release);
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        Ok(stamp(&self.label().await?))
    }
}
