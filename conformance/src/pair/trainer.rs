//! The trainer of the pair: scores, steps, publishes, and answers a probe.

use super::model::{Model, log_softmax};
use async_trait::async_trait;
use lockstep_core::{
    Batch, Rollout, ScoredBatch, Support, TokenId, WeightVersion,
    dlc::{
        EssReport, LagRatio,
        loss::{DomainRow, Scale, loss},
        statistics::Statistics,
        weigh::{Position, TokenCorrection, weigh},
    },
    ports::{
        PortError, PortResult, Probe, ProbeLoss, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport,
        Trainer, TrainerCapabilities,
    },
    score::{RolloutLogProbs, RowLogProbs, ScoredAt, SupportLogProbs},
    support::Domain,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Learning rate of the plain gradient steps: large, so that one of them shows.
const RATE: f64 = 20.0;

/// Where the trainer puts weights and the sampler finds them.
#[derive(Debug, Default)]
pub struct Store {
    models: Mutex<BTreeMap<String, Arc<Model>>>,
}

impl Store {
    fn put(&self, path: &str, model: Arc<Model>) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), model);
    }

    /// The weights at a path.
    ///
    /// # Errors
    /// A path that holds none.
    pub fn get(&self, path: &str) -> PortResult<Arc<Model>> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.get(path).cloned().ok_or_else(|| PortError::Refused(format!("no weights at {path}")))
    }
}

/// Keeps a snapshot of every version until it is told not to.
#[derive(Debug)]
pub struct MemoryTrainer {
    versions: Mutex<BTreeMap<WeightVersion, Arc<Model>>>,
    store: Arc<Store>,
}

impl MemoryTrainer {
    /// A trainer at these weights, which publishes to the store.
    pub fn new(model: Model, store: Arc<Store>) -> Self {
        Self { versions: Mutex::new(BTreeMap::from([(model.version, Arc::new(model))])), store }
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<WeightVersion, Arc<Model>>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weights held now.
    ///
    /// # Panics
    /// Never: the newest version is always kept.
    pub fn current(&self) -> Arc<Model> {
        let versions = self.versions();
        versions.last_key_value().map(|(_, model)| model.clone()).unwrap_or_else(|| unreachable!("no version is kept"))
    }

    fn at(&self, version: WeightVersion) -> PortResult<Arc<Model>> {
        let versions = self.versions();
        let kept = versions.len();
        let missing = || PortError::Refused(format!("{version} is not among the {kept} versions kept"));
        versions.get(&version).cloned().ok_or_else(missing)
    }
}

/// The domain of q: the listed ids, or the vocabulary.
fn domain(support: &Support, vocabulary: usize) -> Vec<usize> {
    match support.domain() {
        Domain::Listed => support.ids().iter().map(|id| id.0 as usize).collect(),
        Domain::Vocabulary(_) => (0..vocabulary).collect(),
    }
}

/// log p over the domain of q, `[V]`, and on the support's entries.
fn score_row(model: &Model, context: usize, (support, temperature): (&Support, f64)) -> (Vec<f64>, RowLogProbs) {
    let z = model.tempered(context, temperature);
    let domain = domain(support, z.len());
    let log_p = log_softmax(&domain.iter().map(|&id| z[id]).collect::<Vec<f64>>());
    let of = |token: TokenId| {
        let place = domain.iter().position(|&id| id == token.0 as usize);
        place.map_or(f64::NEG_INFINITY, |place| log_p[place])
    };
    let known = &support.ids()[..support.known()];
    let rest = domain.iter().zip(&log_p).filter(|(id, _)| !known.iter().any(|known| known.0 as usize == **id));
    let row = RowLogProbs {
        log_p: known.iter().map(|&id| of(id)).collect(),
        log_p_sampled: of(support.sampled().token),
        log_rest: support.log_rest().map(|_| rest.map(|(_, log_p)| log_p.exp()).sum::<f64>().ln().min(0.0)),
    };
    (log_p, row)
}

/// The hashed context of each sampled token, segment by segment.
fn contexts(rollout: &Rollout) -> Vec<Vec<usize>> {
    let mut prefix = rollout.prompt().to_vec();
    let segments = rollout.segments().iter();
    let of_segment = |tokens: &[TokenId], prefix: &mut Vec<TokenId>| {
        let context = |&token| {
            let context = Model::context(&*prefix);
            prefix.push(token);
            context
        };
        tokens.iter().map(context).collect()
    };
    segments.map(|segment| of_segment(segment.behavior.tokens(), &mut prefix)).collect()
}

fn score(model: &Model, rollout: &Rollout) -> RolloutLogProbs {
    let temperature = rollout.params().temperature();
    let segments = rollout.segments().iter().zip(contexts(rollout));
    let scores = segments.map(|(segment, contexts)| {
        let mut scores = SupportLogProbs::default();
        for (support, context) in segment.behavior.rows().zip(contexts) {
            scores.push(&support, &score_row(model, context, (&support, temperature)).1);
        }
        scores
    });
    scores.collect()
}

#[async_trait]
impl Scorer for MemoryTrainer {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        Ok(ScorerCapabilities { live: self.versions().keys().copied().collect() })
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let model = self.at(version)?;
        Ok(ScoredAt { version, rollouts: batch.rollouts().iter().map(|rollout| score(&model, rollout)).collect() })
    }
}

/// A step under way.
struct Step<'a> {
    model: &'a Model,
    options: &'a StepOptions,
    gradient: Vec<f64>,
    loss: f64,
    terms: Statistics,
    lags: BTreeMap<WeightVersion, Vec<Vec<LagRatio>>>,
}

