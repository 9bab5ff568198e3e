//! What stands between users' SQL and DataFusion: limits on its text, a stack to plan on, and errors in our own words.
//!
//! Owns: the mapping of DataFusion's errors to core errors, with the position where it is known. Must not know: tables, steps.

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use forebay_core::{Error, Kind, Result};
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// Limits on the text of one statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextLimits {
    pub bytes: usize,
    /// Operators and connectives: each one is a level of the expression that planner and evaluator recurse through.
    pub operators: usize,
}

/// Columns, arguments and values of one statement, those in lists after IN apart: what planning takes grows with their square.
const ITEMS: usize = 8_192;

/// Planning recurses once per operator, in debug builds with large frames. Only the pages that are touched cost memory.
const PLANNING_STACK: usize = 256 << 20;

/// Refuses text that is too long, or whose expressions could be nested deeper than the stack allows, before anything parses it. Gives the number
/// of its operators and connectives.
pub(crate) fn check_text(sql: &str, limits: TextLimits) -> Result<usize> {
    if sql.len() > limits.bytes {
        return Err(Error::new(Kind::ResourceExhausted, format!("the query is {} bytes long; the limit is {}", sql.len(), limits.bytes)));
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().map_err(|e| Error::bad_input(format!("bad SQL: {e}")))?;
    let operators = tokens.iter().filter(|t| is_operator(t)).count();
    if operators > limits.operators {
        return Err(Error::new(
            Kind::ResourceExhausted,
            format!("the query has {operators} operators and connectives; the limit is {}", limits.operators),
        )
        .with_remedy("use IN (...) or a list for long enumerations, or split the query"));
    }
    let items = items(&tokens);
    if items > ITEMS {
        return Err(Error::new(
            Kind::ResourceExhausted,
            format!("the query has {items} columns, arguments and values; the limit is {ITEMS}"),
        )
        .with_remedy("write long lists of values as a dataset, and split the query"));
    }
    Ok(operators)
}

/// Commas outside of lists after IN.
fn items(tokens: &[Token]) -> usize {
    // For each open parenthesis, whether it began such a list.
    let (mut lists, mut after_in, mut commas) = (Vec::new(), false, 0);
    for token in tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::LParen => lists.push(after_in),
            Token::RParen => drop(lists.pop()),
            Token::Comma if lists.last() != Some(&true) => commas += 1,
            _ => {}
        }
        after_in = matches!(token, Token::Word(word) if word.keyword == Keyword::IN);
    }
    commas
}

/// Whether a token can add a level to an expression or a query. Unknown symbols count: too many is safe, too few is not.
fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::XOR
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::BETWEEN
                | Keyword::UNION
                | Keyword::EXCEPT
                | Keyword::INTERSECT
                | Keyword::JOIN
                | Keyword::SELECT
                | Keyword::CASE
        ),
        Token::EOF
        | Token::Whitespace(_)
        | Token::Comma
        | Token::Period
        | Token::SemiColon
        | Token::RParen
        | Token::RBracket
        | Token::RBrace
        | Token::LParen
        | Token::Number(..)
        | Token::Char(_)
        | Token::SingleQuotedString(_) => false,
        other => !other.to_string().starts_with(['\'', '"']),
    }
}

/// Runs planning on a thread of its own with a stack that the limits cannot exhaust; a panic there is an error here. Nothing blocks: the
/// caller awaits the thread's answer.
pub(crate) async fn on_big_stack<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let (answer, wait) = oneshot::channel();
    let run = move || {
        let done = caught(work);
        // Nobody waits any more if this fails: the caller was cancelled.
        drop(answer.send(done));
    };
    std::thread::Builder::new()
        .name("forebay-plan".into())
        .stack_size(PLANNING_STACK)
        .spawn(run)
        .map_err(|e| Error::new(Kind::ResourceExhausted, format!("no thread to plan the query on: {e}")))?;
    wait.await.map_err(|_| Error::internal("the planning thread went away"))?
}

