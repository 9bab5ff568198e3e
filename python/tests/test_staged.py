"""Training while an epoch is being written: `order="staged"`, with real processes and a step that goes on when the test says so."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import forebay
import pytest
from roles import Role, Trainer, check_ledger, free_port, needs_binary, started

FILES, ROWS = 8, 50
BATCHES = FILES * ROWS // 10
# Four digits each, so that all files have one size.
FIRST = 1000

# Each source file is a task; its rows are let through when the file of its number exists.
GATE = """
import os
import time


def wait(batch, gates):
    if batch.num_rows == 0:
        return batch.select(["x"])
    first = batch.column("x")[0].as_py()
    gate = os.path.join(gates, str((first - 1000) // 50))
    while not os.path.exists(gate):
        time.sleep(0.01)
    with open(gate) as file:
        if file.read() == "fail":
            raise ValueError(f"the gate of row {first} is shut for good")
    return batch.select(["x"])
"""

PIPELINE = """
name = "points"

[source]
uri = "data/*.csv"
format = "csv"
options = {{ task_size = 260 }}

[[steps]]
name = "pass"
sql = "SELECT x FROM input"

[[steps]]
name = "gate"
python = "gate:wait"
options = {{ gates = "{gates}" }}

[epochs]
count = {epochs}
seed = 3

[output]
row_group_size = "1KiB"
"""

# Windows of about two tasks.
SETTINGS = {"order": "staged", "batch_size": 10, "window": "1KiB", "seed": 5}


class Gated:
    """A pipeline of eight tasks, and the gates that let them through."""

    def __init__(self, folder: Path, epochs: int = 1):
        self.folder, self.gates = folder, folder / "gates"
        self.gates.mkdir()
        (folder / "data").mkdir()
        for file in range(FILES):
            rows = "".join(f"{FIRST + file * ROWS + row}\n" for row in range(ROWS))
            (folder / "data" / f"f{file}.csv").write_text(f"x\n{rows}")
        (folder / "gate.py").write_text(GATE)
        self.pipeline = folder / "points.toml"
        self.pipeline.write_text(PIPELINE.format(gates=self.gates, epochs=epochs))

    def open(self, *numbers: int, what: str = "") -> None:
        for number in numbers:
            made = self.gates / f".{number}"
            made.write_text(what)
            made.rename(self.gates / str(number))

    def materialize(self, client) -> None:
        client.materialize(self.pipeline, wait=False, progress=False)


def published(client) -> list[int]:
    """Epochs that a version has, by the versions and not by what the run says."""
    return [row["epoch"] for row in client.sql("SELECT DISTINCT epoch FROM system.epochs").to_pylist()]


def staged_tasks(client) -> int:
    return client.sql("SELECT count(*) AS n FROM system.tasks WHERE state = 'staged'")["n"][0].as_py()


def until(what: str, condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


def planned(client, **of) -> dict[int, dict]:
    """What a plan says of each of its batches."""
    batches = client.action("forebay.plan", {"pass": 0, **of})[0]["batches"]
    each = [
        client.action("forebay.plan", {"pass": 0, "batch": batch, **of})[0]["selected"][0] for batch in range(batches)
    ]
    return {batch["batch"]: batch for batch in each}


def digests(batches: dict[int, dict]) -> dict[int, str]:
    return {number: batch["digest"] for number, batch in batches.items()}


def read(loader) -> dict[int, str]:
    """One pass: the digest of each batch, none twice."""
    taken: dict[int, str] = {}
    for _ in loader:
        assert loader.meta["batch"] not in taken
        taken[loader.meta["batch"]] = loader.meta["digest"]
    return taken


@pytest.fixture
def gated(tmp_path):
    return Gated(tmp_path)


@needs_binary
def test_s29_a_trainer_reads_what_is_staged_before_the_epoch_is_published(gated, tmp_path):
    with started() as start:
        listen = f"127.0.0.1:{free_port()}"
        dispatcher = start(Role, "dispatcher", "--root", str(tmp_path / "root"), "--listen", listen)
        addresses = [dispatcher.address]
        for name in ("w0", "w1"):
            start(Role, "worker", "--dispatcher", dispatcher.address, "--name", name, "--slots", "4")
        with forebay.connect(dispatcher.address) as client:
            gated.materialize(client)
            # Before anything is staged: the trainer waits.
            trainer = start(Trainer, addresses, job="early", consumer="t", **SETTINGS)
            patient = start(Trainer, addresses, job="patient", consumer="p", **SETTINGS | {"order": "published"})
            until("the trainers join", lambda: client.sql("SELECT * FROM system.consumers").num_rows == 2)
            assert staged_tasks(client) == 0
            gated.open(5, 2, 7)
            trainer.take(1)
            assert published(client) == [], "the first batch came before the publication"
            # What can be read by now has a plan, too.
            begun = digests(planned(client, job="early"))
            assert 0 < len(begun) < BATCHES
            gated.open(0, 1)
            trainer.take(5)
            assert published(client) == []
            dispatcher.kill()
            dispatcher.start()
            gated.open(3)
            trainer.take(2)
            assert published(client) == [], "it goes on behind a restarted dispatcher, and the epoch is not there yet"
            gated.open(4, 6)
            assert trainer.finish() == {"end": True}
            until("the epoch is published", lambda: published(client) == [0])
            states = check_ledger(client, "early", [trainer], BATCHES, 1)
            assert states["acknowledged"] == BATCHES, "a dispatcher's death loses nothing"
            assert client.sql("SELECT x FROM points ORDER BY x")["x"].to_pylist() == list(
                range(FIRST, FIRST + FILES * ROWS)
            )
            taken = {told["batch"]: told["digest"] for told in trainer.told}

            # What a later job gets is the same, batch by batch, and so is what the plan said and says.
            assert begun.items() <= taken.items()
            plan = planned(client, dataset="points", **SETTINGS)
            assert digests(plan) == taken
            assert sorted(i for batch in plan.values() for i in batch["ids"]) == sorted(
                client.sql("SELECT _id FROM points")["_id"].to_pylist()
            )
            assert digests(planned(client, job="early")) == taken
            with client.loader("points", job="late", **SETTINGS) as late:
                assert len(late) == BATCHES
                assert read(late) == taken
            # Whoever waited for the publication has the rows in another order.
            assert patient.finish() == {"end": True}
            check_ledger(client, "patient", [patient], BATCHES, 1)
            assert {told["batch"]: told["digest"] for told in patient.told} != taken
            shown = forebay_json("read", "points", *flags(), "--digest", "--server", dispatcher.address)
            assert shown["digest"] == client.action("forebay.job.status", {"job": "early"})[0]["digest"]


def flags() -> list[str]:
    return ["--order", "staged", "--batch-size", "10", "--window", "1KiB", "--seed", "5"]


def forebay_json(*args: str) -> dict:
    """The answer of the binary."""
    command = [os.environ["FOREBAY_BIN"], *args, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@needs_binary
def test_s29_a_run_that_fails_ends_the_job_with_its_reason(gated, tmp_path):
    with started() as start:
        server = start(Role, "serve", "--root", str(tmp_path / "root"), "--listen", "127.0.0.1:0", "--slots", "8")
        with forebay.connect(server.address) as client:
            gated.materialize(client)
            trainer = start(Trainer, [server.address], job="early", consumer="t", **SETTINGS)
            gated.open(3, 4, 5)
            trainer.take(1)
            gated.open(6, what="fail")
            end = trainer.finish()
            assert "the gate of row 1300 is shut for good" in end["error"], end
            assert published(client) == []
            job = client.action("forebay.job.status", {"job": "early"})[0]
            assert job["state"] == "failed"
            with (
                pytest.raises(forebay.Error, match="the gate of row 1300"),
                client.loader("points", job="early", **SETTINGS) as late,
            ):
                read(late)
            # What can't be done is said before anything is read.
            for refused in ({"filter": "x = 1"}, {"rank": 0, "world_size": 2}):
                with (
                    pytest.raises(forebay.BadInput, match="staged"),
                    client.loader("points", job="no", **SETTINGS | refused) as loader,
                ):
                    read(loader)


@needs_binary
def test_ranks_commit_and_go_on_at_another_world_size_while_the_epoch_is_written(gated, tmp_path):
    with started() as start:
        server = start(Role, "serve", "--root", str(tmp_path / "root"), "--listen", "127.0.0.1:0", "--slots", "8")
        with forebay.connect(server.address) as client:
            gated.materialize(client)
            settings = SETTINGS | {"assignment": "static", "visitation": "exactly_once", "end": "pad"}
            gated.open(0, 1, 2, 3)
            state, first = None, {}

            def begin(rank: int) -> None:
                nonlocal state
                with forebay.connect(server.address) as mine:
                    loader = mine.loader("points", job="ranks", rank=rank, world_size=2, timeout=90, **settings)
                    with loader:
                        for step, _ in enumerate(loader):
                            first[rank, step] = loader.meta["batch"], loader.meta["digest"]
                            if step == 2:
                                state = loader.state_dict()
                                break

            ranks = [threading.Thread(target=begin, args=(rank,)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert published(client) == [] and len(first) == 6
            with client.loader("points", job="ranks", rank=0, world_size=1, timeout=90, **settings) as loader:
                loader.load_state_dict(state)
                rest, batches = {}, iter(loader)
                next(batches)
                rest[loader.meta["batch"]] = loader.meta["digest"]
                assert published(client) == []
                gated.open(4, 5, 6, 7)
                for _ in batches:
                    assert loader.meta["batch"] not in rest
                    rest[loader.meta["batch"]] = loader.meta["digest"]
            before = dict(first.values())
            assert sorted(before) == list(range(6)) and sorted(rest) == list(range(6, BATCHES))
            assert digests(planned(client, dataset="points", **SETTINGS)) == before | rest


@pytest.mark.parametrize("kill", [True, False])
@needs_binary
def test_serve_goes_on_with_the_run_that_the_one_before_it_left(gated, tmp_path, kill):
    with started() as start:
        server = start(Role, "serve", "--root", str(tmp_path / "root"))
        with forebay.connect(server.address) as client:
            gated.materialize(client)
            gated.open(0, 1)
            until("some tasks are staged", lambda: staged_tasks(client) == 2)
        if kill:
            server.kill()
        else:
            server.process.terminate()
            server.process.wait()
        gated.open(*range(2, FILES))
        server.start()
        with forebay.connect(server.address) as client:
            until("the epoch is published, and nobody asked again", lambda: published(client) == [0])
            assert client.sql("SELECT count(DISTINCT x) AS n FROM points")["n"].to_pylist() == [FILES * ROWS]
