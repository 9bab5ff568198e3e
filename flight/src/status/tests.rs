#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const KINDS: [Kind; 12] = [
    Kind::BadInput,
    Kind::NotFound,
    Kind::AlreadyExists,
    Kind::FailedPrecondition,
    Kind::Unauthenticated,
    Kind::PermissionDenied,
    Kind::ResourceExhausted,
    Kind::Unavailable,
    Kind::Unsupported,
    Kind::Cancelled,
    Kind::Corrupt,
    Kind::Internal,
];

#[test]
fn an_error_survives_the_trailers() {
    for kind in KINDS {
        let error = Error::new(kind, "p.toml: `steps[0].sql`: 100 % der Zeilen\nfehlen für 🦀").with_remedy("use `AS`");
        let mut headers = http::HeaderMap::new();
        to_status(&error).add_header(&mut headers).unwrap();
        assert_eq!(from_status(&Status::from_header_map(&headers).unwrap()), error);
        // Another client sees the code and the whole text; a status without our detail maps back to its kind.
        let plain = Status::new(to_status(&error).code(), to_status(&error).message());
        assert_eq!(from_status(&plain), Error::new(kind, error.to_string()));
    }
}

#[test]
fn the_details_have_the_message_too() {
    let status = to_status(&Error::bad_input("no column `lable`").with_remedy("did you mean `label`?"));
    let details = RpcStatus::decode(status.details()).unwrap();
    assert_eq!((details.code, details.message.as_str()), (status.code() as i32, status.message()));
    assert_eq!(details.message, "no column `lable`; did you mean `label`?");
}

#[test]
fn a_long_message_fits_into_headers() {
    for letter in ["x", "ü", "猫"] {
        let error = Error::bad_input(letter.repeat(100_000)).with_remedy(letter.repeat(100_000));
        let mut headers = http::HeaderMap::new();
        to_status(&error).add_header(&mut headers).unwrap();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        // grpc-core's soft limit.
        assert!(bytes < 8 << 10, "{bytes}");
        assert!(from_status(&Status::from_header_map(&headers).unwrap()).message.ends_with("..."));
    }
}
