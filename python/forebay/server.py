"""A root without a server: finds the one that owns it, or starts `forebay serve` for as long as the client lives."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .errors import BadInput, FailedPrecondition, NotFound, Unavailable

START_SECONDS = 60.0


def find_binary() -> str:
    """The `forebay` binary: FOREBAY_BIN, PATH, or a source checkout's target folder."""
    named = os.environ.get("FOREBAY_BIN")
    if named:
        return named
    if found := shutil.which("forebay"):
        return found
    targets = [os.environ.get("CARGO_TARGET_DIR"), "~/.cache/forebay/target"]
    targets += [parent / "target" for parent in Path(__file__).resolve().parents]
    for target in filter(None, targets):
        for profile in ("release", "debug"):
            path = Path(target).expanduser() / profile / "forebay"
            if path.is_file():
                return str(path)
    raise NotFound("the `forebay` binary was not found", "set FOREBAY_BIN to it, or put it on the PATH")


def find_owner(root: str) -> str | None:
    """The address of the live owner of a local root, if there is one."""
    lock = Path(root.removeprefix("file://")) / ".forebay.lock"
    try:
        file = lock.open("rb")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                address = json.loads(file.read())["address"]
            except (ValueError, KeyError):
                return None
            return address if "://" in address else f"grpc://{address}"
        except OSError:
            return None
    return None


class EmbeddedServer:
    """A server process of ours on a free loopback port."""

    def __init__(self, root: str, token: str | None = None):
        if "://" not in root:
            try:
                Path(root).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(f"`{root}` cannot be a root: {error.strerror}", "name a folder") from None
        # `--embedded`: a free port, what this user may do is allowed, and it ends when our end of its stdin closes, however we end.
        command = [find_binary(), "serve", "--embedded", "--root", root, "--json"]
        env = {k: v for k, v in os.environ.items() if k not in ("FOREBAY_SERVER", "FOREBAY_LISTEN", "FOREBAY_HTTP")}
        env.setdefault("FOREBAY_PYTHON", sys.executable)
        env |= {"FOREBAY_TOKEN": token} if token else {}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise NotFound(
                f"`{command[0]}` cannot be started: {error.strerror}", "set FOREBAY_BIN to the binary"
            ) from None
        line = self._first_line()
        if not line:
            failure = self._failure(root)
            self.close()
            raise failure
        self.address = json.loads(line)["address"]

    def _first_line(self) -> bytes:
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.append(self._process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(START_SECONDS)
        return lines[0] if lines else b""

    def _failure(self, root: str) -> Exception:
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        message = "\n".join(said[-5:]) or "it said nothing"
        kind = Unavailable if self._process.returncode == 3 else FailedPrecondition
        return kind(f"the server of the root `{root}` did not start: {message}")

    def close(self) -> None:
        """Stops the server and waits for it."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._said.close()
