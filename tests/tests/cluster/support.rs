//! A cluster on one host, and a trainer that reads as slowly as a test needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_core::Kind;
use forebay_flight::Client;
use forebay_flight::api::End;
use forebay_flight::client::JobItem;
use serde_json::Value;

use crate::support::{Home, Server, csv_pipeline, eventually};

/// The shortest lease there is.
pub const LEASE: Duration = Duration::from_secs(15);
/// What a takeover may take.
pub const TAKEOVER: Duration = Duration::from_secs(10);

/// Ports that were free a moment ago, for processes that have to be named before they start.
pub fn free_addresses<const N: usize>() -> [String; N] {
    let held: [std::net::TcpListener; N] = std::array::from_fn(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    std::array::from_fn(|i| held[i].local_addr().unwrap().to_string())
}

pub struct Cluster {
    pub home: Home,
    /// Of the dispatchers, whether they run or not.
    pub addresses: [String; 2],
}

impl Cluster {
    /// Files `data/*.csv` with `rows` numbers each, and the pipeline `p.toml` over them.
    pub fn new(files: usize, rows: usize, step: &str) -> Self {
        Self::at(Home::new(), files, rows, step)
    }

    /// The same at a home that has its root elsewhere.
    pub fn at(home: Home, files: usize, rows: usize, step: &str) -> Self {
        for file in 0..files {
            let lines: String = (0..rows).map(|n| format!("{}\n", file * rows + n)).collect();
            home.write(&format!("data/f{file:02}.csv"), format!("n\n{lines}"));
        }
        home.write("p.toml", csv_pipeline("numbers", step, ""));
        let addresses = free_addresses();
        Self { home, addresses }
    }

    /// Each file is a task or two, and takes a second behind the step without using the processor, so that a run lasts long enough to be disturbed anywhere.
    pub fn napping(files: usize, rows: usize, step: &str) -> Self {
        Self::napping_at(Home::new(), files, rows, step)
    }

    pub fn napping_at(home: Home, files: usize, rows: usize, step: &str) -> Self {
        let cluster = Self::at(home, files, rows, step);
        let nap = "[source.options]\ntask_size = \"1KB\"\n[[steps]]\nname = \"nap\"\npython = \"nap:nap\"\n";
        cluster.home.write("p.toml", csv_pipeline("numbers", step, nap));
        let code =
            format!("import time\n\n\ndef nap(batch):\n    time.sleep(batch.num_rows / {rows})\n    return batch.select([\"n\", \"h\"])\n");
        cluster.home.write("nap.py", code);
        cluster
    }

    /// `grpc://A,grpc://B`
    pub fn servers(&self) -> String {
        self.addresses.iter().map(|a| format!("grpc://{a}")).collect::<Vec<_>>().join(",")
    }

    pub fn dispatcher(&self, number: usize) -> Server {
        let root = self.home.root();
        let args = ["dispatcher", "--root", &root, "--listen", &self.addresses[number], "--http", "127.0.0.1:0", "--lease", "15s"];
        // Clients' files are read by the server here.
        std::fs::write(
            self.home.path("forebay.toml"),
            format!("sources.allow = [\"{}\"]\npython.allow = true\n", self.home.path("data").display()),
        )
        .unwrap();
        self.home.start(&args)
    }

    pub fn worker(&self, name: &str) -> Server {
        self.home.start(&["worker", "--dispatcher", &self.servers(), "--name", name, "--slots", "1"])
    }

    pub fn ok(&self, args: &[&str]) -> String {
        let servers = self.servers();
        let mut all = args.to_vec();
        all.extend(["--server", &servers]);
        self.home.ok(&all)
    }

    pub fn sql(&self, query: &str) -> Vec<Value> {
        let out = self.ok(&["sql", query, "--format", "json"]);
        out.lines().filter(|l| !l.trim().is_empty()).map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }

    pub fn number(&self, query: &str) -> i64 {
        let rows = self.sql(query);
        rows[0].as_object().and_then(|o| o.values().next()).and_then(Value::as_i64).unwrap_or_else(|| panic!("{query}: {rows:?}"))
    }

    /// Waits until so many workers are registered.
    pub fn workers(&self, count: i64) {
        eventually("the workers register", Duration::from_secs(20), || {
            self.number("SELECT count(address) AS n FROM system.workers") == count
        });
    }

    /// Waits until the dispatcher at this number leads, and says how long it took.
    pub fn leads(&self, number: usize, limit: Duration) -> Duration {
        let started = Instant::now();
        let address = format!("grpc://{}", self.addresses[number]);
        runtime().block_on(async {
            loop {
                // A standby sends its callers to the leader, and one that stands still would hold them up.
                let connecting = tokio::time::timeout(Duration::from_millis(500), Client::connect(std::slice::from_ref(&address), None));
                if connecting.await.is_ok_and(|c| c.is_ok_and(|c| c.address() == address)) {
                    return;
                }
                assert!(started.elapsed() < limit, "the dispatcher {number} does not lead within {limit:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        started.elapsed()
    }

    /// Batches of a job that are lost, as (pass, batch) with the reason.
    pub fn losses(&self, job: &str) -> BTreeMap<(u64, u64), String> {
        let rows = self.sql(&format!("SELECT pass, batch, reason FROM system.losses WHERE job = '{job}'"));
        let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{row}"));
        rows.iter().map(|r| ((number(r, "pass"), number(r, "batch")), r["reason"].as_str().unwrap_or_default().to_owned())).collect()
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What a trainer saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// (pass, batch), in the order they came.
    pub batches: Vec<(u64, u64)>,
    pub rows: u64,
    /// Streams that broke.
    pub broken: usize,
    pub drained: usize,
    /// Addresses of the workers, one per stream.
    pub places: Vec<String>,
}

impl Seen {
    /// No batch twice; gives them as a set.
    pub fn once(&self) -> BTreeSet<(u64, u64)> {
        let set: BTreeSet<_> = self.batches.iter().copied().collect();
        assert_eq!(set.len(), self.batches.len(), "a batch came twice: {:?}", self.batches);
        set
    }
}

/// A trainer that takes `pause` for each batch and joins again when its stream breaks. `tell` hears of every batch and where it came from.
pub async fn train(servers: &str, job: &str, pause: Duration, tell: impl Fn(usize, &str)) -> Seen {
    let addresses: Vec<String> = servers.split(',').map(str::to_owned).collect();
    let client = Client::connect_within(&addresses, None, Duration::from_secs(20)).await.unwrap();
    let command =
        format!(r#"{{"job":"{job}","dataset":"numbers","consumer":"t-{job}","epochs":1,"batch_size":10,"seed":7,"window":"1KiB"}}"#);
    let (mut seen, mut failures) = (Seen::default(), 0);
    loop {
        let opened = match client.open_job(&command).await {
            Ok(opened) => opened,
            Err(e) if e.kind == Kind::FailedPrecondition && e.message.contains("finished") => return seen,
            Err(e) => panic!("{e}"),
        };
        let place = opened.location.clone().expect("a dispatcher names a worker");
        seen.places.push(place.clone());
        match stream(&client, opened, pause, &mut seen, |n| tell(n, &place)).await {
            Ok(End::Job) => return seen,
            Ok(End::Pass) => {}
            Ok(End::Drain) => seen.drained += 1,
            Err(e) => {
                assert!(matches!(e.kind, Kind::Unavailable | Kind::Cancelled), "{e}");
                seen.broken += 1;
                failures += 1;
                assert!(failures < 200, "{e}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn stream(
    client: &Client,
    opened: forebay_flight::client::OpenedJob,
    pause: Duration,
    seen: &mut Seen,
    tell: impl Fn(usize),
) -> forebay_core::Result<End> {
    let mut reader = client.at(opened.location.as_deref())?.exchange(opened.ticket, 2).await?;
    loop {
        match reader.next().await? {
            JobItem::Batch(batch) => {
                seen.batches.push((u64::from(batch.meta.pass), batch.meta.batch));
                seen.rows += batch.meta.rows;
                tell(seen.batches.len());
                tokio::time::sleep(pause).await;
                reader.ack(&batch).await?;
            }
            JobItem::End(end) => {
                reader.close().await?;
                return Ok(end);
            }
        }
    }
}
