"""Batches for trainers from Forebay, over Arrow Flight.

``connect`` gives a client of a server, or of a root on this machine; ``client.loader`` gives batches as numpy arrays, torch tensors or Arrow.
"""

from .client import Client, Dataset, connect
from .errors import (
    AlreadyExists,
    BadInput,
    Cancelled,
    Corrupt,
    Error,
    FailedPrecondition,
    Internal,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from .loader import Loader

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BadInput",
    "Cancelled",
    "Client",
    "Corrupt",
    "Dataset",
    "Error",
    "FailedPrecondition",
    "Internal",
    "Loader",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "connect",
]
