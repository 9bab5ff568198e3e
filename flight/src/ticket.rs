//! Tickets and tokens: what a client carries and must not be able to make.
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

const PREFIX: &[u8] = b"fb1.";
const MAC: usize = blake3::OUT_LEN;
const EXPIRY: usize = 8;

/// What the ticket opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// A group of a dataset's shards.
    Group(Value),
    /// A consumer's place in a job.
    Job(Value),
    /// A planned query.
    Query(Value),
    /// A session's bearer token, made by `Handshake`.
    Session,
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
        let mut seed = blake3::Hasher::new_derive_key("forebay 2026 random ticket key");
        for _ in 0..3 {
            seed.update(uuid::Uuid::new_v4().as_bytes());
        }
        Self(*seed.finalize().as_bytes())
    }

    /// The same key for everyone who knows the secret.
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key("forebay 2026 ticket key", secret))
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
        let mac = blake3::keyed_hash(&self.0, &raw[MAC..]);
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
        if blake3::keyed_hash(&self.0, signed) != mac {
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

/// Who may call. Without a token everyone may.
#[derive(Clone, Debug)]
pub struct Gate {
    expected: Option<blake3::Hash>,
    key: TicketKey,
}

impl Gate {
    /// `token: None` opens the gate.
    pub fn new(token: Option<&str>, key: TicketKey) -> Self {
        let expected = token.map(|token| blake3::keyed_hash(&key.0, token.as_bytes()));
        Self { expected, key }
    }

    /// Whether a token is asked for.
    pub fn closed(&self) -> bool {
        self.expected.is_some()
    }

    fn is_token(&self, presented: &[u8]) -> bool {
        // Hashes of equal length, compared in constant time: neither length nor prefix of the token shows in the timing.
        self.expected.is_some_and(|expected| blake3::keyed_hash(&self.key.0, presented) == expected)
    }

    /// Checks the `authorization` header of one call: `Bearer` (any case) and the token, or a session token from `Handshake`.
    ///
    /// # Errors
    /// `Unauthenticated`; the text never repeats what was presented.
    pub fn check(&self, authorization: Option<&[u8]>) -> Result<()> {
        if !self.closed() {
            return Ok(());
        }
        let presented = bearer(authorization.ok_or_else(missing)?).ok_or_else(malformed)?;
        if self.is_token(presented) || matches!(self.key.open(presented), Ok(Claim::Session)) {
            return Ok(());
        }
        Err(wrong())
    }

    /// `Handshake`: a bearer token, or `Basic` credentials whose password is the token; answers with a session token.
    ///
    /// # Errors
    /// `Unauthenticated` for wrong or malformed credentials.
    pub fn session(&self, authorization: Option<&[u8]>, basic: Option<(&str, &str)>, term: Duration) -> Result<Bytes> {
        let good = match (basic, authorization) {
            (Some((_, password)), _) => self.is_token(password.as_bytes()),
            (None, Some(header)) => match scheme(header) {
                Some((name, text)) if name.eq_ignore_ascii_case(b"basic") => {
                    let decoded = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| malformed())?;
                    // A password may hold colons, a user name may not.
                    let colon = decoded.iter().position(|&b| b == b':').ok_or_else(malformed)?;
                    self.is_token(&decoded[colon + 1..])
                }
                Some((name, text)) if name.eq_ignore_ascii_case(b"bearer") => self.check(Some(header)).is_ok() && !text.is_empty(),
                _ => return Err(malformed()),
            },
            (None, None) => return Err(missing()),
        };
        if !good {
            return Err(wrong());
        }
        self.key.sign(&Claim::Session, term)
    }
}

fn scheme(header: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = header.trim_ascii();
    let space = header.iter().position(|&b| b == b' ')?;
    let text = header[space..].trim_ascii();
    (!text.is_empty() && !text.contains(&b' ')).then_some((&header[..space], text))
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    scheme(header).filter(|(name, _)| name.eq_ignore_ascii_case(b"bearer")).map(|(_, text)| text)
}

fn missing() -> Error {
    Error::new(Kind::Unauthenticated, "this server asks for a token")
        .with_remedy("give --token, FOREBAY_TOKEN or an `authorization: Bearer` header")
}

fn malformed() -> Error {
    Error::new(Kind::Unauthenticated, "malformed `authorization` header").with_remedy("send `authorization: Bearer TOKEN`")
}

fn wrong() -> Error {
    Error::new(Kind::Unauthenticated, "wrong token").with_remedy("check --token or FOREBAY_TOKEN against the server's")
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests;
