"""Roles and trainers as processes of their own, and the check that the ledger agrees with what the trainers counted."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

needs_binary = pytest.mark.skipif("FOREBAY_BIN" not in os.environ, reason="names the binary to start")

# A trainer: it says what it takes, batch by batch, and how it ended.
TRAINER = """
import json, sys, time
import forebay

addresses, settings, pause = json.loads(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3])
with forebay.connect(",".join(addresses)) as client:
    loader = client.loader("points", timeout=90, **settings)
    try:
        with loader:
            for _ in range(settings.get("epochs") or 1):
                for batch in loader:
                    meta = loader.meta
                    told = {"consumer": loader._settings["consumer"], "pass": meta["pass"], "batch": meta["batch"]}
                    told |= {"rows": len(batch["x"]), "padding": meta.get("padding", False), "step": meta["step"]}
                    told |= {"digest": meta["digest"]}
                    print(json.dumps(told), flush=True)
                    time.sleep(pause)
        print(json.dumps({"end": True}), flush=True)
    except forebay.Error as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""


def free_port() -> int:
    """A port of this host that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Role:
    """A role of the real binary, killed without a word."""

    def __init__(self, *args: str):
        self.args = args
        self.start()

    def start(self) -> None:
        """Starts it, again after a kill."""
        command = [os.environ["FOREBAY_BIN"], *self.args, "--http", "127.0.0.1:0", "--json"]
        environment = os.environ | {"FOREBAY_PYTHON_ALLOW": "true", "FOREBAY_SOURCES_ALLOW": "/"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.log: list[str] = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        line = self.process.stdout.readline()
        assert line, f"{self.args[0]} did not start: {self.log}"
        self.address = json.loads(line)["address"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Trainer:
    """A trainer's process and what it said it took."""

    def __init__(self, addresses: list[str], pause: float = 0.0, **settings):
        command = [sys.executable, "-c", TRAINER, json.dumps(addresses), json.dumps(settings), str(pause)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.told: list[dict] = []
        self.end: dict | None = None

    def lines(self) -> Iterator[dict]:
        """What it says, until it ends or is killed."""
        for line in self.process.stdout:
            told = json.loads(line)
            if "batch" not in told:
                self.end = told
                return
            self.told.append(told)
            yield told

    def take(self, count: int) -> None:
        """Waits until it has taken so many more."""
        for _, _ in zip(range(count), self.lines(), strict=False):
            pass
        assert self.end is None, self.end

    def finish(self) -> dict:
        """Waits for its end."""
        for _ in self.lines():
            pass
        self.process.wait()
        return self.end or {"killed": True}

    def kill(self) -> None:
        """What it had said before still counts as taken."""
        self.process.kill()
        self.finish()


@contextlib.contextmanager
def started():
    """Starts roles and trainers, and kills what is left of them."""
    all_of_them: list[Role | Trainer] = []

    def start(kind, *args, **settings):
        all_of_them.append(kind(*args, **settings))
        return all_of_them[-1]

    try:
        yield start
    finally:
        for each in all_of_them:
            with contextlib.suppress(ProcessLookupError):
                each.process.kill()
            each.process.wait()


def check_ledger(client, job: str, trainers: list[Trainer], batches: int, passes: int, once: bool = True) -> Counter:
    """``system.visits`` and ``system.losses`` against the trainers' own count; gives how many visits ended in which state.

    ``once``: nothing may be taken twice. What was taken is acknowledged or, where a process died, named as lost: it may have arrived.
    """
    query = f"SELECT pass, batch, consumer, state, rows, reason FROM system.visits WHERE job = '{job}'"
    visits = client.sql(query).to_pylist()
    end = time.monotonic() + 60
    while any(v["state"] in ("granted", "sent") for v in visits) and time.monotonic() < end:
        # What a dead worker held is decided when its lease ends.
        time.sleep(0.5)
        visits = client.sql(query).to_pylist()
    assert len({(v["pass"], v["batch"]) for v in visits}) == batches * passes, "every batch has a visit"
    assert len(visits) == batches * passes, "and no more than one"
    states = Counter(v["state"] for v in visits)
    assert set(states) <= {"acknowledged", "lost", "dropped"}, "nothing is open when all is over"
    lost = [v for v in visits if v["state"] in ("lost", "dropped")]
    assert all(v["reason"] for v in lost), "what is missing is explained"
    told = client.sql(f"SELECT count(*) AS n FROM system.losses WHERE job = '{job}'")["n"][0].as_py()
    assert told == len(lost)

    taken = Counter((t["pass"], t["batch"]) for trainer in trainers for t in trainer.told if not t["padding"])
    if once:
        assert max(taken.values()) == 1, "nothing is taken twice"
    mine = {(t["consumer"], t["pass"], t["batch"]): t["rows"] for trainer in trainers for t in trainer.told}
    for visit in visits:
        key = (visit["consumer"], visit["pass"], visit["batch"])
        if visit["state"] == "acknowledged":
            assert mine.get(key) == visit["rows"], f"{key} was acknowledged by somebody who never said so"
        if visit["state"] == "dropped":
            assert key[1:] not in taken
    accounted = {(v["pass"], v["batch"]) for v in visits if v["state"] in ("acknowledged", "lost")}
    assert set(taken) <= accounted
    return states
