#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn claim() -> Claim {
    Claim::Group(json!({"dataset": "digits", "version": 3, "shards": [0, 1]}))
}

#[test]
fn a_ticket_opens_to_what_was_signed() {
    let key = TicketKey::random();
    let ticket = key.sign(&claim(), Duration::from_secs(60)).unwrap();
    assert!(looks_like_ticket(&ticket));
    assert_eq!(key.open(&ticket).unwrap(), claim());
    assert!(!String::from_utf8(ticket.to_vec()).unwrap().contains("digits"));
}

#[test]
fn nodes_with_the_same_secret_read_each_others_tickets() {
    let ticket = TicketKey::derive(b"root").sign(&claim(), Duration::from_secs(60)).unwrap();
    assert_eq!(TicketKey::derive(b"root").open(&ticket).unwrap(), claim());
    assert_eq!(TicketKey::derive(b"other").open(&ticket).unwrap_err().kind, Kind::Unauthenticated);
    assert_eq!(TicketKey::random().open(&ticket).unwrap_err().kind, Kind::Unauthenticated);
}

#[test]
fn a_ticket_expires() {
    let key = TicketKey::random();
    let ticket = key.sign_at(&claim(), 1000).unwrap();
    assert!(key.open_at(&ticket, 999).is_ok());
    let error = key.open_at(&ticket, 1000).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(error.remedy.unwrap().contains("GetFlightInfo"));
}

proptest! {
    #[test]
    fn no_changed_ticket_opens(at in 0usize..200, bit in 0u8..8) {
        let key = TicketKey::derive(b"k");
        let ticket = key.sign_at(&claim(), 1000).unwrap();
        let mut changed = ticket.to_vec();
        let at = at % changed.len();
        changed[at] ^= 1 << bit;
        prop_assert!(key.open_at(&changed, 1).is_err());
        prop_assert!(key.open_at(&ticket[..at], 1).is_err());
    }

    #[test]
    fn rubbish_is_refused(bytes: Vec<u8>) {
        let key = TicketKey::derive(b"k");
        prop_assert!(key.open(&bytes).is_err());
        let mut with_prefix = PREFIX.to_vec();
        with_prefix.extend(&bytes);
        prop_assert!(key.open(&with_prefix).is_err());
    }
}
