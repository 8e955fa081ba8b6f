//! The `glidefs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    glidefs::main()
}
