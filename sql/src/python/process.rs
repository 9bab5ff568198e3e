//! One Python process: started with a module set, fed one request at a time, killed when dropped.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, BufWriter};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::module_set::ModuleSet;
use super::pool::PythonConfig;
use super::wire::{self, Answer, Request};

/// The program that every process runs.
const WORKER: &str = include_str!("worker.py");

/// What a process printed last is kept up to this many bytes.
const TAIL: usize = 4 << 10;

/// How long a process may take to start and import pyarrow; cold disks are slow.
const START: Duration = Duration::from_secs(120);

/// How long the last words of a process that ended are waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: ChildStdout,
    printed: Arc<Mutex<Vec<u8>>>,
    listening: JoinHandle<()>,
    /// Keeps the folder that the process imports from.
    pub set: Arc<ModuleSet>,
    /// Steps whose function this process has imported.
    pub loaded: Vec<u64>,
    call_timeout: Duration,
}

/// Why a request got no answer that says ok.
pub(super) enum Refusal {
    /// The process answered and lives on.
    Raised(Answer),
    /// The process is of no further use.
    Died(Error),
}

impl Process {
    pub(super) async fn start(config: &PythonConfig, set: Arc<ModuleSet>) -> Result<Self> {
        let mut command = Command::new(&config.interpreter);
        command
            .arg("-c")
            .arg(WORKER)
            .arg(set.folder())
            .arg(config.memory_limit.unwrap_or(0).to_string())
            .arg(std::process::id().to_string())
            .current_dir(set.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Sets and dicts of strings in the same order everywhere: two attempts of a task must write equal rows.
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("FOREBAY_TOKEN")
            .kill_on_drop(true);
        // A terminal's Ctrl-C is ours to handle; the processes end when we end.
        #[cfg(unix)]
        command.process_group(0);
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        let interpreter = config.interpreter.display();
        let mut child = command.spawn().map_err(|e| {
            Error::failed_precondition(format!("Python cannot be started as `{interpreter}`: {e}"))
                .with_remedy("set FOREBAY_PYTHON to an interpreter that has pyarrow")
        })?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(Error::internal("a Python process without streams"));
        };
        let printed = Arc::new(Mutex::new(Vec::new()));
        let listening = tokio::spawn(listen(errors, printed.clone()));
        let input = BufWriter::new(input);
        let mut process = Self { child, input, output, printed, listening, set, loaded: vec![], call_timeout: config.call_timeout };
        match timeout(START, wire::read_frame(&mut process.output)).await {
            Ok(Ok((Answer { ok: true, .. }, _))) => Ok(process),
            Ok(Ok((answer, _))) => {
                Err(Error::failed_precondition(answer.error).with_remedy("set FOREBAY_PYTHON to an interpreter that has pyarrow"))
            }
            Ok(Err(_)) => Err(process.ended().await),
            Err(_) => Err(Error::new(Kind::ResourceExhausted, format!("`{interpreter}` took longer than {START:?} to start"))),
        }
    }

    /// One request and its answer's body.
    pub(super) async fn ask(&mut self, request: &Request<'_>, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.printed.lock().clear();
        let exchange = async {
            wire::write_frame(&mut self.input, request, body).await?;
            wire::read_frame(&mut self.output).await
        };
        match timeout(self.call_timeout, exchange).await {
            Ok(Ok((answer, body))) if answer.ok => Ok(body),
            Ok(Ok((answer, _))) => Err(Refusal::Raised(answer)),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Other => {
                Err(Refusal::Died(Error::new(Kind::ResourceExhausted, format!("returned {error}"))))
            }
            Ok(Err(_)) => Err(Refusal::Died(self.ended().await)),
            Err(_) => Err(Refusal::Died(
                Error::new(Kind::ResourceExhausted, format!("took longer than {:?}", self.call_timeout))
                    .with_remedy("make the step's batch_size smaller, or allow more time per call"),
            )),
        }
    }

    /// How the process ended, with what it printed last.
    async fn ended(&mut self) -> Error {
        let status = match timeout(LAST_WORDS, self.child.wait()).await {
            Ok(Ok(status)) => describe(status),
            _ => "stopped answering".to_owned(),
        };
        // The listener ends when the stream does; a grandchild may hold it open.
        let _ = timeout(LAST_WORDS, &mut self.listening).await;
        Error::internal(format!("its process {status}{}", self.said()))
    }

    /// What the process printed since the last request, to be put behind a message.
    pub(super) fn said(&self) -> String {
        let printed = self.printed.lock();
        let text = String::from_utf8_lossy(&printed);
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!("; it printed last:\n{text}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.listening.abort();
        // `kill_on_drop` would do; asking now does not wait for the runtime.
        let _ = self.child.start_kill();
    }
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let why = match signal {
            9 => " (killed; out of memory?)",
            11 => " (segmentation fault)",
            6 => " (aborted)",
            _ => "",
        };
        return format!("died of signal {signal}{why}");
    }
    match status.code() {
        Some(code) => format!("exited with status {code}"),
        None => "ended".to_owned(),
    }
}

/// Logs the lines that end in `chunk`; what is behind the last one waits for its end, or for the end of everything (an empty chunk).
fn log_lines(line: &mut Vec<u8>, chunk: &[u8]) {
    line.extend_from_slice(chunk);
    let whole = match line.iter().rposition(|b| *b == b'\n') {
        _ if chunk.is_empty() || line.len() > TAIL => line.len(),
        Some(end) => end + 1,
        None => return,
    };
    let rest = line.split_off(whole);
    for text in String::from_utf8_lossy(line).lines().filter(|text| !text.trim().is_empty()) {
        tracing::info!(target: "python", "{text}");
    }
    *line = rest;
}

/// Drains what the process prints, so that it never blocks on a full pipe; logs it line by line under the target `python`, and keeps the end.
async fn listen(mut errors: ChildStderr, printed: Arc<Mutex<Vec<u8>>>) {
    let (mut chunk, mut line) = ([0; 4096], Vec::new());
    while let Ok(length) = errors.read(&mut chunk).await {
        log_lines(&mut line, chunk.get(..length).unwrap_or_default());
        if length == 0 {
            return;
        }
        let mut printed = printed.lock();
        printed.extend_from_slice(chunk.get(..length).unwrap_or_default());
        let excess = printed.len().saturating_sub(TAIL);
        printed.drain(..excess);
    }
}
