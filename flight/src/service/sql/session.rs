//! Session options. A session is a signed cookie: whichever node gets it knows what was set, and nothing is kept.
//!
//! A client that keeps no cookies has no session: what it sets is gone with the answer. A cookie that has expired is an error, not a new
//! session, so that options never vanish unseen.

use forebay_core::{Error, Result};
use prost::{Message, Oneof};
use std::collections::HashMap;
use std::time::Duration;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use super::super::Shared;
use crate::statement::{Names, SessionOptions};
use crate::ticket::Claim;

const COOKIE: &str = "forebay_session";

/// `SessionOptionValue`, and the messages around it, as in Flight.proto; arrow-flight doesn't have them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OptionValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
    pub(crate) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(sfixed64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    Texts(Texts),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Texts {
    #[prost(string, repeated, tag = "1")]
    pub(crate) values: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetSessionOptionsRequest {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) session_options: HashMap<String, OptionValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) errors: HashMap<String, SetError>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetError {
    /// 1: no such option, 2: not a value of it.
    #[prost(int32, tag = "1")]
    pub(crate) value: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) session_options: HashMap<String, OptionValue>,
}

const INVALID_NAME: i32 = 1;
const INVALID_VALUE: i32 = 2;

/// The session of a call.
///
/// # Errors
/// `FailedPrecondition` for a session that expired, `Unauthenticated` for one that this server did not make.
pub(crate) fn of(shared: &Shared, metadata: &MetadataMap) -> Result<SessionOptions> {
    match cookie(metadata) {
        None => Ok(SessionOptions::default()),
        Some(token) => open(shared, token),
    }
}

fn cookie(metadata: &MetadataMap) -> Option<&str> {
    let all = metadata.get_all("cookie").into_iter().filter_map(|header| header.to_str().ok()).flat_map(|header| header.split(';'));
    let mut ours = all.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, value)| *name == COOKIE && !value.is_empty());
    ours.next().map(|(_, value)| value.trim_matches('"'))
}

fn open(shared: &Shared, token: &str) -> Result<SessionOptions> {
    let lost = |error: Error| {
        Error { message: error.message.replace("ticket", "session"), ..error }.with_remedy("connect again and set the options again")
    };
    match shared.config.key.open(token.as_bytes()).map_err(lost)? {
        Claim::Options(options) => Ok(options),
        _ => Err(lost(Error::bad_input("the cookie is not a session of this server"))),
    }
}

/// The header that gives a session to the client, or takes it away.
fn set_cookie(shared: &Shared, options: Option<&SessionOptions>) -> Result<AsciiMetadataValue> {
    let text = match options {
        Some(options) => {
            let token = shared.config.key.sign(&Claim::Options(options.clone()), shared.config.session_term)?;
            format!("{COOKIE}={}; Path=/; HttpOnly", String::from_utf8_lossy(&token))
        }
        None => format!("{COOKIE}=; Path=/; Max-Age=0"),
    };
    AsciiMetadataValue::try_from(text).map_err(|e| Error::internal(format!("a session's cookie: {e}")))
}

/// The action `SetSessionOptions`: what could not be set, and the cookie.
pub(super) async fn set(shared: &Shared, metadata: &MetadataMap, body: &[u8]) -> Result<(SetSessionOptionsResult, AsciiMetadataValue)> {
    let asked = SetSessionOptionsRequest::decode(body).map_err(|e| Error::bad_input(format!("SetSessionOptions: {e}")))?;
    let names = shared.backend.names().await?;
    // Setting is how a lost session begins again.
    let mut options = cookie(metadata).and_then(|token| open(shared, token).ok()).unwrap_or_default();
    let mut errors = HashMap::new();
    for (name, value) in asked.session_options {
        if let Err(value) = apply(&mut options, &names, &name, value.value) {
            errors.insert(name, SetError { value });
        }
    }
    let cookie = set_cookie(shared, Some(&options))?;
    Ok((SetSessionOptionsResult { errors }, cookie))
}

