//! The query language, and that indexes and rows agree.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
