//! Arguments that several commands share, and the small languages in them: ranges of epochs, lists of columns.

use clap::Args;
use forebay_core::job::Passes;
use forebay_core::{Error, Result, suggest};
use serde_json::Value;

use crate::config::Config;

/// Where the data is, and how answers are printed.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection and output")]
pub(super) struct Connection {
    /// Server to speak to: grpc://HOST:PORT, several separated by commas [env: FOREBAY_SERVER]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "root")]
    pub(super) server: Option<String>,
    /// Path or URL of a root to use with no server: a folder, s3://, gs:// or az:// [env: FOREBAY_ROOT]
    #[arg(long, global = true, value_name = "URL")]
    pub(super) root: Option<String>,
    /// Secret that the server asks for [env: FOREBAY_TOKEN]
    #[arg(long, global = true, value_name = "TEXT")]
    pub(super) token: Option<String>,
    /// Print JSON on stdout
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Read this configuration file instead of ./forebay.toml [env: FOREBAY_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<String>,
}

impl Connection {
    /// The settings of all layers; `more` are a command's own flags.
    pub(super) fn settings(&self, more: Vec<(&'static str, Value)>) -> Result<Config> {
        let mut flags = more;
        let given = [("server", &self.server), ("root", &self.root), ("token", &self.token)];
        flags.extend(given.into_iter().filter_map(|(name, value)| Some((name, Value::from(value.clone()?)))));
        Config::load(&flags, |name| std::env::var(name).ok(), self.config.as_deref())
    }
}

/// `A..B`, which excludes B.
pub(super) fn epoch_range(text: &str) -> Result<(u32, u32)> {
    let refuse = || {
        Error::bad_input(format!("`{}` is not a range of epochs", text.escape_debug())).with_remedy("write 0..3 for the epochs 0, 1 and 2")
    };
    let (from, to) = text.split_once("..").ok_or_else(refuse)?;
    let number = |part: &str| part.trim().parse::<u32>().map_err(|_| refuse());
    let from = if from.trim().is_empty() { 0 } else { number(from)? };
    let to = number(to)?;
    if from >= to {
        return Err(
            Error::bad_input(format!("the range {text} is empty")).with_remedy("ranges exclude their end: 0..3 is the epochs 0, 1 and 2")
        );
    }
    Ok((from, to))
}

/// Passes on the command line: `0..3`, a number of passes, a list `0,2,5`, or `forever`.
pub(super) fn passes(text: &str) -> Result<Passes> {
    let refuse = || {
        Error::bad_input(format!("`{}` is not a choice of epochs", text.escape_debug()))
            .with_remedy("write 0..3, a number of passes, a list such as 0,2,5, or forever")
    };
    if text.contains("..") {
        let (from, to) = epoch_range(text)?;
        return Ok(Passes::List((from..to).collect()));
    }
    let value = match text {
        "forever" => Value::from("forever"),
        _ if text.contains(',') => {
            let parts: Result<Vec<u32>, _> = text.split(',').map(|part| part.trim().parse::<u32>()).collect();
            Value::from(parts.map_err(|_| refuse())?)
        }
        _ => Value::from(text.trim().parse::<u32>().map_err(|_| refuse())?),
    };
    Passes::from_value(&value)
}

/// One of the words that a setting knows, for clap.
pub(super) fn word(known: &'static [&'static str]) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| {
        if known.contains(&text) {
            return Ok(text.to_owned());
        }
        Err(match suggest::likely(text, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? known are {}", suggest::list(known)),
            None => format!("known are {}", suggest::list(known)),
        })
    }
}
