//! Generates the Rust code of the wire contract, without `protoc`.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the generated code is committed.
pub fn committed() -> PathBuf {
    root().join("middleware/src/wire/lockstep.v1.rs")
}

/// Generates the code into `directory`, as `lockstep.v1.rs`.
///
/// # Errors
/// A contract that does not compile, a directory that cannot be written.
pub fn generate(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["lockstep.proto"], [root().join("middleware/proto")])?;
    tonic_prost_build::configure().out_dir(directory).compile_fds(descriptors)?;
    Ok(())
}
