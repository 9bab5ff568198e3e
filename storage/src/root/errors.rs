//! What a failed request means to a caller, in one place.

use forebay_core::{Error, Kind};
use std::io;

/// Environment variables whose values must never be shown.
const SECRET_VARIABLES: &[&str] = &[
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// What an I/O error on `place` means; `doing` is a verb with its object: "write the shard".
pub fn io_error(doing: &str, place: &str, error: &io::Error) -> Error {
    let (kind, what, remedy) = match error.kind() {
        io::ErrorKind::StorageFull => (Kind::ResourceExhausted, "disk full".to_owned(), Some("free some space and try again")),
        io::ErrorKind::QuotaExceeded => (Kind::ResourceExhausted, "disk quota exceeded".to_owned(), Some("free some space and try again")),
        io::ErrorKind::ReadOnlyFilesystem => (Kind::PermissionDenied, "read-only file system".to_owned(), None),
        io::ErrorKind::PermissionDenied => (Kind::PermissionDenied, "permission denied".to_owned(), None),
        io::ErrorKind::NotFound => (Kind::NotFound, "it does not exist".to_owned(), None),
        io::ErrorKind::AlreadyExists => (Kind::AlreadyExists, "it exists already".to_owned(), None),
        _ => (Kind::Internal, error.to_string(), None),
    };
    let built = Error::new(kind, format!("can't {doing} {place}: {what}"));
    match remedy {
        Some(remedy) => built.with_remedy(remedy),
        None => built,
    }
}

/// What a failed request to a store means; `doing` is a verb with its object, `place` the object as it is shown.
pub fn store_error(doing: &str, place: &str, error: &object_store::Error) -> Error {
    use object_store::Error as E;
    // A local store's errors wrap the operating system's, which say more than the wrapping.
    if let Some(io) = io_cause(error)
        && !matches!(error, E::NotFound { .. } | E::AlreadyExists { .. })
    {
        return io_error(doing, place, io);
    }
    let (kind, what) = match error {
        E::NotFound { .. } => (Kind::NotFound, "it does not exist".to_owned()),
        E::AlreadyExists { .. } => (Kind::AlreadyExists, "it exists already".to_owned()),
        E::Precondition { .. } => (Kind::FailedPrecondition, "it was changed by someone else".to_owned()),
        E::PermissionDenied { .. } => (Kind::PermissionDenied, "permission denied".to_owned()),
        E::Unauthenticated { .. } => (Kind::PermissionDenied, "the store refuses the credentials".to_owned()),
        E::NotSupported { .. } | E::NotImplemented { .. } => (Kind::Unsupported, redact(&error.to_string())),
        E::Generic { .. } => return unnamed(doing, place, &error.to_string()),
        _ => (Kind::Internal, redact(&error.to_string())),
    };
    Error::new(kind, format!("can't {doing} {place}: {what}"))
}

/// An error that the store's client does not name. What users meet most is told apart by its text, and said with its remedy.
pub(crate) fn unnamed(doing: &str, place: &str, text: &str) -> Error {
    let said = |what: &str| Error::new(Kind::Unavailable, format!("can't {doing} {place}: {what}"));
    if text.contains("NoSuchBucket") || text.contains("ContainerNotFound") {
        let error = Error::not_found(format!("can't {doing} {place}: the store has no such bucket"));
        return error.with_remedy("make the bucket, or check the root's URL and the store's endpoint");
    }
    // Without credentials in the environment the clients ask the cloud's metadata service, which only its own machines reach.
    if ["169.254.169.254", "metadata.google.internal", "/metadata/identity"].iter().any(|asked| text.contains(asked)) {
        return said("no credentials were found").with_remedy(
            "set the store's standard environment variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_*)",
        );
    }
    if text.contains("error sending request") {
        let url = text.split_whitespace().find(|word| word.starts_with("http")).map(redact).unwrap_or_default();
        let at = url.split("/").take(3).collect::<Vec<_>>().join("/");
        return said(&format!("the store can't be reached at {at}"))
            .with_remedy("check the network, and the store's endpoint in the environment (AWS_ENDPOINT and its like)");
    }
    said(redact(text).lines().next().unwrap_or_default())
}

/// The operating system's error inside another one. Errors of the network are I/O errors too, so only those that a file can give count.
fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut current = Some(error);
    while let Some(e) = current {
        if let Some(io) = e.downcast_ref::<io::Error>()
            && io.raw_os_error().is_some()
            && !is_network(io.kind())
        {
            return Some(io);
        }
        current = e.source();
    }
    None
}

fn is_network(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(
        kind,
        K::ConnectionRefused
            | K::ConnectionReset
            | K::ConnectionAborted
            | K::NotConnected
            | K::AddrNotAvailable
            | K::NetworkUnreachable
            | K::HostUnreachable
            | K::NetworkDown
            | K::BrokenPipe
            | K::TimedOut
    )
}

/// Takes out of a text what may be a secret: the queries of URLs (they may be signed), what stands before an `@` in one, and the values of
/// the environment's credentials.
pub fn redact(text: &str) -> String {
    let mut text = text.to_owned();
    for variable in SECRET_VARIABLES {
        // Very short values would tear words apart, and no real secret is that short.
        if let Ok(secret) = std::env::var(variable)
            && secret.len() >= 8
        {
            text = text.replace(&secret, "***");
        }
    }
    let mut out = String::with_capacity(text.len());
    for (i, word) in text.split(' ').enumerate() {
        if i > 0 {
            out.push(' ');
        }
        out.push_str(&redact_word(word));
    }
    out
}

fn redact_word(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let rest = match rest[..authority_end].rfind('@') {
        Some(at) => format!("***{}", &rest[at..]),
        None => rest.to_owned(),
    };
    match rest.split_once('?') {
        Some((path, query)) => {
            // Closing punctuation of the sentence stays.
            let tail: String = query.chars().rev().take_while(|c| matches!(c, ')' | '"' | '\'' | ',' | ';' | ':')).collect();
            format!("{scheme}://{path}?***{}", tail.chars().rev().collect::<String>())
        }
        None => format!("{scheme}://{rest}"),
    }
}
