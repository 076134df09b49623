//! The command line: `lockstep --help`.

use std::process::ExitCode;

/// The gateway's requests live in many small pieces: it asks for them with less of its time here, and gives more of them back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lockstep::cli::main()
}
