//! The `glidefs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    glidefs::cli::main(glidefs::daemon::run)
}
