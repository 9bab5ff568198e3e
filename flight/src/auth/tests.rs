#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn gate() -> Gate {
    Gate::new(Some("s:e c"), TicketKey::derive(b"k"))
}

#[test]
fn the_gate_takes_the_token_under_any_case_of_the_scheme() {
    let gate = Gate::new(Some("secret"), TicketKey::derive(b"k"));
    for good in ["Bearer secret", "bearer secret", "BEARER secret", "Bearer   secret", " Bearer secret "] {
        assert!(gate.check(Some(good.as_bytes())).is_ok(), "{good}");
    }
    for bad in [
        "Bearer Secret",
        "Bearer secre",
        "Bearer secrets",
        "Bearer",
        "Bearer ",
        "secret",
        "",
        "Basic secret",
        "Bearer secret x",
        "Bearersecret",
    ] {
        let error = gate.check(Some(bad.as_bytes())).unwrap_err();
        assert_eq!(error.kind, Kind::Unauthenticated, "{bad}");
        assert!(!error.to_string().contains("secret"));
    }
    assert_eq!(gate.check(None).unwrap_err().kind, Kind::Unauthenticated);
    assert!(Gate::new(None, TicketKey::derive(b"k")).check(None).is_ok());
}

#[test]
fn a_handshake_gives_a_session() {
    let gate = gate();
    let basic = |text: &str| format!("basic {}", base64::engine::general_purpose::STANDARD.encode(text));
    let term = Duration::from_secs(60);
    let session = gate.session(Some(basic("ann:s:e c").as_bytes()), None, term).unwrap();
    assert!(gate.check(Some(&[b"Bearer ", session.as_ref()].concat())).is_ok());
    assert!(gate.session(None, Some(("ann", "s:e c")), term).is_ok());
    for name in ["x", "xx", "xxx"] {
        let bare = base64::engine::general_purpose::STANDARD_NO_PAD.encode(format!("{name}:s:e c"));
        for header in [format!("Basic {bare}"), basic(&format!("{name}:s:e c"))] {
            assert!(gate.session(Some(header.as_bytes()), None, term).is_ok(), "{header}");
        }
    }
    for bad in [basic("ann:wrong"), basic("nocolon"), basic("s:e c"), "Basic ???".to_owned(), "Basic".to_owned(), "Digest x".to_owned()] {
        assert_eq!(gate.session(Some(bad.as_bytes()), None, term).unwrap_err().kind, Kind::Unauthenticated, "{bad}");
    }
    assert!(gate.session(None, None, term).is_err());
    assert!(gate.session(None, Some(("s:e c", "")), term).is_err());
}

#[test]
fn no_other_ticket_is_a_session() {
    let gate = gate();
    let ticket = TicketKey::derive(b"k").sign(&Claim::Job(serde_json::json!(1)), Duration::from_secs(60)).unwrap();
    assert!(gate.check(Some(&[b"Bearer ", ticket.as_ref()].concat())).is_err());
    let expired = TicketKey::derive(b"k").sign(&Claim::Session, Duration::ZERO).unwrap();
    assert!(gate.check(Some(&[b"Bearer ", expired.as_ref()].concat())).is_err());
}

#[test]
fn a_bearer_is_recognised_outside_of_flight() {
    assert!(bearer_matches("bearer s3cret", "s3cret"));
    for bad in ["", "s3cret", "Basic s3cret", "Bearer s3cre", "Bearer "] {
        assert!(!bearer_matches(bad, "s3cret"), "{bad}");
    }
}
