//! Under feature `cuda`: every kernel as a cubin for sm_90 and as PTX for compute capability 8.0, by the nvcc that `NVCC` names
//! or the path has. Without it there is nothing to build.

use std::{env, error::Error, path::PathBuf, process::Command};

/// The files of `cuda/`, without `.cu`.
const KERNELS: [&str; 7] = ["adamw", "ess", "head_backward", "head_listed", "head_scores", "q8_gemv", "sample_report"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=cuda");
    println!("cargo::rerun-if-env-changed=NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for kernel in KERNELS {
        compile(kernel, &["-arch=sm_90", "-cubin"], &out.join(format!("{kernel}.cubin")))?;
        compile(kernel, &["-arch=compute_80", "-ptx"], &out.join(format!("{kernel}.ptx")))?;
    }
    Ok(())
}

/// Contraction would fuse what the definitions keep apart.
fn compile(kernel: &str, kind: &[&str], to: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let nvcc = env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("cuda").join(format!("{kernel}.cu"));
    let mut command = Command::new(&nvcc);
    command.args(["-std=c++17", "-fmad=false"]).args(kind).arg("-o").arg(to).arg(&source);
    let output =
        command.output().map_err(|error| format!("cannot run {nvcc}: {error}; `make build-cuda` fetches one"))?;
    if !output.status.success() {
        return Err(format!("{nvcc} {}: {}", source.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}
