//! `forebay demo`: the whole story on built-in data. Every line that begins with `$` is a command that a user would type; it runs
//! through the same parser and the same code.

use clap::Args;
use forebay_core::{Error, Result};
use std::path::{Path, PathBuf};

use super::args::Connection;
use super::output::{Failure, Outcome, Output};

const PIPELINE: &str = include_str!("../../../examples/digits/digits.toml");
const DATA: [(&str, &str); 3] = [
    ("digits-0.csv", include_str!("../../../examples/digits/data/digits-0.csv")),
    ("digits-1.csv", include_str!("../../../examples/digits/data/digits-1.csv")),
    ("digits-2.csv", include_str!("../../../examples/digits/data/digits-2.csv")),
];

const ABOUT: &str = "\
Materializes the UCI handwritten digits (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0) as three augmented epochs, draws them over Arrow
Flight, and asks SQL what was seen. Nothing is left running; the root and the pipeline's files stay where the demo says.

Examples:
  forebay demo
  forebay demo --root ./data";

/// Show the whole story on built-in data, with no service running
#[derive(Debug, Args)]
#[command(after_help = ABOUT)]
pub(super) struct DemoArgs {}

pub(super) async fn run(connection: &Connection, _args: DemoArgs, out: &Output) -> Outcome {
    if connection.server.is_some() {
        return Err(Error::bad_input("`demo` runs embedded").with_remedy("leave --server out").into());
    }
    let folder = folder().await?;
    let root = match &connection.root {
        Some(root) => root.clone(),
        None => folder.join("root").display().to_string(),
    };
    let pipeline = folder.join("digits").join("digits.toml").display().to_string();
    out.line(format!("# 1,797 handwritten digits (UCI, CC BY 4.0) lie in {}.", folder.join("digits").display()))?;
    let steps: [(&str, Vec<&str>); 7] = [
        ("They become three epochs, each augmented anew: Parquet shards behind a Delta log.", vec!["materialize", &pipeline]),
        ("Running it again reads nothing: pipeline, code and source are what they were.", vec!["materialize", &pipeline]),
        ("The epochs that are stored now:", vec!["epochs", "digits"]),
        (
            "Two consumers share one job over Arrow Flight; its digest is the same on every host, for any number of consumers.",
            vec!["read", "digits", "--job", "demo", "--batch-size", "64", "--seed", "7", "--consumers", "2", "--digest"],
        ),
        (
            "SQL over the same rows: how even the labels are in each split.",
            vec![
                "sql",
                "SELECT split, sum(n) AS rows, min(n) AS fewest_of_a_digit, max(n) AS most_of_a_digit FROM \
                 (SELECT split, label, count(*) AS n FROM digits WHERE epoch = 0 GROUP BY split, label) GROUP BY split ORDER BY split",
            ],
        ),
        (
            "What became of every batch:",
            vec![
                "sql",
                "SELECT pass, epoch, state, count(*) AS batches, sum(rows) AS rows FROM system.visits WHERE job = 'demo' \
                 GROUP BY pass, epoch, state ORDER BY pass, state",
            ],
        ),
        (
            "The plan can be asked for any batch, before or after it was served:",
            vec!["plan", "digits", "--batch-size", "64", "--seed", "7"],
        ),
    ];
    for (say, mut command) in steps {
        // A root of the user's own may have seen the demo before.
        if connection.root.is_some() && command.contains(&"--job") {
            command.push("--restart");
        }
        step(say, &command, &root, out).await?;
    }
    out.line(format!("\n# Done. The root stays in {root}; try: forebay sql --root {} \"SELECT * FROM digits LIMIT 3\"", quoted(&root)))
}

async fn step(say: &str, command: &[&str], root: &str, out: &Output) -> Outcome {
    let mut words = vec!["forebay"];
    words.extend(command);
    words.extend(["--root", root]);
    out.line(format!("\n# {say}\n$ {}", words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ")))?;
    let cli = super::parse(words.iter().map(std::ffi::OsString::from)).map_err(|e| Failure::from(Error::internal(e.to_string())))?;
    Box::pin(super::run(cli)).await
}

/// Writes the pipeline and its data to a folder of their own.
async fn folder() -> Result<PathBuf> {
    let write = || -> std::io::Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix("forebay-demo-").tempdir()?.keep();
        let digits = folder.join("digits");
        std::fs::create_dir_all(digits.join("data"))?;
        std::fs::write(digits.join("digits.toml"), PIPELINE)?;
        for (name, text) in DATA {
            std::fs::write(digits.join("data").join(Path::new(name)), text)?;
        }
        Ok(folder)
    };
    let written = tokio::task::spawn_blocking(write).await.map_err(|e| Error::internal(format!("writing the demo's files: {e}")))?;
    written.map_err(|e| Error::internal(format!("writing the demo's files: {e}")).with_remedy("set TMPDIR to a folder with room"))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("\"{}\"", word.replace('"', "\\\"")) }
}
