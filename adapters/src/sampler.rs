//! An engine as a [`Sampler`]: every answer has a connection of its own, so that one that breaks leaves the others alone.
//! Answers are read by the task that reads their deltas; dropping those closes the connections, which makes the engine stop.

use crate::{
    answer::{Answer, Next},
    ask::EncodeError,
    http,
    link::{Dialect, Link},
    llama_cpp, sglang, vllm,
    wire::{Asked, Chunk, End, WireError},
};
use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{FuturesUnordered, poll_fn},
};
use lockstep_core::{
    Delta, RolloutId, Support, TokenId,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};
use tokio::sync::{Notify, mpsc};

/// Deltas that may wait for a slow reader.
const WAITING: usize = 64;

/// Longest wait for the end of a body whose last piece was read.
const DRAIN: Duration = Duration::from_secs(1);

/// Draws at a position of which the server did not report the row, at most.
const MOST_REDRAWS: u64 = 64;

type Running = Arc<Mutex<HashMap<RolloutId, Arc<Notify>>>>;

/// An engine that answers over HTTP.
///
/// A request that breaks puts its error into the stream and leaves the other answers going. An answer that the engine
/// aborts, or that is cut off, ends with [`PortError::Unavailable`] after the tokens that came.
#[derive(Debug)]
pub struct EngineSampler {
    link: Arc<Link>,
    running: Running,
}

impl EngineSampler {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, running: Running::default() }
    }
}

#[async_trait]
impl Sampler for EngineSampler {
    fn capabilities(&self) -> SamplerCapabilities {
        let (profile, vocabulary) = (self.link.profile.clone(), self.link.vocabulary);
        SamplerCapabilities { profile, vocabulary, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let (out, mut deltas) = mpsc::channel(WAITING);
        let answers = requests.into_iter().map(|request| {
            let (link, out) = (self.link.clone(), out.clone());
            let registered = Registered::new(&self.running, request.request.id);
            async move { run(&link, link.answer(request), (&registered.halt, &out)).await }
        });
        let mut answers: FuturesUnordered<_> = answers.collect();
        Ok(Box::pin(poll_fn(move |context| {
            while let Poll::Ready(Some(())) = answers.poll_next_unpin(context) {}
            deltas.poll_recv(context)
        })))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        let running = lock(&self.running);
        rollouts.iter().filter_map(|id| running.get(id)).for_each(|halt| halt.notify_one());
        Ok(())
    }
}

/// An answer that can be cancelled, until this is dropped.
struct Registered {
    running: Running,
    id: RolloutId,
    halt: Arc<Notify>,
}

impl Registered {
    fn new(running: &Running, id: RolloutId) -> Self {
        let (running, halt) = (running.clone(), Arc::new(Notify::new()));
        lock(&running).insert(id, halt.clone());
        Self { running, id, halt }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if running.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.halt)) {
            running.remove(&self.id);
        }
    }
}

fn lock(running: &Running) -> MutexGuard<'_, HashMap<RolloutId, Arc<Notify>>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

type Out = mpsc::Sender<PortResult<Delta>>;

/// Answers one request.
async fn run(link: &Link, mut answer: Answer, ends: (&Notify, &Out)) {
    let (halt, out) = ends;
    let broke = tokio::select! {
        done = drive(link, &mut answer, out) => done.err(),
        () = halt.notified() => None,
    };
    if let Some(delta) = answer.cut(&link.weights()) {
        // The reader may be gone; then nobody is left to tell.
        out.send(Ok(delta)).await.ok();
    }
    if let Some(error) = broke {
        out.send(Err(error)).await.ok();
    }
}

async fn drive(link: &Link, answer: &mut Answer, out: &Out) -> PortResult<()> {
    if let Some(delta) = answer.complete() {
        return send(out, delta).await;
    }
    loop {
        let before = answer.asked.resumed.len();
        answer.begin(link.weights());
        let next = match &link.dialect {
            Dialect::LlamaCpp { model } => leg(link, answer, (model.as_deref(), out)).await?,
            _ => stream(link, answer, out).await?,
        };
        match next {
            Next::Done => return Ok(()),
            Next::Interrupted(why) => return Err(link.broke_off(answer, &why)),
            Next::Goes | Next::Again if answer.asked.resumed.len() == before => {
                return Err(link.failed(answer, "the reply has no token"));
            }
            Next::Goes | Next::Again => {}
        }
    }
}

async fn send(out: &Out, delta: Delta) -> PortResult<()> {
    out.send(Ok(delta)).await.map_err(|_| PortError::Unavailable("nobody reads the deltas".into()))
}

/// A parser of either streaming engine.
enum Parser {
    Vllm(vllm::Parser),
    Sglang(sglang::Parser),
}

impl Parser {
    fn parse(&mut self, bytes: &[u8]) -> Result<Chunk, WireError> {
        match self {
            Self::Vllm(parser) => parser.parse(bytes),
            Self::Sglang(parser) => parser.parse(bytes),
        }
    }
}