impl Step<'_> {
    fn rollout(&mut self, rollout: &Rollout, log_s: &RolloutLogProbs, advantage: f64) -> PortResult<()> {
        let temperature = rollout.params().temperature();
        let mut lags = Vec::new();
        for ((segment, contexts), scores) in rollout.segments().iter().zip(contexts(rollout)).zip(log_s) {
            scores.check(&segment.behavior).map_err(|error| PortError::Refused(error.to_string()))?;
            for (position, context) in contexts.into_iter().enumerate() {
                let support = segment.behavior.row(position);
                let log_s = scores.row(&segment.behavior, position);
                let scale = Scale { advantage, temperature };
                lags.push(self.token((&support, &log_s), context, scale)?);
            }
        }
        let mut versions: Vec<_> = rollout.segments().iter().map(|segment| segment.stamp.version()).collect();
        versions.dedup();
        if let [Some(version)] = versions[..] {
            self.lags.entry(version).or_default().push(lags);
        }
        Ok(())
    }

    fn token(&mut self, row: (&Support, &RowLogProbs), context: usize, scale: Scale) -> PortResult<LagRatio> {
        let failed = |error: &dyn std::fmt::Display| PortError::Failed(error.to_string());
        let (support, log_s) = row;
        let (over_domain, log_theta) = score_row(self.model, context, (support, scale.temperature));
        // Rounded as p_s travels, so that equal weights give a lag of exactly 0.
        let log_theta = log_theta.rounded();
        let position = Position { support, log_s, log_theta: &log_theta };
        let (lag, numeric) = position.decompose().map_err(|error| failed(&error))?;
        self.terms.push(&position, lag, numeric);
        let correction: TokenCorrection = weigh(&position, &self.options.rule).map_err(|error| failed(&error))?;
        self.descend((support, &over_domain), (context, scale), &correction);
        Ok(lag)
    }

    fn descend(
        &mut self,
        (support, log_theta): (&Support, &[f64]),
        (context, scale): (usize, Scale),
        correction: &TokenCorrection,
    ) {
        let width = self.model.logits(context).len();
        let domain = domain(support, width);
        let place = |token: TokenId| domain.iter().position(|&id| id == token.0 as usize).unwrap_or(0);
        let known: Vec<usize> = support.ids()[..support.known()].iter().map(|&id| place(id)).collect();
        let sampled = place(support.sampled().token);
        let mut own = vec![0.0; domain.len()];
        let row = DomainRow { log_theta, log_s: log_theta, known: &known, sampled };
        self.loss += loss(&row, correction, scale, &mut own);
        domain.iter().zip(own).for_each(|(id, own)| self.gradient[context * width + id] += own);
    }
}

#[async_trait]
impl Trainer for MemoryTrainer {
    fn capabilities(&self) -> TrainerCapabilities {
        TrainerCapabilities { snapshots: true }
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        let rollouts = batch.batch().rollouts();
        if log_s.len() != rollouts.len() {
            return Err(PortError::Refused(format!("{} scores for {} rollouts", log_s.len(), rollouts.len())));
        }
        let model = self.current();
        let (terms, lags) = (Statistics::default(), BTreeMap::new());
        let mut step = Step { model: &model, options, gradient: model.zeros(), loss: 0.0, terms, lags };
        for ((rollout, log_s), advantage) in rollouts.iter().zip(log_s).zip(batch.advantages()) {
            step.rollout(rollout, log_s, advantage)?;
        }
        let per_token = 1.0 / batch.batch().tokens().max(1) as f64;
        step.gradient.iter_mut().for_each(|entry| *entry *= per_token);
        let after = Arc::new(model.stepped(&step.gradient, RATE));
        self.versions().insert(after.version, after.clone());
        let horizon = options.horizon;
        Ok(StepReport {
            before: model.version,
            after: after.version,
            loss: step.loss * per_token,
            gradient_norm: step.gradient.iter().map(|entry| entry * entry).sum::<f64>().sqrt(),
            terms: step.terms.report(),
            ess: step.lags.iter().filter_map(|(&at, lags)| Some((at, EssReport::of(lags, horizon)?))).collect(),
        })
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        Ok(self.current().version)
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        let model = self.at(version)?;
        let (path, digest) = (format!("memory:{version}"), model.digest());
        self.store.put(&path, model);
        Ok(PublishedWeights { version, path, digest: Some(digest) })
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        let current = self.current().version;
        self.versions().retain(|version, _| *version == current || live.contains(version));
        Ok(())
    }
}

#[async_trait]
impl Probe for MemoryTrainer {
    async fn gradient(&self, asked: &ProbeLoss) -> PortResult<Vec<f64>> {
        let outside = || PortError::Refused(format!("position {} of {} tokens", asked.position, asked.tokens.len()));
        let token = *asked.tokens.get(asked.position).ok_or_else(outside)?;
        let sampled = asked.support.iter().position(|&id| id == token);
        let absent =
            || PortError::Refused(format!("token {token} is outside the {} ids asked about", asked.support.len()));
        let sampled = sampled.ok_or_else(absent)?;
        let model = self.current();
        let z = model.tempered(Model::context(&asked.tokens[..asked.position]), asked.temperature);
        let log_theta = log_softmax(&asked.support.iter().map(|id| z[id.0 as usize]).collect::<Vec<f64>>());
        let known: Vec<usize> = (0..asked.support.len()).collect();
        let row = DomainRow { log_theta: &log_theta, log_s: &log_theta, known: &known, sampled };
        let correction = TokenCorrection { w: asked.w, c: asked.c.clone(), tail: None };
        let mut gradient = vec![0.0; asked.support.len()];
        loss(&row, &correction, Scale { advantage: 1.0, temperature: asked.temperature }, &mut gradient);
        Ok(gradient)
    }
}
