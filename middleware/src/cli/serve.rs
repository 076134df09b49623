//! `lockstep serve`: the gateway in front of engines that already run.

use super::{DONE, Outcome, print};
use crate::{
    config::Stage,
    ledger::Ledger,
    process::LISTENING,
    progress::say,
    serve::{
        self, Gateway, Options,
        pool::{Pool, Replica},
        prompts::Prompts,
        pull::{self, Judging, Pull},
        speech::Speech,
    },
};
use clap::{Args, builder::PossibleValuesParser};
use lockstep_adapters::{EngineKind, OnFinding};
use lockstep_core::{
    SamplingParams, TokenId, WeightVersion,
    dispatch::{Mode, Rules},
    sampling::{Limits as AnswerLimits, Truncation},
};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::net::TcpListener;

/// Arguments of `lockstep serve`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address of an engine (vLLM, SGLang, llama-server); repeat it for each replica of the model.
    #[arg(long, value_name = "URL", required_unless_present = "print_launch")]
    engine: Vec<String>,
    /// Address to listen on, for HTTP and gRPC; port 0 takes a free one. The first line on standard output says which.
    #[arg(long, default_value = "127.0.0.1:8000", env = "LOCKSTEP_LISTEN")]
    listen: SocketAddr,
    /// How far to go: observe measures and reports; fix and dlc refuse an engine that cannot tell the truth.
    #[arg(long, value_enum, default_value_t = Stage::Observe)]
    stage: Stage,
    /// A Hugging Face directory with tokenizer and chat template; without it only token ids are spoken.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The model's name in answers; requests for another one are refused.
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Ids that end an answer, instead of the model's own.
    #[arg(long, value_name = "ID")]
    stop_id: Vec<u32>,
    /// How tool calls are read from an answer (hermes, qwen3); without it requests with tools are refused.
    #[arg(long, value_name = "NAME", requires = "model")]
    tool_parser: Option<String>,
    /// How reasoning is read from an answer (qwen3); without it reasoning stays in the content.
    #[arg(long, value_name = "NAME", requires = "model")]
    reasoning_parser: Option<String>,
    /// Where the ledger goes.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["no_ledger", "print_launch"])]
    out: Option<PathBuf>,
    /// Keep nothing: what passes is checked and forgotten.
    #[arg(long, conflicts_with = "out")]
    no_ledger: bool,
    /// Prints the launch line of an engine that tells the truth, and ends.
    #[arg(long, value_name = "ENGINE", value_parser = PossibleValuesParser::new(["vllm", "sglang", "llama.cpp"]))]
    print_launch: Option<String>,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    limits: Limits,
}

/// What is said of the engines.
#[derive(Debug, Args)]
struct Engines {
    /// Sends this top_k where none is asked and the engine needs a finite one; the engine's profile records it.
    #[arg(long, value_name = "K")]
    cap_top_k: Option<u32>,
    /// Log-probs kept of each position; the other kept ids become mass.
    #[arg(long, value_name = "N", default_value_t = 64)]
    log_probs: u32,
    /// Most kept ids of a position where no top_k bounds them (llama.cpp).
    #[arg(long, value_name = "N", default_value_t = 4096)]
    most_kept: u32,
    /// The version of the weights, for an engine without a label (llama.cpp), as in e0.s12.
    #[arg(long, value_name = "VERSION")]
    weight_version: Option<WeightVersion>,
    /// Ids in the engine's vocabulary, instead of finding out by asking.
    #[arg(long, value_name = "N")]
    vocabulary: Option<u32>,
    /// Weight updates do not pass through this gateway: tokens wait for the version spans at the end of their reply.
    #[arg(long)]
    updates_elsewhere: bool,
    /// Seconds an engine may say nothing before it counts as gone.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    silence: u64,
}

