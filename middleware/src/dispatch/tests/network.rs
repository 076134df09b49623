//! Samplers over the wire, behind a simulated network that parts, stalls and delays by a seed, and processes on both sides that
//! are killed, on a virtual clock: nothing that was recorded is lost or doubled, and no plan's membership changes.

use super::*;
use crate::{
    client::sampler::{SamplerClient, pinged},
    server::SamplerService,
    simulate::random::pick,
    wire::proto::sampler_server::SamplerServer,
};
use hyper_util::rt::TokioIo;
use lockstep_core::{
    Delta, Stamp,
    ports::{Control, ControlCapabilities, PublishedWeights},
};
use std::io;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint, Server};
use turmoil::net::{TcpListener, TcpStream};

const PLANS: u64 = 5;
const TICK: Duration = Duration::from_millis(10);
const LEASE: Duration = Duration::from_secs(2);
const TRAINER: &str = "trainer";
const PORT: u16 = 7000;

/// Draws a token at a time, answers in any order.
#[derive(Debug)]
struct Writer {
    seed: u64,
    /// Whether it leaves out a piece and goes on, as none may.
    swallows: bool,
}

fn length(request: &SampleRequest) -> u32 {
    1 + pick(12, &[request.request.id.plan, u64::from(request.request.id.index)]) as u32
}

/// The pieces of an answer from where it goes on.
fn rest(request: &SampleRequest) -> Vec<Delta> {
    let (length, start) = (length(request), request.resumed.len() as u32);
    (start..length).rev().map(|at| delta(request.request.id, (at, 1), 0, at + 1 == length)).collect()
}

#[async_trait]
impl Sampler for Writer {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: profile(), vocabulary: 50, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let (seed, mut answers) = (self.seed, requests.iter().map(rest).collect::<Vec<_>>());
        if self.swallows {
            answers.iter_mut().filter(|answer| answer.len() > 2).for_each(|answer| drop(answer.remove(1)));
        }
        Ok(Box::pin(stream::unfold((answers, 0), move |(mut answers, count)| async move {
            answers.retain(|answer| !answer.is_empty());
            sleep(Duration::from_millis(20 + pick(100, &[seed, count, 1]))).await;
            let at = pick(answers.len().max(1) as u64, &[seed, count, 2]) as usize;
            let piece = answers.get_mut(at)?.pop()?;
            Some((Ok(piece), (answers, count + 1)))
        })))
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}

#[async_trait]
impl Control for Writer {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: false }
    }

    async fn pause(&self) -> PortResult<()> {
        Ok(())
    }

    async fn load_weights(&self, _: &PublishedWeights) -> PortResult<Stamp> {
        Err(PortError::Refused("it has no weights".into()))
    }

    async fn resume(&self) -> PortResult<()> {
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        Err(PortError::Refused("it has no weights".into()))
    }
}

/// Serves a writer on a host of the simulation.
async fn serve(writer: Writer) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let incoming = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(mut stream, _)| {
            let (ours, mut theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut theirs).await });
            ours
        });
        Some((accepted, listener))
    });
    let service = SamplerServer::new(SamplerService::new(Arc::new(writer)));
    Ok(Server::builder().add_service(service).serve_with_incoming(incoming.boxed()).await?)
}

type Prepare = fn(Endpoint) -> Endpoint;

async fn channel(sampler: String, prepare: Prepare) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_| {
        let sampler = sampler.clone();
        async move { io::Result::Ok(TokioIo::new(TcpStream::connect((sampler, PORT)).await?)) }
    });
    let endpoint = prepare(Endpoint::from_static("http://sampler").connect_timeout(LEASE));
    endpoint.connect_with_connector(connector).await
}

/// A sampler, as soon as there is one.
async fn station(sampler: String, prepare: Prepare) -> Station {
    loop {
        if let Ok(channel) = channel(sampler.clone(), prepare).await
            && let Ok(Ok(client)) = tokio::time::timeout(LEASE, SamplerClient::over(channel)).await
        {
            return Station { name: sampler, sampler: Arc::new(client), slots: 3 };
        }
        sleep(TICK).await;
    }
}

/// What outlives the trainer's process.
struct Run {
    directory: tempfile::TempDir,
    starts: u32,
    /// The lengths of every batch, by plan, in the order of training.
    batches: Vec<(u64, Vec<usize>)>,
    end: Option<Result<(), DispatchError>>,
}

