//! Tokens: who may call.
//!
//! One token per server for now. It is compared as a hash, so that neither its length nor its beginning shows in the timing, and is never
//! repeated in an error.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use std::time::Duration;

use crate::ticket::{Claim, TicketKey};

/// Some clients pad, as HTTP says, and some (ADBC) do not.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

/// Who may call. Without a token everyone may.
#[derive(Clone, Debug)]
pub struct Gate {
    expected: Option<blake3::Hash>,
    key: TicketKey,
}

impl Gate {
    /// `token: None` opens the gate.
    pub fn new(token: Option<&str>, key: TicketKey) -> Self {
        let expected = token.map(|token| key.hash(token.as_bytes()));
        Self { expected, key }
    }

    /// Whether a token is asked for.
    pub fn closed(&self) -> bool {
        self.expected.is_some()
    }

    fn is_token(&self, presented: &[u8]) -> bool {
        // Hashes of equal length, compared in constant time: neither length nor prefix of the token shows in the timing.
        self.expected.is_some_and(|expected| self.key.hash(presented) == expected)
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

    /// Checks that a call comes from a process of the same root. The token of clients is not enough, and is not asked for.
    ///
    /// # Errors
    /// `Unauthenticated`.
    pub fn check_member(&self, authorization: Option<&[u8]>) -> Result<()> {
        let presented = bearer(authorization.ok_or_else(stranger)?).ok_or_else(stranger)?;
        if matches!(self.key.open(presented), Ok(Claim::Member)) { Ok(()) } else { Err(stranger()) }
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
                    let decoded = BASE64.decode(text).map_err(|_| malformed())?;
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

/// Whether an `authorization` header carries the token as a bearer; for servers beside Flight.
pub fn bearer_matches(header: &str, token: &str) -> bool {
    bearer(header.as_bytes()).is_some_and(|presented| blake3::hash(presented) == blake3::hash(token.as_bytes()))
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

fn stranger() -> Error {
    Error::new(Kind::Unauthenticated, "parts of queries are taken from processes of the same root only")
        .with_remedy("ask queries of the dispatcher, as statements")
}

fn wrong() -> Error {
    Error::new(Kind::Unauthenticated, "wrong token").with_remedy("check --token or FOREBAY_TOKEN against the server's")
}

#[cfg(test)]
mod tests;
