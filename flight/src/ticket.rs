//! Tickets: what a client carries and must not be able to make.
//!
//! A ticket is `fb1.` and base64url of MAC (blake3, keyed) | expiry (unix seconds) | JSON payload. It can be replayed until it expires: what
//! a job's ticket may still do is decided by the job's state, and a dataset's ticket names a pinned version. Every node with the same key
//! reads every ticket.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::statement::{SessionOptions, Statement};

const PREFIX: &[u8] = b"fb1.";
const MAC: usize = blake3::OUT_LEN;
const EXPIRY: usize = 8;

/// What the ticket opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// A group of a dataset's shards.
    Group(Value),
    /// A consumer's place in a job.
    Job(Value),
    /// A planned query; its id is what cancels it.
    Query { id: String, payload: Value },
    /// A Flight SQL command that asks about the server, in base64.
    Command(String),
    /// A prepared statement, with values if they are bound. A handle, not a ticket.
    Prepared(Statement),
    /// What a session has set. A cookie, not a ticket.
    Options(SessionOptions),
    /// A session's bearer token, made by `Handshake`.
    Session,
    /// Says of a process that it belongs to the root: it knows the secret.
    Member,
}

/// The secret that signs tickets; shared by the nodes of one root.
#[derive(Clone)]
pub struct TicketKey([u8; 32]);

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

impl TicketKey {
    /// A key of this process alone: its tickets die with it.
    pub fn random() -> Self {
        Self(Self::random_secret())
    }

    /// A secret to derive a root's key from, for whoever keeps it.
    pub fn random_secret() -> [u8; 32] {
        let mut seed = blake3::Hasher::new_derive_key("forebay 2026 random ticket key");
        for _ in 0..3 {
            seed.update(uuid::Uuid::new_v4().as_bytes());
        }
        *seed.finalize().as_bytes()
    }

    /// The same key for everyone who knows the secret.
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key("forebay 2026 ticket key", secret))
    }

    /// A hash that only holders of the key can make; `Hash` compares in constant time.
    pub(crate) fn hash(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, bytes)
    }

    /// Signs a claim that is good for `term` from now.
    ///
    /// # Errors
    /// `Internal` when the payload cannot be written as JSON.
    pub fn sign(&self, claim: &Claim, term: Duration) -> Result<Bytes> {
        self.sign_at(claim, now_s().saturating_add(term.as_secs()))
    }

    fn sign_at(&self, claim: &Claim, expires_s: u64) -> Result<Bytes> {
        let json = serde_json::to_vec(claim).map_err(|e| Error::internal(format!("writing a ticket: {e}")))?;
        let mut raw = Vec::with_capacity(MAC + EXPIRY + json.len());
        raw.extend_from_slice(&[0; MAC]);
        raw.extend_from_slice(&expires_s.to_le_bytes());
        raw.extend_from_slice(&json);
        let mac = self.hash(&raw[MAC..]);
        raw[..MAC].copy_from_slice(mac.as_bytes());
        let mut out = PREFIX.to_vec();
        out.extend_from_slice(BASE64.encode(&raw).as_bytes());
        Ok(out.into())
    }

    /// The claim of a ticket that this key signed and that has not expired. Nothing of it is parsed before the MAC is checked.
    ///
    /// # Errors
    /// `Unauthenticated` for anything that this key did not sign, `FailedPrecondition` after expiry.
    pub fn open(&self, ticket: &[u8]) -> Result<Claim> {
        self.open_at(ticket, now_s())
    }

    fn open_at(&self, ticket: &[u8], now_s: u64) -> Result<Claim> {
        let refused = || {
            Error::new(Kind::Unauthenticated, "this is not a ticket of this server").with_remedy("call GetFlightInfo again for a new one")
        };
        let raw = ticket.strip_prefix(PREFIX).and_then(|text| BASE64.decode(text).ok()).ok_or_else(refused)?;
        if raw.len() < MAC + EXPIRY {
            return Err(refused());
        }
        let (mac, signed) = raw.split_at(MAC);
        let mac = blake3::Hash::from_slice(mac).map_err(|_| refused())?;
        // `Hash` compares in constant time.
        if self.hash(signed) != mac {
            return Err(refused());
        }
        let (expiry, json) = signed.split_at(EXPIRY);
        let expires_s = u64::from_le_bytes(expiry.try_into().map_err(|_| refused())?);
        if now_s >= expires_s {
            return Err(Error::failed_precondition(format!("the ticket expired {} s ago", now_s - expires_s))
                .with_remedy("call GetFlightInfo again for a new one"));
        }
        serde_json::from_slice(json).map_err(|_| refused())
    }
}

/// True for bytes that claim to be a ticket, as against a JSON command.
pub fn looks_like_ticket(bytes: &[u8]) -> bool {
    bytes.starts_with(PREFIX)
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests;
