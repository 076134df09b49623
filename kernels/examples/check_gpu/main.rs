//! Parity and speed of every kernel on a card. `check_gpu parity` compares each with its definition; `check_gpu FILE` does so,
//! times each against the copy bandwidth of the same run, and writes FILE. Exit codes: 0 all agree, 1 one does not, 2 no card.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use lockstep_kernels::cuda::{CudaResult, Kernels};
use serde_json::{Value, json};
use std::process::ExitCode;

mod parity;
mod speed;

/// What a check found wrong.
type Fault = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let Some(argument) = std::env::args().nth(1) else {
        eprintln!("usage: check_gpu parity | check_gpu FILE");
        return ExitCode::from(3);
    };
    let kernels = match Kernels::open(0) {
        Ok(kernels) => kernels.timed(),
        Err(error) => {
            eprintln!("no card: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&kernels, &argument) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(kernels: &Kernels, argument: &str) -> Result<bool, Fault> {
    let checks = parity::all(kernels);
    for (name, fault) in &checks {
        println!("{name}: {}", fault.as_deref().unwrap_or("agrees with its definition"));
    }
    let agree = checks.iter().all(|(_, fault)| fault.is_none());
    if argument == "parity" {
        return Ok(agree);
    }
    let context = kernels.stream().context();
    let (major, minor) = context.compute_capability()?;
    let parity: Vec<Value> = checks.iter().map(|(name, fault)| json!({"kernel": name, "fault": fault})).collect();
    let speed = speed::all(kernels)?;
    for row in &speed["kernels"].as_array().cloned().unwrap_or_default() {
        println!("{}: {} us, {} of the copy bandwidth", row["kernel"], row["median_us"], row["share_of_copy"]);
    }
    let report = json!({
        "card": context.name()?,
        "compute_capability": format!("{major}.{minor}"),
        "driver": driver(),
        "parity": parity,
        "speed": speed,
    });
    std::fs::write(argument, serde_json::to_string_pretty(&report)?)?;
    println!("wrote {argument}");
    Ok(agree)
}

/// The driver's version as the kernel module says it.
fn driver() -> Option<String> {
    std::fs::read_to_string("/proc/driver/nvidia/version").ok()?.lines().next().map(str::to_owned)
}

/// The middle one of some times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median time of the kernel that `f` launches, in microseconds, over 20 launches after 3 that are not counted.
fn median_us(kernels: &Kernels, mut f: impl FnMut() -> CudaResult<()>) -> CudaResult<f64> {
    let mut times = Vec::new();
    for launch in 0..23 {
        f()?;
        times.extend(kernels.last_us()?.filter(|_| launch >= 3));
    }
    Ok(median(times))
}
