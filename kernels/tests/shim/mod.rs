//! Runs a kernel of the shim: a problem in, its answer out.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// The shim's program, compiled once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cuda/shim");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(concat!("kernels_", env!("CARGO_CRATE_NAME")));
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        if cfg!(target_arch = "x86_64") && std::arch::is_x86_feature_detected!("fma") {
            command.arg("-mfma");
        }
        let output = command.arg(folder.join("kernels.cpp")).output();
        let output = output.unwrap_or_else(|error| panic!("the test needs the C++ compiler {compiler}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

pub(crate) fn run(kernel: &str, problem: &[u8]) -> Output {
    let mut command = Command::new(program());
    command.arg(kernel).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let problem = problem.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&problem));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    output
}

/// The answer of a kernel that broke no rule.
pub(crate) fn success(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Little-endian.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}
