"""One exception class per kind of error, made from what Flight raises.

The server sends its error as JSON in the status details and the same text in the message. pyarrow keeps the details for some codes only, so
for the others the message and the gRPC code that it quotes are read.
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
_BY_CODE = {
    1: Cancelled,
    3: BadInput,
    4: Cancelled,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: FailedPrecondition,
    11: ResourceExhausted,
    12: Unsupported,
    14: Unavailable,
    15: Corrupt,
    16: Unauthenticated,
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
_CODE = re.compile(r"grpc_status:\s*(\d+)")
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
    text = str(error)
    message = _NOISE.sub("", text).removeprefix("Flight returned ").removeprefix("gRPC returned ").strip() or text
    message = re.sub(r"^[a-z ]+ error, with message: ", "", message)
    if code := _CODE.search(text):
        return _BY_CODE.get(int(code.group(1)), Internal)(message)
    for raised, kind in _BY_TYPE:
        if isinstance(error, raised):
            return kind(message)
    return Internal(message)


@contextlib.contextmanager
def translated():
    """Turns pyarrow's exceptions into ours."""
    try:
        yield
    except (pa.lib.ArrowException, flight.FlightError) as error:
        raise from_flight(error) from error