/// Trains on what is left of the plans.
async fn train(run: Arc<Mutex<Run>>, stations: Vec<Station>) -> Result<(), DispatchError> {
    let (mut held, mut driver) = {
        let mut run = run.lock().unwrap();
        let held = version(run.starts, run.batches.len() as u64);
        run.starts += 1;
        (held, started(run.directory.path(), stations, held)?)
    };
    driver.draw()?;
    loop {
        while let Some(number) = driver.may_open().filter(|&number| number < PLANS) {
            driver.open(plan(number))?;
        }
        if run.lock().unwrap().batches.len() as u64 == PLANS {
            return Ok(());
        }
        let batch = driver.next().await?;
        driver.during(sleep(Duration::from_millis(200))).await?;
        driver.consumed(&batch, &report(held))?;
        held = held.next();
        run.lock().unwrap().batches.push((batch.batch().plan(), lengths(&batch)));
    }
}

fn started(directory: &Path, stations: Vec<Station>, restored: WeightVersion) -> Result<Driver, DispatchError> {
    let (ledger, records) = Ledger::open(directory)?;
    let rules =
        Rules { max_open_plans: 3, mode: Mode::Windowed { plans: 2 }, max_attempts: 1000, max_interruptions: 1000 };
    let settings = Settings { rules, lease: LEASE, first: 0 };
    let judge: Judge = Arc::new(|rollout| Outcome::Reward(f64::from(rollout.id().index)));
    Driver::start(settings, stations, judge, (ledger, History::of(records).unwrap(), restored))
}

/// A run in a simulation: the samplers' hosts, and the trainer's.
struct World {
    sim: turmoil::Sim<'static>,
    samplers: Vec<String>,
    run: Arc<Mutex<Run>>,
}

impl World {
    fn new(seed: u64, samplers: u64, (swallows, prepare): (bool, Prepare)) -> Self {
        let mut network = turmoil::Builder::new();
        network.rng_seed(seed).tick_duration(TICK).max_message_latency(Duration::from_millis(60));
        let mut sim = network.build();
        let samplers: Vec<String> = (0..samplers).map(|at| format!("sampler-{at}")).collect();
        for (at, sampler) in (0..).zip(&samplers) {
            sim.host(sampler.clone(), move || serve(Writer { seed: seed * 8 + at, swallows }));
        }
        let directory = tempfile::tempdir().unwrap();
        let run = Arc::new(Mutex::new(Run { directory, starts: 0, batches: vec![], end: None }));
        let (of_trainer, named) = (run.clone(), samplers.clone());
        sim.host(TRAINER, move || process(of_trainer.clone(), named.clone(), prepare));
        Self { sim, samplers, run }
    }

    /// Goes on until the training ended, for at most this long on the virtual clock.
    fn until_the_end(&mut self, within: Duration, mut trouble: impl FnMut(&mut Self, u64)) -> bool {
        let mut tick = 0;
        while self.run.lock().unwrap().end.is_none() {
            if self.sim.elapsed() > within {
                return false;
            }
            trouble(self, tick);
            self.sim.step().unwrap();
            tick += 1;
        }
        true
    }

    fn directory(&self) -> std::path::PathBuf {
        self.run.lock().unwrap().directory.path().to_owned()
    }
}

/// The trainer's process.
async fn process(run: Arc<Mutex<Run>>, samplers: Vec<String>, prepare: Prepare) -> turmoil::Result {
    let stations = samplers.into_iter().map(|sampler| station(sampler, prepare));
    let stations = futures_util::future::join_all(stations).await;
    let end = train(run.clone(), stations).await;
    run.lock().unwrap().end = Some(end);
    Ok(())
}

/// What ends the trouble of a sampler.
type End = fn(&mut World, usize);

/// Trouble that begins at ticks told by a seed.
struct Trouble {
    seed: u64,
    /// When it ends, whose it is, and how it ends.
    ends: Vec<(u64, usize, End)>,
    /// How often each kind was met.
    met: [u32; 5],
}

impl Trouble {
    fn of(seed: u64) -> Self {
        Self { seed, ends: vec![], met: [0; 5] }
    }

