//! What a trainer is told after a step is in the ledger, with what it was decided from and what came of it.

use super::{super::pool::Replica, engine::Fake};
use crate::{
    config::Stage,
    ledger::{self, Record},
    resync::ResyncEvent,
    serve::{Gateway, Options, Pool, restore, serve},
    wire::proto::{self, middleware_client::MiddlewareClient},
};
use async_trait::async_trait;
use lockstep_core::{
    Evidence, Stamp, WeightVersion,
    dlc::{EssReport, PolicyDecision, Reason, statistics::TermReport},
    ports::{Control, ControlCapabilities, PortResult, PublishedWeights, StepReport},
};
use std::{path::Path, sync::Arc, sync::Mutex};
use tokio::net::TcpListener;

/// Holds the weights it was given last.
struct Held(Mutex<WeightVersion>);

impl Held {
    fn stamp(&self) -> Stamp {
        Stamp::declared(*self.0.lock().unwrap(), Evidence::Label("test".into())).unwrap()
    }
}

#[async_trait]
impl Control for Held {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: false }
    }

    async fn pause(&self) -> PortResult<()> {
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        *self.0.lock().unwrap() = weights.version;
        Ok(self.stamp())
    }

    async fn resume(&self) -> PortResult<()> {
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        Ok(self.stamp())
    }
}

fn gateway(held: Arc<Held>, stage: Stage, directory: &Path) -> Arc<Gateway> {
    let options = Options { stage, ..Options::default() };
    let found = restore(directory, &options).unwrap();
    let pool = Pool::new(vec![Replica::new("engine", Arc::new(Fake::counting()), Some(held))]).unwrap();
    Arc::new(Gateway::new(pool, options).capturing(found.capture, found.plans, found.loose))
}

const fn version(step: u64) -> WeightVersion {
    WeightVersion { epoch: 0, step }
}

fn report(step: u64, (drawn_at, horizon): (WeightVersion, f64)) -> proto::StepReport {
    let ess = EssReport { token: 0.99, sequence: horizon, horizon, horizon_tokens: 24, sequences: 8, tokens: 64 };
    let (before, after) = (version(step), version(step + 1));
    let report = StepReport {
        before,
        after,
        loss: 0.0,
        gradient_norm: 1.0,
        terms: TermReport::default(),
        ess: vec![(drawn_at, ess)],
    };
    (&report).into()
}

async fn decisions(stage: Stage) -> (Vec<bool>, Vec<ResyncEvent>) {
    let directory = tempfile::tempdir().unwrap();
    let held = Arc::new(Held(Mutex::new(version(0))));
    let gateway = gateway(held.clone(), stage, directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(gateway.clone(), listener, std::future::pending()));
    let mut client = MiddlewareClient::connect(format!("http://{address}")).await.unwrap();
    let mut told = Vec::new();
    for (step, ess) in [(0, 1.0), (1, 0.8), (2, 0.3)] {
        told.push(client.report_step(report(step, (version(0), ess))).await.unwrap().into_inner().resynchronise);
    }
    *held.0.lock().unwrap() = version(3);
    told.push(client.report_step(report(3, (version(3), 1.0))).await.unwrap().into_inner().resynchronise);
    let records = ledger::read(directory.path()).unwrap();
    let events = records.into_iter().filter_map(|record| match record {
        Record::Synchronisation(event) => Some(event),
        _ => None,
    });
    (told, events.collect())
}

#[tokio::test]
async fn a_decision_is_recorded_with_its_inputs_and_then_with_its_effect() {
    let (told, events) = decisions(Stage::Dlc).await;
    assert_eq!(told, [false, false, true, false]);
    let [ResyncEvent::Decided { step: 3, decision, inputs, .. }, ResyncEvent::Effect { step: 4, before, after, .. }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*decision, PolicyDecision::Resync(Reason::Ess));
    assert_eq!((inputs.updates, inputs.ess.horizon, inputs.null.unwrap().horizon), (3, 0.3, 1.0));
    assert_eq!((before.horizon, after.horizon), (0.3, 1.0));
}

#[tokio::test]
async fn a_stage_that_decides_nothing_records_nothing() {
    let (told, events) = decisions(Stage::Observe).await;
    assert_eq!((told, events), (vec![false; 4], vec![]));
}