/// How batches are made.
#[derive(Debug, Args)]
struct Batches {
    /// A JSONL file of prompts, from which the gateway makes batches that trainers ask for; a line has token_ids, prompt or messages.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Prompts of a plan.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "prompts")]
    plan_prompts: u32,
    /// Answers to each prompt.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "prompts")]
    answers: u32,
    /// Plans after which no more come; without it the prompts begin again for ever.
    #[arg(long, value_name = "N", requires = "prompts")]
    plans: Option<u64>,
    /// Divisor of the logits.
    #[arg(long, default_value_t = 1.0, requires = "prompts")]
    temperature: f64,
    /// 1 is off.
    #[arg(long, default_value_t = 1.0, requires = "prompts")]
    top_p: f64,
    /// 0 is off.
    #[arg(long, default_value_t = 0, requires = "prompts")]
    top_k: u32,
    /// 0 is off.
    #[arg(long, default_value_t = 0.0, requires = "prompts")]
    min_p: f64,
    /// Plans that may be open at a time; a trainer's lag is at most one step less.
    #[arg(long, value_name = "N", default_value_t = serve::OPEN_PLANS)]
    open_plans: u32,
    /// Plans among which a complete one may overtake older ones: 1 with prompts, else as many as may be open.
    #[arg(long, value_name = "N")]
    window: Option<u32>,
    /// Seconds a trainer that pulls may say nothing before its part of a batch is given to another.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    lease: u64,
    /// Seconds after the last answer of its plan in which an answer must be rewarded.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    reward_seconds: f64,
    /// What an answer counts as whose reward failed or did not come in time.
    #[arg(long, value_name = "REWARD", default_value_t = 0.0, allow_negative_numbers = true)]
    failed_reward: f64,
    /// How often judging an answer may fail before it counts as that.
    #[arg(long, value_name = "N", default_value_t = 1)]
    reward_attempts: u32,
}

/// Bounds.
#[derive(Debug, Args)]
struct Limits {
    /// Most answers in flight; more are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    in_flight: usize,
    /// Largest body of a request, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    body: usize,
    /// Token limit of a chat answer whose client sends none.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    max_tokens: u32,
    /// Seconds that running answers get when the gateway is told to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
    /// Seed behind the seeds of requests that send none.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    if let Some(engine) = &arguments.print_launch {
        let kind: EngineKind = engine.parse()?;
        print(lockstep_adapters::launch_line(kind));
        return Ok(DONE);
    }
    let gateway = Gateway::new(pool(&arguments).await?, options(&arguments));
    let speech = arguments
        .model
        .as_ref()
        .map(|model| Speech::load(model, arguments.tool_parser.as_deref(), arguments.reasoning_parser.as_deref()));
    let speech = speech.transpose()?.map(Arc::new);
    let gateway = speaking(gateway, speech.clone(), &arguments)?;
    let (gateway, writer) = capturing(gateway, speech.as_deref(), &arguments)?;
    let gateway = pulling(gateway, &arguments)?;
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
        std::io::Error::new(error.kind(), format!("cannot listen on {}: {error}", arguments.listen))
    })?;
    print(&format!("{LISTENING}{}", listener.local_addr()?));
    let gateway = Arc::new(gateway);
    let feeding = gateway.pull.clone().map(|pull| tokio::spawn(pull::feed(gateway.clone(), pull)));
    let threads = std::thread::available_parallelism()?.get();
    serve::serve_on_threads(gateway.clone(), listener, threads, interrupted()).await?;
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    drop(gateway);
    if let Some(writer) = writer {
        flushed(writer).await?;
    }
    Ok(DONE)
}

async fn interrupted() {
    let _ = tokio::signal::ctrl_c().await;
}

/// Waits for the ledger's thread; answers that were cut off still hold the way into it for a moment.
async fn flushed(writer: std::thread::JoinHandle<Ledger>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let joined = tokio::task::spawn_blocking(move || writer.join());
    match tokio::time::timeout(Duration::from_secs(10), joined).await {
        Ok(Ok(Ok(_))) => Ok(()),
        Ok(_) => Err("the ledger's thread panicked".into()),
        Err(_) => {
            say("answers were still running; what they drew last is not in the ledger");
            Ok(())
        }
    }
}

fn options(arguments: &Arguments) -> Options {
    let Arguments { stage, limits, engines, .. } = arguments;
    let directory = arguments.model.as_ref().and_then(|model| model.file_name());
    let directory = directory.map(|name| name.to_string_lossy().into_owned());
    let named = arguments.served_model_name.clone();
    Options {
        stage: *stage,
        hold_name: named.is_some(),
        model: named.or(directory).unwrap_or_else(|| "lockstep".to_owned()),
        body: limits.body << 20,
        in_flight: limits.in_flight,
        silence: Duration::from_secs(engines.silence),
        grace: Duration::from_secs(limits.grace),
        default_limit: limits.max_tokens,
        seed: limits.seed,
        rules: rules(&arguments.batches),
        lease: Duration::from_secs(arguments.batches.lease),
        judging: Judging {
            limit: Duration::from_secs_f64(arguments.batches.reward_seconds.max(0.0)),
            counts_as: arguments.batches.failed_reward,
            attempts: arguments.batches.reward_attempts.max(1),
        },
        ..Options::default()
    }
}