async fn stream(link: &Link, answer: &mut Answer, out: &Out) -> PortResult<Next> {
    let (mut reply, mut parser) = ask(link, answer).await?;
    loop {
        let Some(line) = reply.line().await? else {
            let left = reply.left_over();
            let why = format!("the reply broke off before its last piece ({left} bytes of a cut line)");
            return Err(link.broke_off(answer, &why));
        };
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        if data.trim_ascii() == b"[DONE]" {
            return Err(link.broke_off(answer, "the reply ended without a finish reason"));
        }
        let chunk = parser.parse(data).map_err(|error| link.failed(answer, error))?;
        let taken = answer.take(chunk, &link.weights());
        let (deltas, next) = taken.map_err(|error| link.failed(answer, error))?;
        for delta in deltas {
            send(out, delta).await?;
        }
        if next != Next::Goes {
            // The rest of the body frees the connection for the next request.
            let rest = async { while let Ok(Some(_)) = reply.line().await {} };
            tokio::time::timeout(DRAIN, rest).await.ok();
            return Ok(next);
        }
    }
}

async fn ask(link: &Link, answer: &Answer) -> PortResult<(http::Body, Parser)> {
    let refused = |error: EncodeError| PortError::Refused(format!("rollout {}: {error}", answer.id()));
    let mut asked = Asked::new(&answer.asked, link.vocabulary, link.options.log_probs as usize);
    match &link.dialect {
        Dialect::Sglang(dialect) => {
            let form = dialect.form(&asked.truncation);
            let rid = format!("{}.{}", answer.id(), answer.asked.resumed.len());
            let body = sglang::encode(&answer.asked, dialect, &rid).map_err(refused)?;
            let reply = link.http.stream(sglang::PATH, &body).await?;
            Ok((reply, Parser::Sglang(sglang::Parser::new(asked, form))))
        }
        Dialect::Vllm(dialect) => {
            asked.head = asked.head.min(dialect.head as usize);
            if dialect.form == vllm::Form::Mask && asked.truncation.top_k == 0 {
                asked.truncation.top_k = dialect.cap_top_k.unwrap_or(0);
            }
            let body = vllm::encode(&answer.asked, dialect).map_err(refused)?;
            let reply = link.http.stream(dialect.route.path(), &body).await?;
            Ok((reply, Parser::Vllm(vllm::Parser::new(asked, dialect.route, dialect.form))))
        }
        Dialect::LlamaCpp { .. } => Err(PortError::Refused("llama.cpp is not asked for a stream".into())),
    }
}

async fn leg(link: &Link, answer: &mut Answer, to: (Option<&str>, &Out)) -> PortResult<Next> {
    let (model, out) = to;
    let (most_kept, head) = (link.options.most_kept, link.options.log_probs);
    let leg = llama_cpp::Leg { tokens: link.options.leg, most_kept, head, attempt: 0 };
    let wanted = Asked::new(&answer.asked, link.vocabulary, 0).remaining;
    let bytes = ask_leg(link, &answer.asked, &leg).await?;
    let parser = llama_cpp::Parser::new(&answer.asked, &leg, link.vocabulary);
    let drawn = parser.parse(&bytes).map_err(|error| link.failed(answer, error))?;
    if model.is_some() && drawn.model.as_deref() != model {
        let (was, is) = (model.unwrap_or_default(), drawn.model.unwrap_or_default());
        return Err(link.failed(answer, format!("the server served {was:?} when it was probed, and serves {is:?}")));
    }
    let tokens = drawn.tokens.len();
    let full = tokens < leg.tokens.min(wanted) || tokens == wanted;
    let end = if drawn.end == End::Length && !full { None } else { Some(drawn.end) };
    let mut rows = Vec::with_capacity(tokens);
    for (at, row) in drawn.rows.into_iter().enumerate() {
        let row = match row {
            Some(row) => row,
            None => redraw(link, answer, (&drawn.tokens[..at], drawn.tokens[at])).await?,
        };
        rows.push(row);
    }
    let chunk = Chunk { rows, versions: None, label: None, end };
    let (deltas, next) = answer.take(chunk, &link.weights()).map_err(|error| link.failed(answer, error))?;
    for delta in deltas {
        send(out, delta).await?;
    }
    Ok(next)
}

async fn ask_leg(link: &Link, request: &SampleRequest, leg: &llama_cpp::Leg) -> PortResult<Vec<u8>> {
    let id = request.request.id;
    let body = llama_cpp::encode(request, leg);
    let body = body.map_err(|error| PortError::Refused(format!("rollout {id}: {error}")))?;
    link.http.post(llama_cpp::PATH, &body).await
}

/// Draws again at the position of a token whose row was left out, until a row comes: the support at a position does not
/// depend on what is drawn from it. The second draw is thrown away.
async fn redraw(link: &Link, answer: &Answer, at: (&[TokenId], TokenId)) -> PortResult<Support> {
    let (before, token) = at;
    let mut request = answer.asked.clone();
    request.resumed.extend_from_slice(before);
    let (most_kept, head) = (link.options.most_kept, link.options.log_probs);
    for attempt in 1..=MOST_REDRAWS {
        let leg = llama_cpp::Leg { tokens: 1, most_kept, head, attempt };
        let bytes = ask_leg(link, &request, &leg).await?;
        let parser = llama_cpp::Parser::new(&request, &leg, link.vocabulary);
        let support = parser.support_elsewhere(&bytes, token).map_err(|error| link.failed(answer, error))?;
        if let Some(support) = support {
            return Ok(support);
        }
    }
    let position = request.resumed.len();
    let why = format!(
        "at position {position}: token {token} ends inside a UTF-8 character, and llama.cpp reports no probabilities for \
         such a token; nor did {MOST_REDRAWS} other draws there give any"
    );
    Err(link.failed(answer, why))
}
