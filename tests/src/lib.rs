//! Whole-system tests live in `tests/tests/`; this library holds what they run against and what `tests/examples/` runs as a program of its own.

pub mod s3;
