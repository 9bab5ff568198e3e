"""Roles and trainers as processes of their own, and the check that the ledger agrees with what the trainers counted."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
import pytest

needs_binary = pytest.mark.skipif("FOREBAY_BIN" not in os.environ, reason="names the binary to start")

# A trainer: it says what it takes, batch by batch, and how it ended. Each batch is taken when its parent allows it, so that no test depends on how
# fast it is.
TRAINER = """
import json, sys, time
import forebay

addresses, settings, pause = json.loads(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3])
dataset, column = settings.pop("dataset", "points"), settings.pop("column", "x")
free = False


def allowed():
    global free
    free = free or sys.stdin.readline() != "one\\n"


with forebay.connect(",".join(addresses)) as client:
    loader = client.loader(dataset, **{"timeout": 90} | settings)
    try:
        with loader:
            passes = settings.get("epochs") or 1
            for _ in range(len(passes) if isinstance(passes, list) else passes):
                for batch in loader:
                    allowed()
                    meta = loader.meta
                    told = {"consumer": loader._settings["consumer"], "pass": meta["pass"], "batch": meta["batch"]}
                    told |= {"rows": len(batch[column]), "padding": meta.get("padding", False), "step": meta["step"]}
                    told |= {"values": [int(value) for value in batch[column]]}
                    print(json.dumps(told), flush=True)
                    time.sleep(pause)
        print(json.dumps({"end": True}), flush=True)
    except forebay.Error as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""


def until(done: Callable[[], bool], what: str, seconds: float = 90) -> None:
    """Waits for a condition; the time is far above what it takes, and only bounds a failure."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


class Role:
    """A role of the real binary, killed without a word. Started again, it listens where it did."""

    def __init__(self, *args: str, **environment: str):
        self.args, self.environment = list(args), environment
        if "--listen" not in args:
            self.args += ["--listen", "127.0.0.1:0"]
        self.start()

    def start(self, **environment: str) -> None:
        """Starts it, again after a kill, with this environment beside its own."""
        # Whoever has its port by now is about to go: nobody else is meant to listen there.
        for _ in range(40):
            if self._started(environment):
                return
            time.sleep(0.25)
        raise AssertionError(f"{self.args[0]} did not start: {self.log}")

    def _started(self, environment: dict[str, str]) -> bool:
        command = [os.environ["FOREBAY_BIN"], *self.args, "--http", "127.0.0.1:0", "--json"]
        environment = {"FOREBAY_PYTHON_ALLOW": "true", "FOREBAY_SOURCES_ALLOW": "/"} | self.environment | environment
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
        self.log: list[str] = []
        reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        reader.start()
        if line := self.process.stdout.readline():
            about = json.loads(line)
            self.address, self.http = about["address"], about["http"]
            self.args[self.args.index("--listen") + 1] = self.address.split("://")[-1]
            return True
        self.process.wait()
        reader.join()
        assert any("can't listen on" in said for said in self.log), f"{self.args[0]} did not start: {self.log}"
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def died(self) -> None:
        """Waits until it has ended by itself."""
        self.process.wait(120)


class Trainer:
    """A trainer's process and what it said it took."""

    def __init__(self, addresses: list[str], pause: float = 0.0, **settings):
        command = [sys.executable, "-c", TRAINER, json.dumps(addresses), json.dumps(settings), str(pause)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.told: list[dict] = []
        self.end: dict | None = None

    def allow(self, what: str) -> None:
        """Lets it take ``"one"`` more batch, or as many as there are: ``"all"``."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()

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
        """Lets it take so many more, and waits until it has."""
        together([self], count)

    def finish(self) -> dict:
        """Lets it go on, and waits for its end."""
        self.allow("all")
        for _ in self.lines():
            pass
        self.process.wait()
        return self.end or {"killed": True}

    def kill(self) -> None:
        """What it had said before still counts as taken."""
        self.process.kill()
        self.finish()


def together(trainers: list[Trainer], count: int) -> None:
    """Lets each take so many more, at once, and waits until all have."""
    for trainer in trainers:
        for _ in range(count):
            trainer.allow("one")
    for trainer in trainers:
        for _, _ in zip(range(count), trainer.lines(), strict=False):
            pass
        assert trainer.end is None, trainer.end


def finished(trainers: list[Trainer]) -> list[dict]:
    """Lets all of them go on, and waits for their ends."""
    for trainer in trainers:
        trainer.allow("all")
    return [trainer.finish() for trainer in trainers]


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


def lead(start, root: Path, folder: Path | None = None, **environment: str) -> Role:
    """A dispatcher with a short lease, on whose root the dataset of ``folder`` is stored."""
    if folder is not None:
        with forebay.connect(root=root) as client:
            client.materialize(folder / "points.toml", progress=False)
    return start(Role, "dispatcher", "--root", str(root), "--lease", "15s", **environment)


def worker(start, leader: Role, name: str, *args: str, **environment: str) -> Role:
    return start(Role, "worker", "--dispatcher", leader.address, "--name", name, *args, **environment)


def workers_there(client, count: int) -> None:
    """Waits until so many workers are registered."""
    query = "SELECT count(address) AS n FROM system.workers"
    until(lambda: client.sql(query)["n"][0].as_py() == count, f"{count} workers register")


def check_ledger(client, job: str, trainers: list[Trainer], batches: int, passes: int, once: bool = True) -> Counter:
    """``system.visits`` and ``system.losses`` against the trainers' own count; gives how many visits ended in which state.

    ``once``: nothing may be taken twice. What was taken is acknowledged or, where a process died, named as lost: it may have arrived.
    """
    query = f"SELECT pass, batch, consumer, state, rows, reason FROM system.visits WHERE job = '{job}'"
    visits = client.sql(query).to_pylist()
    end = time.monotonic() + 90
    while any(v["state"] in ("granted", "sent") for v in visits) and time.monotonic() < end:
        # What a dead worker held is decided when its lease ends.
        time.sleep(0.2)
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
