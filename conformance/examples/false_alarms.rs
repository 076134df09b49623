//! Counts false alarms: how many of N honest in-memory pairs pass every check.
//!
//! `cargo run --release -p lockstep-conformance --example false_alarms -- 1000`; a second argument `rounded` takes pairs with a numeric term.

use lockstep_conformance::{Suite, pair};
use std::time::Instant;

#[expect(clippy::print_stdout, reason = "an example for the terminal")]
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let rounded = std::env::args().nth(2).is_some_and(|kind| kind == "rounded");
    let build = if rounded { pair::rounded } else { pair::target };
    let pairs: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100);
    let (suite, started, mut passed) = (Suite::all(), Instant::now(), 0);
    for seed in 0..pairs {
        let report = suite.run(&build(seed), &mut |_| {}).await;
        if report.rows.iter().all(|row| row.verdict.is_pass()) {
            passed += 1;
        } else {
            println!("seed {seed}:\n{}", report.table());
        }
        if seed == 0 {
            println!("{}", report.table());
        }
    }
    let each = started.elapsed().as_secs_f64() * 1e3 / pairs as f64;
    println!("{passed} of {pairs} honest pairs passed every check, {each:.1} ms each");
}
