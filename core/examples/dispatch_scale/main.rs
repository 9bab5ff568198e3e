//! How fast and how small the dispatcher's core is: many consumers draw one long pass, with a journal in memory.
//!
//! `cargo run --release -p forebay-core --example dispatch_scale [CONSUMERS WORKERS BATCHES [BLOCK]]`, by default 10,000 consumers, 1,000
//! workers, 10 million batches and blocks of 16; `dispatch_scale smoke` is small. Every event is decided, its entries are encoded and applied, as
//! the shell does it; what is due is looked at after every group of events; ledger files are written when they are due, and the state is written
//! down as often as the shell does. `tests/examples/journal_scale.rs` does the same over a store.

#[path = "bench.rs"]
mod bench;

fn main() -> bench::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    bench::measure(&arguments, None)
}
