//! The command line: `lockstep --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep::cli::main()
}
