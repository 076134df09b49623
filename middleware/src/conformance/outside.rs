//! Whatever stands at an address as a target: an engine over HTTP, or a sampler or trainer that speaks lockstep.proto.

use super::{patience::patient, unreachable::Unreachable};
use crate::client::{SamplerClient, TrainerClient};
use lockstep_adapters::{AdapterError, OnFinding, Options, openai::OpenAiSampler};
use lockstep_conformance::{Ask, NumericClass, Target};
use lockstep_core::{
    TokenId,
    ports::{Control, PortError, PortResult, Sampler},
};
use std::{future::Future, sync::Arc, time::Duration};

/// Prompts that are asked, and ids in each.
const PROMPTS: u32 = 4;
const LENGTH: u32 = 8;

/// Where a pair is, and how it is asked.
#[derive(Debug, Clone)]
pub struct Outside {
    /// An engine or a gateway at a URL, or a sampler at HOST:PORT.
    pub sampler: Option<String>,
    /// A trainer at HOST:PORT.
    pub trainer: Option<String>,
    /// The number format the pair claims.
    pub numeric: NumericClass,
    /// Longest wait for an answer.
    pub patience: Duration,
    /// Seed of the questions.
    pub seed: u64,
}

type Ports = (Arc<dyn Sampler>, Option<Arc<dyn Control>>);

/// The pair as a target. Whoever cannot be reached stays one that says so at every call.
pub async fn target(outside: &Outside) -> Target {
    let mut target = Target { numeric: outside.numeric, ..Target::default() };
    target.ask = Ask { seed: outside.seed, ..Ask::default() };
    if let Some(address) = &outside.sampler {
        let (sampler, control) = match within(outside.patience, sampler(address)).await {
            Ok(ports) => ports,
            Err(reason) => {
                let gone = Arc::new(Unreachable::because(reason));
                (gone.clone() as _, Some(gone as _))
            }
        };
        target.ask.vocabulary = sampler.capabilities().vocabulary;
        target.ask.prompts = some_prompts(target.ask.vocabulary);
        (target.sampler, target.control) = (Some(sampler), control);
    }
    if let Some(address) = &outside.trainer {
        match within(outside.patience, TrainerClient::connect(address)).await {
            Ok(trainer) => {
                let trainer = Arc::new(trainer);
                target.scorer = Some(trainer.clone());
                target.trainer = Some(trainer.clone());
                target.probe = Some(trainer);
            }
            Err(reason) => {
                let gone = Arc::new(Unreachable::because(reason));
                target.scorer = Some(gone.clone());
                target.trainer = Some(gone.clone());
                target.probe = Some(gone);
            }
        }
    }
    patient(target, outside.patience)
}

async fn within<T>(patience: Duration, call: impl Future<Output = PortResult<T>>) -> PortResult<T> {
    let late = || PortError::Unavailable(format!("no answer within {} s", patience.as_secs_f64()));
    tokio::time::timeout(patience, call).await.map_err(|_| late())?
}

async fn sampler(address: &str) -> PortResult<Ports> {
    if !address.contains("://") {
        return speaks_ours(address).await;
    }
    // The suite finds out by itself whether the engine tells the truth.
    let options = Options { on_finding: OnFinding::Report, ..Options::default() };
    match lockstep_adapters::connect(address, &options).await {
        Ok(engine) => Ok((engine.sampler.clone(), engine.control.clone())),
        // None of the engines that speak ids; one that speaks texts can at least be asked what its log-probs mean.
        Err(AdapterError::Port(PortError::Refused(why))) => {
            let texts = OpenAiSampler::connect(address, &options).await;
            let texts = texts.map_err(|other| PortError::Refused(format!("{why}; {other}")))?;
            match (texts.owner(), address.strip_prefix("http://")) {
                (Some(crate::serve::OWNER), Some(gateway)) => speaks_ours(gateway.trim_end_matches('/')).await,
                _ => Ok((Arc::new(texts), None)),
            }
        }
        Err(AdapterError::Port(error)) => Err(error),
        Err(other) => Err(PortError::Refused(other.to_string())),
    }
}

async fn speaks_ours(address: &str) -> PortResult<Ports> {
    let sampler = Arc::new(SamplerClient::connect(address).await?);
    Ok((sampler.clone(), Some(sampler)))
}

/// Prompts of ids spread over the vocabulary.
pub(super) fn some_prompts(vocabulary: u32) -> Vec<Vec<TokenId>> {
    let spread = |at: u32| TokenId(at.wrapping_mul(2_654_435_761) % vocabulary.max(1));
    (0..PROMPTS).map(|prompt| (0..LENGTH).map(|at| spread(prompt * LENGTH + at + 1)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_conformance::Suite;

    #[tokio::test]
    async fn nobody_at_an_address_is_one_line_a_check_and_exit_code_2() {
        let nobody = || Some("127.0.0.1:1".to_owned());
        let (patience, numeric) = (Duration::from_secs(10), NumericClass::F32);
        let outside = Outside { sampler: nobody(), trainer: nobody(), numeric, patience, seed: 1 };
        let report = Suite::all().run(&target(&outside).await, &mut |_| {}).await;
        assert_eq!(report.exit_code(), 2, "{}", report.table());
        let asks = |id: &str| (!id.starts_with("batch.") || id == "batch.denominator") && id != "tokens.template";
        for row in report.rows.iter().filter(|row| asks(&row.id)) {
            assert_eq!(row.verdict.word(), "could not run", "{}", row.id);
            assert!(row.verdict.evidence().contains("127.0.0.1:1"), "{}", row.verdict.evidence());
        }
    }
}

#[cfg(test)]
mod texts;