/// Sets one option, or unsets it.
fn apply(options: &mut SessionOptions, names: &Names, name: &str, value: Option<Value>) -> Result<(), i32> {
    let text = match &value {
        None => None,
        Some(Value::Text(text)) => Some(text.clone()),
        Some(Value::Int(number)) => Some(number.to_string()),
        Some(Value::Double(number)) => Some(number.to_string()),
        Some(Value::Bool(_) | Value::Texts(_)) => return Err(if KNOWN.contains(&name) { INVALID_VALUE } else { INVALID_NAME }),
    };
    match name {
        "catalog" if text.as_ref().is_none_or(|t| *t == names.catalog) => options.catalog = text,
        "schema" if text.as_ref().is_none_or(|t| names.schemas.contains(t)) => options.schema = text,
        "timeout" => {
            let longest = Duration::from_secs(365 * 24 * 3600).as_secs_f64();
            let seconds = text.map(|t| t.parse().ok().filter(|s: &f64| *s > 0.0 && *s <= longest).ok_or(INVALID_VALUE));
            options.timeout = seconds.transpose()?;
        }
        "row_limit" => options.row_limit = text.map(|t| t.parse().map_err(|_| INVALID_VALUE)).transpose()?,
        _ => return Err(if KNOWN.contains(&name) { INVALID_VALUE } else { INVALID_NAME }),
    }
    Ok(())
}

const KNOWN: [&str; 4] = ["catalog", "schema", "timeout", "row_limit"];

/// The action `GetSessionOptions`: the names always, the limits where they were set.
pub(super) async fn get(shared: &Shared, metadata: &MetadataMap) -> Result<GetSessionOptionsResult> {
    let options = of(shared, metadata)?;
    let names = shared.backend.names().await?;
    let text = |value: Option<String>, default: Option<&String>| value.or_else(|| default.cloned()).map(Value::Text);
    let all = [
        ("catalog", text(options.catalog, Some(&names.catalog))),
        ("schema", text(options.schema, names.schemas.first())),
        ("timeout", options.timeout.map(Value::Double)),
        ("row_limit", options.row_limit.map(|n| Value::Int(i64::try_from(n).unwrap_or(i64::MAX)))),
    ];
    let set = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), OptionValue { value: Some(value?) })));
    Ok(GetSessionOptionsResult { session_options: set.collect() })
}

/// The action `CloseSession`: there is nothing to close but the cookie.
pub(super) fn close(shared: &Shared) -> Result<AsciiMetadataValue> {
    set_cookie(shared, None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_checked_one_by_one() {
        let names = Names { catalog: "c".into(), schemas: vec!["public".into(), "system".into()], kinds: vec![] };
        let mut options = SessionOptions::default();
        let mut set = |name: &str, value: Option<Value>| apply(&mut options, &names, name, value);
        set("schema", Some(Value::Text("system".into()))).unwrap();
        set("timeout", Some(Value::Double(0.5))).unwrap();
        set("row_limit", Some(Value::Int(7))).unwrap();
        set("catalog", Some(Value::Text("c".into()))).unwrap();
        for (name, value, error) in [
            ("schema", Value::Text("secret".into()), INVALID_VALUE),
            ("catalog", Value::Text("other".into()), INVALID_VALUE),
            ("timeout", Value::Double(f64::NAN), INVALID_VALUE),
            ("timeout", Value::Int(-1), INVALID_VALUE),
            ("timeout", Value::Double(f64::INFINITY), INVALID_VALUE),
            ("timeout", Value::Bool(true), INVALID_VALUE),
            ("row_limit", Value::Int(-1), INVALID_VALUE),
            ("row_limit", Value::Text("many".into()), INVALID_VALUE),
            ("memory", Value::Int(1), INVALID_NAME),
            ("datafusion.execution.batch_size", Value::Bool(true), INVALID_NAME),
        ] {
            assert_eq!(set(name, Some(value.clone())), Err(error), "{name} {value:?}");
        }
        let expected = SessionOptions { catalog: Some("c".into()), schema: Some("system".into()), timeout: Some(0.5), row_limit: Some(7) };
        set("row_limit", Some(Value::Text("8".into()))).unwrap();
        set("catalog", None).unwrap();
        assert_eq!(options, SessionOptions { catalog: None, row_limit: Some(8), ..expected });
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut metadata = MetadataMap::new();
        assert_eq!(cookie(&metadata), None);
        metadata.insert("cookie", "a=b; forebay_session=\"fb1.x\"; forebay_sessions=1".parse().unwrap());
        assert_eq!(cookie(&metadata), Some("fb1.x"));
        metadata.insert("cookie", "forebay_session=".parse().unwrap());
        assert_eq!(cookie(&metadata), None);
    }
}
