//! A gateway builds without the engine, and the default build without CUDA.

use lockstep_tests::proto;
use std::process::Command;

/// Names of the crates that `lockstep` is linked with.
fn crates(arguments: &[&str]) -> Vec<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--package", "lockstep", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = tree.args(arguments).current_dir(proto::root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> = text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn of_family<'a>(names: &'a [String], families: &[&str]) -> Vec<&'a String> {
    names.iter().filter(|name| families.iter().any(|family| name.starts_with(family))).collect()
}

#[test]
fn a_gateway_links_no_engine() {
    let gateway = crates(&["--no-default-features"]);
    assert_eq!(
        of_family(&gateway, &["lockstep"]),
        ["lockstep", "lockstep-adapters", "lockstep-conformance", "lockstep-core"]
    );
    assert_eq!(of_family(&gateway, &["candle", "tokenizers", "gemm", "cudarc"]), [] as [&str; 0]);
}

#[test]
fn the_default_build_links_the_engine_and_no_cuda() {
    let default = crates(&[]);
    assert_eq!(of_family(&default, &["candle-core", "lockstep-engine"]), ["candle-core", "lockstep-engine"]);
    assert_eq!(of_family(&default, &["cudarc", "candle-kernels"]), [] as [&str; 0]);
}
