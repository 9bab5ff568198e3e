//! One error for the core's decisions: a kind for callers, a message that names the thing, and a remedy where there is one.

use std::fmt;

/// What a caller can do about an error; each shell maps it once (gRPC status, exit status).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The caller's input is wrong: a spec, a flag, a query, a row. Exit status 2.
    BadInput,
    /// The named thing does not exist. Exit status 2.
    NotFound,
    /// The named thing exists and differs. Exit status 2.
    AlreadyExists,
    /// Right input, wrong moment: a finished job, a changed pipeline. Exit status 2.
    FailedPrecondition,
    /// No or a wrong token.
    Unauthenticated,
    /// A setting of the server forbids it; the message names the setting.
    PermissionDenied,
    /// A byte, row, time or concurrency limit was reached.
    ResourceExhausted,
    /// The server or the root's owner cannot be reached. Exit status 3.
    Unavailable,
    /// Known, and not supported by this version.
    Unsupported,
    /// The caller went away or asked to stop.
    Cancelled,
    /// Stored bytes are not what the log says.
    Corrupt,
    /// Everything else: I/O that failed, a bug.
    Internal,
}

/// An error with its kind. `Display` is one line: the message, then the remedy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
    pub remedy: Option<String>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: None }
    }

    pub fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Kind::BadInput, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(Kind::FailedPrecondition, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// Says what to do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Puts what was being done in front of the message.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
