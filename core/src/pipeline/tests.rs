#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod diff_tests;
mod parse_tests;
mod size_tests;
