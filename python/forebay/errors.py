"""One exception class per kind of error, made from what Flight raises.

The server sends its error as JSON in the status details and the same text in the message. Where pyarrow gives no details, the kind is read
from its words, and the message holds the remedy too.
"""

import contextlib
import json
import re

import pyarrow as pa
from pyarrow import flight


class Error(Exception):
    """An error of Forebay: ``kind`` says what can be done about it, ``remedy`` how (it may be None)."""

    kind = "internal"

    def __init__(self, message: str, remedy: str | None = None):
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message, self.remedy = message, remedy


class BadInput(Error):
    """The input is wrong: a setting, a query, a row."""

    kind = "bad_input"


class NotFound(Error):
    """The named thing does not exist."""

    kind = "not_found"


class AlreadyExists(Error):
    """The named thing exists and differs."""

    kind = "already_exists"


class FailedPrecondition(Error):
    """Right input, wrong moment: a finished job, a changed pipeline."""

    kind = "failed_precondition"


class Unauthenticated(Error):
    """No or a wrong token."""

    kind = "unauthenticated"


class PermissionDenied(Error):
    """A setting of the server forbids it; the message names the setting."""

    kind = "permission_denied"


class ResourceExhausted(Error):
    """A limit of bytes, rows, time or calls was reached."""

    kind = "resource_exhausted"


class Unavailable(Error):
    """The server or the root's owner cannot be reached."""

    kind = "unavailable"


class Unsupported(Error):
    """Known, and not supported by this version."""

    kind = "unsupported"


class Cancelled(Error):
    """Somebody asked to stop, or a time was up."""

    kind = "cancelled"


class Corrupt(Error):
    """Stored bytes are not what the log says."""

    kind = "corrupt"


class Internal(Error):
    """Everything else."""

    kind = "internal"


_BY_KIND = {
    c.kind: c
    for c in (
        BadInput,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Unauthenticated,
        PermissionDenied,
        ResourceExhausted,
        Unavailable,
        Unsupported,
        Cancelled,
        Corrupt,
        Internal,
    )
}
# pyarrow names the gRPC code in words, and loses it otherwise: these all come as a few classes without the server's details.
_BY_WORDS = {
    "invalid argument": BadInput,
    "not found": NotFound,
    "already exists": AlreadyExists,
    "precondition failed": FailedPrecondition,
    "unauthenticated": Unauthenticated,
    "unauthorized": PermissionDenied,
    "resource exhausted": ResourceExhausted,
    "out of range": ResourceExhausted,
    "unavailable": Unavailable,
    "unimplemented": Unsupported,
    "cancelled": Cancelled,
    "deadline exceeded": Cancelled,
    "timeout": Cancelled,
    "data loss": Corrupt,
    "internal": Internal,
}
_BY_TYPE = (
    (flight.FlightUnavailableError, Unavailable),
    (flight.FlightUnauthenticatedError, Unauthenticated),
    (flight.FlightUnauthorizedError, PermissionDenied),
    (flight.FlightCancelledError, Cancelled),
    (flight.FlightTimedOutError, Cancelled),
    (pa.lib.ArrowCancelled, Cancelled),
    (pa.lib.ArrowNotImplementedError, Unsupported),
    (pa.lib.ArrowKeyError, NotFound),
    (pa.lib.ArrowCapacityError, ResourceExhausted),
    (pa.lib.ArrowInvalid, BadInput),
)
_WORDS = re.compile(
    r"^(?:\w+: )?(?:Flight|gRPC) (?:returned (?P<what>[a-z ]+) error|(?P<call>[a-z ]+) call), with message: "
)
# What Arrow and gRPC put around the server's words.
_NOISE = re.compile(
    r"\.?\s*(gRPC client debug context:|Client context:|Detail: (Failed|Unavailable|Internal|Cancelled|Unauth)).*",
    re.DOTALL,
)


def make(kind: str, message: str, remedy: str | None = None) -> Error:
    """The exception of a kind's name."""
    return _BY_KIND.get(kind, Internal)(message, remedy)


def from_json(error: dict) -> Error:
    """The exception behind an error in an answer: ``{"kind", "message", "remedy"}``."""
    return make(error.get("kind", "internal"), error.get("message", "unknown error"), error.get("remedy"))


def from_flight(error: BaseException) -> Error:
    """The exception behind what pyarrow raised."""
    if isinstance(error, Error):
        return error
    details = getattr(error, "extra_info", None)
    if details and (start := bytes(details).find(b'{"kind"')) >= 0:
        with contextlib.suppress(ValueError):
            return from_json(json.JSONDecoder().raw_decode(bytes(details)[start:].decode(errors="replace"))[0])
    text = _NOISE.sub("", str(error)).strip() or str(error)
    if words := _WORDS.match(text):
        kind = _BY_WORDS.get(words["what"] or words["call"])
        message = text[words.end() :]
        if kind is not None:
            return kind(message)
        text = message
    for raised, kind in _BY_TYPE:
        if isinstance(error, raised):
            return kind(text)
    return Internal(text)


@contextlib.contextmanager
def translated():
    """Turns pyarrow's exceptions into ours."""
    try:
        yield
    except (pa.lib.ArrowException, flight.FlightError) as error:
        raise from_flight(error) from error
