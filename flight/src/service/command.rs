//! What a descriptor asks for.

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::sql::Any;
use forebay_core::{Error, Result};
use prost::Message;

/// A descriptor, read.
#[derive(Debug)]
pub(crate) enum Command<'a> {
    /// `[name]` or `[name@v3]`, optionally with `epoch=N`.
    Path(&'a [String]),
    /// A job, as JSON.
    Job(&'a str),
    /// A Flight SQL command.
    Sql(Any),
}

/// Reads a descriptor.
///
/// # Errors
/// `BadInput` when it is none of the three.
pub(crate) fn parse(descriptor: &FlightDescriptor) -> Result<Command<'_>> {
    // Some clients leave the type unset and fill in one of the two.
    let is_path = descriptor.r#type == DescriptorType::Path as i32 || (descriptor.cmd.is_empty() && !descriptor.path.is_empty());
    if is_path {
        check_path(&descriptor.path)?;
        return Ok(Command::Path(&descriptor.path));
    }
    // Only JSON may have space around it: a protobuf message begins with what looks like a line feed.
    let text = descriptor.cmd.trim_ascii();
    if text.starts_with(b"{") {
        return std::str::from_utf8(text).map(Command::Job).map_err(|_| Error::bad_input("the command is not UTF-8"));
    }
    match Any::decode(descriptor.cmd.as_ref()) {
        Ok(any) if any.type_url.starts_with("type.googleapis.com/arrow.flight.protocol.sql.") => Ok(Command::Sql(any)),
        _ => Err(Error::bad_input("the descriptor's command is neither a job nor a Flight SQL command")
            .with_remedy("send the job as JSON, as {\"dataset\":\"digits\",\"batch_size\":64}")),
    }
}

fn check_path(path: &[String]) -> Result<()> {
    let known = match path {
        [name] => !name.is_empty(),
        [name, epoch] => !name.is_empty() && epoch.strip_prefix("epoch=").is_some_and(|n| n.parse::<u32>().is_ok()),
        _ => false,
    };
    if known {
        return Ok(());
    }
    let shown: Vec<_> = path.iter().map(|p| p.escape_debug().to_string()).collect();
    Err(Error::bad_input(format!("the path [{}] names nothing", shown.join(", ")))
        .with_remedy("use [name], [name@v3] or [name, \"epoch=0\"]"))
}
