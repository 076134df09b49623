//! Runs the arms, each in a process of its own with one thread, as many at a time as asked. What is done is a file and is not
//! done again.

use super::{
    Arm, ExperimentError, Plan, Setting,
    measure::distance,
    outcome::Floor,
    play::{FIRST, Places, Stage},
    write_json,
};
use crate::progress::{Progress, say, words};
use lockstep_engine::{Qwen3, Weights};
use std::{
    collections::VecDeque,
    path::Path,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tokio::{process::Command, task::JoinSet};

/// One line an arm that ran.
const TIMINGS: &str = "timings.jsonl";

/// Runs every arm that is not done; the references first, then the floor, then the rest.
///
/// # Errors
/// An arm that fails; those that are done stay done. Dropping the future ends the processes.
pub async fn all(plan: &Plan, places: &Places, processes: usize) -> Result<(), ExperimentError> {
    for directory in ["arms", "logs", "work"] {
        std::fs::create_dir_all(places.root().join(directory))
            .map_err(|source| ExperimentError::System { what: "creating the directory", source })?;
    }
    let (references, others): (Vec<&Arm>, Vec<&Arm>) = plan.arms.iter().partition(|arm| arm.reference);
    let mut pool = Pool::new(plan, places, processes);
    say(&pool.announce(&plan.setting));
    pool.run(references).await?;
    if !places.floor().is_file() {
        floor(places).await?;
    }
    pool.run(others).await
}

struct Pool<'a> {
    places: &'a Places,
    processes: usize,
    total: usize,
    done: usize,
    progress: Progress,
}

impl<'a> Pool<'a> {
    fn new(plan: &Plan, places: &'a Places, processes: usize) -> Self {
        let total = plan.arms.len();
        let done = plan.arms.iter().filter(|arm| places.outcome(&arm.name()).is_file()).count();
        let progress = Progress::after("arms", total as u64, done as u64);
        Self { places, processes, total, done, progress }
    }

    /// How much there is to do, and about how long that takes: by the arms that ran here, or else by their size.
    fn announce(&self, setting: &Setting) -> String {
        let left = self.total - self.done;
        let (seconds, by) = match median(timings(self.places)) {
            Some(median) => (median, "median of those that ran here"),
            None => (setting.seconds(), "by its size, on a core of its own"),
        };
        let time = Duration::from_secs_f64(seconds * left.div_ceil(self.processes) as f64);
        format!(
            "{left} of {} arms to run, {} at a time, about {seconds:.0} s each ({by}): about {} in all",
            self.total,
            self.processes,
            words(time)
        )
    }

    async fn run(&mut self, arms: Vec<&Arm>) -> Result<(), ExperimentError> {
        let is_done = |arm: &&Arm| self.places.outcome(&arm.name()).is_file();
        let mut waiting: VecDeque<Arm> = arms.into_iter().filter(|arm| !is_done(arm)).cloned().collect();
        let mut running = JoinSet::new();
        let mut names = Vec::<String>::new();
        loop {
            while running.len() < self.processes
                && let Some(at) = waiting.iter().position(|arm| self.is_ready(arm))
                && let Some(arm) = waiting.remove(at)
            {
                names.push(arm.name());
                running.spawn(child(self.places.clone(), arm.name()));
            }
            self.progress.at(self.done as u64, &names.join(", "));
            let Some(ended) = running.join_next().await else { break };
            let name = ended.map_err(|error| ExperimentError::System {
                what: "waiting for an arm",
                source: std::io::Error::other(error),
            })??;
            names.retain(|running| *running != name);
            self.done += 1;
            tracing::info!(name, done = self.done, total = self.total, "arm done");
        }
        match waiting.front() {
            Some(arm) => {
                Err(ExperimentError::NotDone { arm: arm.name(), needs: arm.needs().unwrap_or("nothing").into() })
            }
            None => Ok(()),
        }
    }

    fn is_ready(&self, arm: &Arm) -> bool {
        arm.needs().is_none_or(|needs| self.places.outcome(needs).is_file())
    }
}

/// One arm in a process of its own.
async fn child(places: Places, name: String) -> Result<String, ExperimentError> {
    let failed = |source| ExperimentError::System { what: "starting an arm", source };
    let log = places.log(&name);
    let output = std::fs::File::create(&log).map_err(failed)?;
    let started = Instant::now();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["experiment", "--arm", &name, "--out"]).arg(places.root());
    for threads in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS", "OMP_NUM_THREADS"] {
        command.env(threads, "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).kill_on_drop(true);
    let status: ExitStatus = command.status().await.map_err(failed)?;
    if !status.success() {
        return Err(ExperimentError::Arm { arm: name, status: status.to_string(), log });
    }
    let line = format!("{{\"arm\":\"{name}\",\"seconds\":{:.1}}}\n", started.elapsed().as_secs_f64());
    append(&places.root().join(TIMINGS), &line).map_err(failed)?;
    Ok(name)
}

/// The seconds that the arms of a directory took.
fn timings(places: &Places) -> Vec<f64> {
    #[derive(serde::Deserialize)]
    struct Timing {
        seconds: f64,
    }
    let text = std::fs::read_to_string(places.root().join(TIMINGS)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str::<Timing>(line).ok()).map(|timing| timing.seconds).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// Holds every reference against every other, and writes the floor.
async fn floor(places: &Places) -> Result<(), ExperimentError> {
    let stage = Stage::open(places.root()).await?;
    let work = places.work("floor");
    let _ = std::fs::remove_dir_all(&work);
    let mut looker = stage.looker("floor")?;
    let references = stage.references()?;
    let config = lockstep_engine::Config::load(&stage.model)?;
    let mut pairs = Vec::new();
    for step in stage.setting().evaluations() {
        let mut drawn = Vec::with_capacity(references.len());
        for reference in &references {
            drawn.push(looker.draw(&stage.published(reference, step)?, reference.arm.seed).await?);
        }
        let mut distances = Vec::new();
        for (of, reference) in references.iter().enumerate() {
            let weights = stage.published(reference, step)?;
            let model = Qwen3::new(config.clone(), Weights::load_file(Path::new(&weights.path), &config)?)?;
            let scorer = stage.trainer(model, 0.0, &work)?;
            for (_, batch) in drawn.iter().enumerate().filter(|(by, _)| *by != of) {
                distances.push(distance(batch, &scorer, FIRST).await?);
            }
        }
        pairs.push((step, distances));
    }
    write_json(&places.floor(), &Floor { pairs })?;
    let _ = std::fs::remove_dir_all(&work);
    Ok(())
}