fn rules(batches: &Batches) -> Rules {
    let open = batches.open_plans.max(1);
    let window = batches.window.unwrap_or(if batches.prompts.is_some() { 1 } else { open });
    Rules { max_open_plans: open, mode: Mode::Windowed { plans: window }, ..Options::default().rules }
}

fn pulling(gateway: Gateway, arguments: &Arguments) -> Result<Gateway, Box<dyn std::error::Error + Send + Sync>> {
    let batches = &arguments.batches;
    let Some(file) = &batches.prompts else { return Ok(gateway) };
    let (seed, vocabulary) = (gateway.options.seed, gateway.pool.vocabulary());
    let prompts = Prompts::load(file, seed, gateway.text().ok().map(|text| &**text), vocabulary)?;
    let truncation = Truncation { top_k: batches.top_k, top_p: batches.top_p, min_p: batches.min_p };
    let limits = AnswerLimits { stop: gateway.stop.clone(), max_new_tokens: gateway.options.default_limit };
    let pull = Pull {
        prompts,
        groups: batches.plan_prompts,
        answers: batches.answers,
        params: SamplingParams::new(batches.temperature, truncation, limits, seed)?,
        plans: batches.plans,
        pause: Duration::from_secs(1),
    };
    Ok(gateway.pulling(Arc::new(pull)))
}

async fn pool(arguments: &Arguments) -> Result<Pool, Box<dyn std::error::Error + Send + Sync>> {
    let engines = &arguments.engines;
    let observes = arguments.stage == Stage::Observe;
    let options = lockstep_adapters::Options {
        on_finding: if observes { OnFinding::Report } else { OnFinding::Refuse },
        cap_top_k: engines.cap_top_k,
        log_probs: engines.log_probs,
        most_kept: engines.most_kept,
        weight_version: engines.weight_version,
        vocabulary: engines.vocabulary,
        updates_proxied: !engines.updates_elsewhere,
        patience: Duration::from_secs(engines.silence),
        ..lockstep_adapters::Options::default()
    };
    let mut replicas = Vec::new();
    for url in &arguments.engine {
        let engine = lockstep_adapters::connect(url, &options).await?;
        for finding in &engine.findings {
            let weight = if finding.untruthful { "cannot be believed" } else { "note" };
            say(&format!("{} at {url}: {weight}: {finding}", engine.kind));
        }
        let uri = url.trim_end_matches('/').parse()?;
        let replica = Replica::new(url.clone(), engine.sampler.clone(), engine.control.clone());
        replicas.push(replica.at(uri).watched_by(engine));
    }
    Ok(Pool::new(replicas)?)
}

fn speaking(
    gateway: Gateway,
    speech: Option<Arc<Speech>>,
    arguments: &Arguments,
) -> Result<Gateway, Box<dyn std::error::Error + Send + Sync>> {
    if let Some(speech) = &speech {
        let (engine, model) = (gateway.pool.vocabulary(), speech.vocabulary());
        if engine != model {
            return Err(format!("the engine's vocabulary has {engine} ids, that of the model directory {model}").into());
        }
    }
    let own: Vec<TokenId> = arguments.stop_id.iter().copied().map(TokenId).collect();
    if speech.is_none() && own.is_empty() {
        return Err("nothing says where an answer ends: pass --model DIR, or --stop-id ID".into());
    }
    let gateway = match speech {
        Some(speech) => gateway.speaking(speech),
        None => gateway,
    };
    Ok(if own.is_empty() { gateway } else { gateway.stopping_at(own) })
}

type Writer = Option<std::thread::JoinHandle<Ledger>>;

fn capturing(
    gateway: Gateway,
    speech: Option<&Speech>,
    arguments: &Arguments,
) -> Result<(Gateway, Writer), Box<dyn std::error::Error + Send + Sync>> {
    let Some(out) = &arguments.out else { return Ok((gateway, None)) };
    let restored = serve::restore(out, &gateway.options)?;
    if let Some(speech) = speech {
        speech.restore(restored.sessions)?;
    }
    let gateway = gateway.capturing(restored.capture, restored.plans, restored.loose);
    Ok((gateway, Some(restored.writer)))
}
