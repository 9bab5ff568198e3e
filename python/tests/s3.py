"""An S3 endpoint of the tests' own: moto's server behind a wrapper that makes conditional puts atomic and injects faults by a seed.

`python s3.py PORT SEED` serves until killed; a seed of 0 injects nothing, and `plain` makes it a store that renames and copies nothing and takes
a while for each list. Each fault is one that real stores show: 503 before anything is done, a
put that is applied and then answered with 500, a connection that is cut in the middle of an answer, an answer that takes its time.
"""

import random
import sys
import threading
import time

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

# Share of calls with a fault.
FAULTS = 0.08
# Seconds that a plain store takes for a list.
SLOW_LIST = 0.3


class Endpoint:
    """A WSGI application."""

    def __init__(self, seed: int, plain: bool = False):
        self._inner = DomainDispatcherApplication(create_backend_app)
        # moto looks whether a key exists and then writes it: two racing creates could both win.
        self._writing = threading.Lock()
        self._random = random.Random(seed)
        self._faulty = seed != 0
        self._plain = plain
        self.faults: dict[str, int] = {}
        self.lists = 0

    def _fault(self, method: str) -> str | None:
        if not self._faulty or self._random.random() >= FAULTS:
            return None
        kinds = ["unavailable", "slow", "cut"] + (["lost"] if method in ("PUT", "POST", "DELETE") else [])
        kind = self._random.choice(kinds)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        return kind

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] == "/faults":
            start_response("200 OK", [("content-type", "text/plain")])
            return [str(sum(self.faults.values())).encode()]
        if environ["PATH_INFO"] == "/lists":
            start_response("200 OK", [("content-type", "text/plain")])
            return [str(self.lists).encode()]
        if self._plain and "HTTP_X_AMZ_COPY_SOURCE" in environ:
            return _failed(start_response, "501 Not Implemented", "NotImplemented")
        if environ["REQUEST_METHOD"] == "GET" and "list-type" in environ["QUERY_STRING"]:
            self.lists += 1
            if self._plain:
                time.sleep(SLOW_LIST)
        fault = self._fault(environ["REQUEST_METHOD"])
        if fault == "unavailable":
            return _failed(start_response, "503 Service Unavailable", "SlowDown")
        if fault == "slow":
            time.sleep(self._random.uniform(0.05, 0.6))
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            with self._writing:
                body = list(self._inner(environ, start_response if fault != "lost" else _ignored))
        else:
            body = list(self._inner(environ, start_response))
        if fault == "lost":
            # It happened, and nobody is told.
            return _failed(start_response, "500 Internal Server Error", "InternalError")
        if fault == "cut" and sum(map(len, body)) > 1:
            return _cut(b"".join(body))
        return body


def _ignored(*_):
    return lambda _: None


def _failed(start_response, status: str, code: str):
    start_response(status, [("content-type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]


def _cut(body: bytes):
    yield body[: len(body) // 2]
    raise ConnectionResetError("injected")


if __name__ == "__main__":
    plain = sys.argv[2] == "plain"
    wsgi = Endpoint(0 if plain else int(sys.argv[2]), plain)
    endpoint = make_server("127.0.0.1", int(sys.argv[1]), wsgi, threaded=True)
    print(endpoint.server_port, flush=True)
    endpoint.serve_forever()
