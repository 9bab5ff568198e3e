//! What whole-system tests share: the real binary on a temporary root.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary that `make` built: it lies beside the folder of the test binaries.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("FOREBAY_BIN").map_or_else(
        || {
            let own = std::env::current_exe().expect("this test's path");
            own.parent().and_then(Path::parent).expect("the target folder").join("forebay")
        },
        PathBuf::from,
    );
    assert!(path.exists(), "{} is missing: run `make build` first", path.display());
    path
}

/// Folder of this repository.
pub fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// A temporary folder with a root in it, and files of the test's own beside it.
pub struct Home {
    pub dir: tempfile::TempDir,
    /// Where the root is; in the folder unless it is set.
    pub at: Option<String>,
    /// Environment of every command.
    pub env: Vec<(String, String)>,
    /// Where commands write their stderr, at the end; the test's own unless it is set.
    pub stderr: Option<PathBuf>,
}

impl Home {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder"), at: None, env: Vec::new(), stderr: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn root(&self) -> String {
        self.at.clone().unwrap_or_else(|| self.path("root").display().to_string())
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// A command on this home's root, without anything inherited that would change it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(self.dir.path()).env("FOREBAY_ROOT", self.root()).stdin(Stdio::null());
        for name in ["FOREBAY_SERVER", "FOREBAY_TOKEN", "FOREBAY_CRASH_AT", "FOREBAY_DISPATCHER"] {
            command.env_remove(name);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// Runs a command that must succeed; returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "forebay {args:?}: {}\n{}\n{}", out.status, text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }

    /// Runs a command that must fail with this exit status; returns what it said on stderr.
    pub fn fails(&self, status: i32, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(status), "forebay {args:?}:\n{}\n{}", text(&out.stdout), text(&out.stderr));
        text(&out.stderr)
    }

    /// Rows of a query as JSON objects.
    pub fn sql(&self, query: &str) -> Vec<Value> {
        let out = self.ok(&["sql", query, "--format", "json"]);
        out.lines().filter(|l| !l.trim().is_empty()).map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }

    /// One number of a query.
    pub fn number(&self, query: &str) -> i64 {
        let rows = self.sql(query);
        assert_eq!(rows.len(), 1, "{query}: {rows:?}");
        rows[0].as_object().and_then(|o| o.values().next()).and_then(Value::as_i64).unwrap_or_else(|| panic!("{query}: {rows:?}"))
    }

    /// Starts `serve` on free ports and waits until it listens.
    pub fn serve(&self, extra: &[&str]) -> Server {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        args.extend(extra);
        self.start(&args)
    }

    /// Starts a process that says with `--json` where it listens, and waits until it does.
    pub fn start(&self, args: &[&str]) -> Server {
        let mut command = self.command(args);
        let stderr = self
            .stderr
            .as_ref()
            .map_or_else(Stdio::inherit, |path| std::fs::File::options().create(true).append(true).open(path).expect("the log").into());
        let mut child = command.arg("--json").stdout(Stdio::piped()).stderr(stderr).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let started: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("forebay {args:?} printed {line:?}: {e}"));
        let address = started["address"].as_str().expect("an address").to_owned();
        let http = started["http"].as_str().unwrap_or_default().to_owned();
        Server { child, address, http }
    }
}

/// A running server process; killed when dropped.
pub struct Server {
    pub child: Child,
    /// `grpc://127.0.0.1:PORT`
    pub address: String,
    pub http: String,
}

impl Server {
    /// Sends a signal by name: STOP, CONT, TERM.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success(), "kill -{name} {}", self.child.id());
    }

    /// Asks it to end, and says how long it took and with which status.
    pub fn end(&mut self) -> (Duration, Option<i32>) {
        let started = Instant::now();
        self.signal("TERM");
        let status = self.child.wait().expect("its end");
        (started.elapsed(), status.code())
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("its end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `done` says so; fails the test with `what` after `limit`.
pub fn eventually(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pipeline over `data/*.csv` with one step.
pub fn csv_pipeline(name: &str, step: &str, extra: &str) -> String {
    format!(
        "name = \"{name}\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[[steps]]\nname = \"step\"\nsql = \"{step}\"\n[epochs]\ncount = 1\nseed = 1\n{extra}"
    )
}