/// Turns a panic into an error. Whatever the closure owned is dropped, so no half-changed state is seen afterwards.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::internal(format!("a function panicked: {}", text.unwrap_or_else(|| "without a message".into()))))
    })
}

/// DataFusion's error as ours: its message without decoration, the position where known, and a kind that follows from what failed.
pub(crate) fn to_error(error: DataFusionError) -> Error {
    let position = error.diagnostic().and_then(|d| d.span).map(|s| (s.start.line, s.start.column));
    let (kind, message) = kind_and_message(&error);
    if message.contains("would be ambiguous") || message.contains("have the same name") {
        return Error::new(kind, message).with_remedy("give each column a name of its own with AS");
    }
    match position.filter(|(line, _)| *line > 0 && !message.contains("Line: ")) {
        Some((line, column)) => Error::new(kind, format!("{message} (line {line}, column {column})")),
        None => Error::new(kind, message),
    }
}

fn kind_and_message(error: &DataFusionError) -> (Kind, String) {
    match error {
        DataFusionError::Context(what, inner) if what.is_empty() => kind_and_message(inner),
        // DataFusion's contexts name its own passes ("type_coercion"), which say nothing to whoever wrote the query.
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => kind_and_message(inner),
        DataFusionError::Shared(inner) => kind_and_message(inner),
        DataFusionError::Collection(all) => all.first().map_or_else(|| (Kind::Internal, "no error".into()), kind_and_message),
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(ours) => (ours.kind, ours.to_string()),
            None => match inner.downcast_ref::<DataFusionError>() {
                Some(theirs) => kind_and_message(theirs),
                None => (Kind::Internal, inner.to_string()),
            },
        },
        DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
            ArrowError::ExternalError(e) => match e.downcast_ref::<DataFusionError>() {
                Some(theirs) => kind_and_message(theirs),
                None => (Kind::BadInput, e.to_string()),
            },
            ArrowError::MemoryError(m) => (Kind::ResourceExhausted, m.clone()),
            ArrowError::IoError(_, io) if no_room(io).is_some() => (Kind::ResourceExhausted, no_room(io).unwrap_or_default()),
            other => (Kind::BadInput, other.to_string()),
        },
        DataFusionError::IoError(io) if no_room(io).is_some() => (Kind::ResourceExhausted, no_room(io).unwrap_or_default()),
        DataFusionError::SQL(parser, _) => (Kind::BadInput, strip(&parser.to_string())),
        DataFusionError::Plan(m) | DataFusionError::Execution(m) | DataFusionError::Configuration(m) => (Kind::BadInput, strip(m)),
        DataFusionError::SchemaError(schema, _) => (Kind::BadInput, strip(&schema.to_string())),
        DataFusionError::NotImplemented(m) => (Kind::Unsupported, strip(m)),
        DataFusionError::ResourcesExhausted(m) => (Kind::ResourceExhausted, strip(m)),
        other => (Kind::Internal, strip(&other.to_string())),
    }
}

/// What to say of an error in writing a spill file that means that there is no room for it. DataFusion's own limit is known by its text only.
fn no_room(error: &std::io::Error) -> Option<String> {
    use std::io::ErrorKind;
    if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return Some(format!("no space is left on disk for what queries spill: {error}"));
    }
    let text = error.to_string();
    let (_, after) = text.split_once("during the spilling process has exceeded the allowable limit of ")?;
    let limit = after.split(". ").next().unwrap_or(after);
    Some(format!("queries would spill more to disk than query.spill_limit allows, {limit}; ask for less, or raise it"))
}

/// DataFusion appends a backtrace where it has one.
fn strip(message: &str) -> String {
    message.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or(message).trim_end().trim_end_matches('.').to_owned()
}

/// Our error inside DataFusion's, found again by [`to_error`].
pub(crate) fn from_error(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
