//! The layout, what a damaged bundle says, and the cache.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
