"""Dispatchers that restart at awkward moments, lose their journal or have none, and jobs that nobody uses."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter

import forebay
import pyarrow as pa
import pytest
from conftest import ROWS
from pyarrow import flight
from roles import Trainer, check_ledger, finished, lead, needs_binary, started, together, until, worker

pytestmark = needs_binary

BATCH = 20
BATCHES = ROWS // BATCH


@pytest.fixture
def start():
    with started() as start:
        yield start


def refused(*args: str, **environment: str) -> subprocess.CompletedProcess:
    """A dispatcher that can't start, and says so by itself."""
    return subprocess.run(
        [os.environ["FOREBAY_BIN"], "dispatcher", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *args],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_s15_a_dispatcher_without_a_place_for_its_state_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    no_folder = refused("--root", str(tmp_path / "file"))
    assert no_folder.returncode == 2 and "file: it exists already" in no_folder.stderr, no_folder.stderr
    nothing = refused(FOREBAY_ROOT="")
    assert nothing.returncode == 2 and "--root" in nothing.stderr, nothing.stderr


@pytest.mark.parametrize("worker_dies", [True, False], ids=["worker-dies", "worker-lives"])
def test_s15_trainers_hear_that_the_dispatcher_lost_its_journal(start, folder, tmp_path, worker_dies):
    """Its job would begin again from the first row, and they would train on rows twice."""
    leader = lead(start, tmp_path / "root", folder)
    first = worker(start, leader, "w")
    promises = ("at_most_once", "exactly_once")
    settings = {"batch_size": BATCH, "epochs": 1}
    trainers = [start(Trainer, [leader.address], job=each, visitation=each, **settings) for each in promises]
    together(trainers, 3)
    leader.kill()
    if worker_dies:
        first.kill()
    shutil.rmtree(tmp_path / "root" / "journal")
    leader.start()
    if worker_dies:
        first.start()
    for trainer, end in zip(trainers, finished(trainers), strict=True):
        assert "error" in end, end
        assert any(word in end["error"] for word in ("lost what it knew", "there is no job")), end
        seen = [told["batch"] for told in trainer.told]
        assert len(seen) == len(set(seen)), "no batch came twice"
    with forebay.connect(leader.address) as client:
        assert client.dataset("points").rows == 2 * ROWS, "what is stored is in the Delta log"


def test_s20_s40_five_passes_with_restarts_after_50_250_450_and_500_rows(start, tmp_path):
    leader = lead(start, tmp_path / "root")
    worker(start, leader, "w")
    with forebay.connect(leader.address) as client:
        client.write("points", [rows_of(range(100))])
        settings = {"batch_size": 10, "epochs": 5}
        jobs = ("at_most_once", "exactly_once")
        trainers = [start(Trainer, [leader.address], job=each, visitation=each, **settings) for each in jobs]
        for batches in (5, 20, 20, 5):
            together(trainers, batches)
            leader.kill()
            leader.start()
        assert [sum(told["rows"] for told in trainer.told) for trainer in trainers] == [500, 500]
        assert finished(trainers) == [{"end": True}] * 2
        for job, trainer in zip(jobs, trainers, strict=True):
            for number in range(5):
                rows = Counter(x for told in trainer.told if told["pass"] == number for x in told["values"])
                assert rows == Counter(range(100)), f"{job}: pass {number}"
            assert check_ledger(client, job, [trainer], 10, 5) == {"acknowledged": 50}


def rows_of(values) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def state_of(client, job: str) -> str:
    return client.action("forebay.job.status", {"job": job})[0]["state"]


def test_s24_s40_jobs_that_nobody_uses_end_and_begin_again_only_when_told(start, folder, tmp_path):
    leader = lead(start, tmp_path / "root", folder)
    worker(start, leader, "w")
    settings = {"batch_size": BATCH, "epochs": 1, "idle_timeout": "1s"}
    with forebay.connect(leader.address) as client:
        # This one has joined, and is silent for three times the idle timeout before it reads.
        patient = {"job": "patient", "dataset": "points", "consumer": "late", **settings}
        info = client.info(flight.FlightDescriptor.for_command(json.dumps(patient).encode()))
        busy = start(Trainer, [leader.address], job="busy", **settings)
        stopped = start(Trainer, [leader.address], job="stopped", **settings)
        together([busy, stopped], 4)
        time.sleep(3)
        endpoint = info.endpoints[0]
        rows = client.place(endpoint).do_get(endpoint.ticket, client.options).read_all()
        assert rows.num_rows == ROWS, "a consumer that waits before it reads loses nothing"

        stopped.kill()
        until(lambda: state_of(client, "stopped") == "stopped", "a job whose consumer died ends")
        assert state_of(client, "busy") == "open", "a job in use stays, however slow its consumer is"
        with pytest.raises(forebay.FailedPrecondition, match="idle timeout"):
            next(iter(client.loader("points", job="stopped", **settings)))

        again = start(Trainer, [leader.address], job="stopped", restart=True, **settings)
        assert finished([busy, again]) == [{"end": True}] * 2
        assert sorted(told["batch"] for told in again.told) == list(range(BATCHES)), "all of it, as was asked for"
        assert check_ledger(client, "busy", [busy], BATCHES, 1) == {"acknowledged": BATCHES}
        query = "SELECT incarnation, state, count(*) AS n FROM system.visits WHERE job = 'stopped' GROUP BY incarnation, state"
        visits = {(row["incarnation"], row["state"]): row["n"] for row in client.sql(query).to_pylist()}
        assert visits[(1, "acknowledged")] == BATCHES
        # What the first one took is told apart from what came again.
        before = sum(n for (incarnation, _), n in visits.items() if incarnation == 0)
        assert 4 <= before <= BATCHES and visits[(0, "acknowledged")] <= 4, visits


def test_s29_readers_across_a_restart_of_the_dispatcher(start, tmp_path):
    """Rows come from workers: who has begun to read goes on without a dispatcher, and who asks for more waits for the next one."""
    leader = lead(start, tmp_path / "root")
    worker(start, leader, "w")
    with forebay.connect(leader.address) as client:
        client.write("points", [rows_of(range(n, n + 50_000)) for n in range(0, 500_000, 50_000)])
        job = {"job": "plain", "dataset": "points", "consumer": "c", "batch_size": 1000, "epochs": 1}
        commands = [
            flight.FlightDescriptor.for_path("points"),
            flight.FlightDescriptor.for_command(json.dumps(job).encode()),
        ]
        endpoints = [client.info(command).endpoints[0] for command in commands]
        readers = [client.place(each).do_get(each.ticket, client.options) for each in endpoints]
        first = [reader.read_chunk().data for reader in readers]
        leader.kill()
        # A ticket that was not used yet is as good.
        late = client.place(endpoints[0]).do_get(endpoints[0].ticket, client.options).read_all()
        assert sorted(late["x"].to_pylist()) == list(range(500_000))
        leader.start()
        for batch, reader in zip(first, readers, strict=True):
            rows = batch["x"].to_pylist()
            for chunk in reader:
                rows += chunk.data["x"].to_pylist() if chunk.data is not None else []
            assert sorted(rows) == list(range(500_000))
        assert client.dataset("points").to_arrow().num_rows == 500_000
        until(lambda: state_of(client, "plain") == "finished", "a plain reader's clean end is heard of")
        counts = client.action("forebay.job.status", {"job": "plain"})[0]
        assert (counts["acknowledged"], counts["lost"]) == (500, 0)
        os.kill(leader.process.pid, signal.SIGTERM)
        assert leader.process.wait(60) == 0
