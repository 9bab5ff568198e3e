//! `dispatch_scale` with the journal that a server keeps, on a local disk.
//!
//! `cargo run --release --workspace --example journal_scale FOLDER [CONSUMERS WORKERS BATCHES [BLOCK]]`, by default 10,000 consumers, 1,000 workers, 10
//! million batches and blocks of 16. The journal is written in FOLDER, which must be empty or not there, through the same calls and as often as by a
//! server: all that a group of events decided is durable before the next group. At the end the state is read back from it and compared.

#[path = "../../core/examples/dispatch_scale/bench.rs"]
mod bench;

use forebay_storage::journal::Journal;
use forebay_storage::root::Root;
use tokio::runtime::Runtime;

struct OnDisk {
    runtime: Runtime,
    journal: Journal,
    upto: u64,
}

impl OnDisk {
    fn open(folder: &str) -> bench::Result<Self> {
        if std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(format!("{folder} is not empty").into());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let journal = runtime.block_on(async { Journal::open(&Root::open(folder, true).await?).await })?;
        Ok(Self { runtime, journal, upto: 0 })
    }
}

impl bench::Keep for OnDisk {
    fn append(&mut self, entries: Vec<Vec<u8>>) -> bench::Result<()> {
        let entries = entries.into_iter().map(Into::into).collect();
        self.upto = self.runtime.block_on(self.journal.append(entries))?;
        Ok(())
    }

    fn compact(&mut self, state: &[u8]) -> bench::Result<()> {
        Ok(self.runtime.block_on(self.journal.compact(self.upto, state.to_vec().into()))?)
    }

    fn load(&mut self) -> bench::Result<bench::Kept> {
        // What opening found is of no interest: later loads read what was written since.
        let first = self.runtime.block_on(self.journal.load())?;
        let loaded = if first.last() < self.upto { self.runtime.block_on(self.journal.load())? } else { first };
        let state = loaded.snapshot.map(|state| state.to_vec());
        Ok((state, loaded.entries.into_iter().map(|(_, bytes)| bytes.to_vec()).collect()))
    }
}

fn main() -> bench::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        return Err("usage: journal_scale FOLDER [CONSUMERS WORKERS BATCHES [BLOCK]]".into());
    }
    let keep = OnDisk::open(&arguments.remove(0))?;
    bench::measure(&arguments, Some(Box::new(keep)))
}