    fn at(&mut self, world: &mut World, tick: u64) {
        for (_, sampler, end) in self.ends.extract_if(.., |(at, ..)| *at == tick) {
            end(world, sampler);
        }
        let sampler = pick(world.samplers.len() as u64, &[self.seed, tick, 3]) as usize;
        let troubled = self.ends.iter().any(|(_, of, _)| *of == sampler);
        if troubled || tick < 20 || pick(60, &[self.seed, tick, 4]) > 0 {
            return;
        }
        let kind = pick(5, &[self.seed, tick, 5]) as usize;
        self.met[kind] += 1;
        let name = world.samplers[sampler].clone();
        let end: End = match kind {
            0 => {
                world.sim.partition(name, TRAINER);
                |world, sampler| world.sim.repair(world.samplers[sampler].clone(), TRAINER)
            }
            1 => {
                world.sim.partition_oneway(name, TRAINER);
                |world, sampler| world.sim.repair_oneway(world.samplers[sampler].clone(), TRAINER)
            }
            2 => {
                world.sim.hold(name, TRAINER);
                |world, sampler| world.sim.release(world.samplers[sampler].clone(), TRAINER)
            }
            3 => {
                world.sim.crash(name);
                |world, sampler| world.sim.bounce(world.samplers[sampler].clone())
            }
            _ => {
                world.sim.bounce(TRAINER);
                |_, _| {}
            }
        };
        self.ends.push((tick + 1 + pick(400, &[self.seed, tick, 6]), sampler, end));
    }
}

/// What a ledger has of tokens, in its order.
fn drawn(directory: &Path) -> Vec<(RolloutId, u32)> {
    let records = ledger::read(directory).unwrap();
    let told = records.iter().filter_map(|record| match record {
        Record::Delta(delta) => Some((delta.rollout, delta.start)),
        _ => None,
    });
    told.collect()
}

/// A run through the trouble of a seed; what trouble there was.
fn troubled(seed: u64) -> (World, [u32; 5]) {
    let mut world = World::new(seed, 1 + pick(3, &[seed, 7]), (false, pinged));
    let mut trouble = Trouble::of(seed);
    let ended = world.until_the_end(Duration::from_secs(3600), |world, tick| trouble.at(world, tick));
    assert!(ended, "seed {seed}: after an hour there are {:?}", world.run.lock().unwrap().batches);
    (world, trouble.met)
}

#[test]
fn whatever_the_network_does_every_answer_is_there_once_and_in_its_plan() {
    let of_plan = |number| {
        let asked = plan(number).requests().to_vec();
        let whole = asked.into_iter().map(|request| SampleRequest { request, resumed: vec![] });
        (number, whole.map(|request| length(&request) as usize).collect::<Vec<_>>())
    };
    let expected: Vec<_> = (0..PLANS).map(of_plan).collect();
    let mut met = [0; 5];
    for seed in 0..100 {
        let (world, of_seed) = troubled(seed);
        met.iter_mut().zip(of_seed).for_each(|(met, of_seed)| *met += of_seed);
        let mut run = world.run.lock().unwrap();
        run.batches.sort_unstable();
        assert!(matches!(run.end, Some(Ok(()))), "seed {seed}: {:?}", run.end);
        assert_eq!(run.batches, expected, "seed {seed}");
        let audit = audit(run.directory.path());
        assert!(!audit.is_red(), "seed {seed}\n{}", audit.table());
        let mut tokens = drawn(run.directory.path());
        let all = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), all, "seed {seed}: tokens were recorded twice");
    }
    assert!(met.iter().all(|&times| times > 10), "trouble of every kind: {met:?}");
}

#[test]
fn a_seed_is_the_same_run_twice() {
    for seed in 0..5 {
        let [one, two] = [troubled(seed).0, troubled(seed).0];
        assert_eq!(drawn(&one.directory()), drawn(&two.directory()), "seed {seed}");
    }
}

/// A sampler is cut off for a second in which nobody is told, while it draws.
fn cut_off(prepare: Prepare) -> bool {
    let mut world = World::new(1, 1, (false, prepare));
    world.until_the_end(Duration::from_secs(600), |world, tick| match tick {
        60 => world.sim.partition("sampler-0", TRAINER),
        160 => world.sim.repair("sampler-0", TRAINER),
        _ => {}
    })
}

/// The lease gives the answers back; only a ping finds out that the connection is dead, so that there is somebody to give them to.
#[test]
fn a_connection_that_was_cut_without_a_word_is_made_anew() {
    assert!(cut_off(pinged));
    assert!(!cut_off(|endpoint| endpoint), "without pings it takes calls for ever");
}

/// A sampler that swallows a piece and goes on is no sampler; it is noticed at once, and named.
#[test]
fn a_swallowed_piece_is_noticed() {
    let mut world = World::new(0, 2, (true, pinged));
    assert!(world.until_the_end(Duration::from_secs(60), |_, _| {}));
    let said = world.run.lock().unwrap().end.take().unwrap().unwrap_err().to_string();
    assert!(said.starts_with("rollout p") && said.contains("delta starts at token 2"), "{said}");
}
