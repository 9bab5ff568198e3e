//! The `forebay` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_server::cli::main(std::env::args_os())
}
