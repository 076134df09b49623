//! Counts detections: how many of N pairs with a fault are flagged by the check the fault belongs to.
//!
//! `cargo run --release -p lockstep-conformance --example detection -- 200`; a second argument `rounded` takes pairs with a numeric term.

use lockstep_conformance::{Suite, pair};

#[expect(clippy::print_stdout, reason = "an example for the terminal")]
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let rounded = std::env::args().nth(2).is_some_and(|kind| kind == "rounded");
    let build = if rounded { pair::rounded } else { pair::target };
    let pairs: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100);
    for check in Suite::all().checks() {
        for fault in check.faults() {
            let mut flagged = 0;
            let mut miss = None;
            let mut evidence = String::new();
            for seed in 0..pairs {
                let verdict = check.run(&(fault.break_target)(build(seed))).await;
                flagged += u64::from(verdict.is_fail());
                if !verdict.is_fail() && miss.is_none() {
                    miss = Some((seed, verdict.clone()));
                }
                evidence = verdict.evidence().to_owned();
            }
            println!("{:20} {:22} flagged {flagged} of {pairs}", check.id, fault.id);
            match miss {
                Some((seed, verdict)) => println!("    missed at seed {seed}: {verdict:?}"),
                None => println!("    {evidence}"),
            }
        }
    }
}
