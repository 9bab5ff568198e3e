"""Jobs with the same plan share what is read and what steps behind the cut make; a late or slow one loses nothing."""

import json
import os
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import forebay
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS, BATCH, WIDTH = 20_000, 100, 256

pytestmark = pytest.mark.skipif("FOREBAY_BIN" not in os.environ, reason="names the binary to start")

PIPELINE = """
name = "wide"

[source]
uri = "wide.parquet"
format = "parquet"

[[steps]]
name = "keep"
sql = "SELECT n, data FROM input"

[[steps]]
name = "online"
sql = "SELECT n, data, n * 2 AS twice FROM input"

[output]
cut = "keep"
"""


class Server:
    """The real binary, and what it says at /metrics."""

    def __init__(self, root: Path, cache: str):
        command = [os.environ["FOREBAY_BIN"], "serve", "--root", str(root), "--listen", "127.0.0.1:0"]
        command += ["--http", "127.0.0.1:0", "--json"]
        environment = os.environ | {"FOREBAY_CACHE_LIMIT": cache}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        about = json.loads(self.process.stdout.readline())
        self.address, self.http = about["address"], about["http"]

    def counters(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.http}/metrics") as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def cost(self, before: dict[str, float]) -> dict[str, float]:
        names = {
            "groups": "forebay_read_row_groups_total",
            "bytes": "forebay_read_bytes_total",
            "again": "forebay_reread_row_groups_total",
            "made": "forebay_transformed_batches_total",
        }
        now = self.counters()
        return {short: now[name] - before[name] for short, name in names.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH), dtype=np.uint8)
    table = pa.table({"n": range(ROWS), "data": [row.tobytes() for row in noise]})
    pq.write_table(table, folder / "wide.parquet")
    (folder / "wide.toml").write_text(PIPELINE)
    with forebay.connect(root=folder / "root") as client:
        client.materialize(folder / "wide.toml", progress=False)
    return folder / "root"


@pytest.fixture
def serve(stored):
    started = []

    def start(cache: str) -> Server:
        started.append(Server(stored, cache))
        return started[-1]

    yield start
    for server in started:
        server.process.terminate()
        server.process.wait()


def read(server: Server, job: str, pause: float = 0.0) -> list[int]:
    """The rows of a whole pass, in order."""
    rows: list[int] = []
    with (
        forebay.connect(server.address) as client,
        client.loader("wide", job=job, batch_size=BATCH, seed=3, window="512KiB", timeout=120) as loader,
    ):
        for batch in loader:
            assert (batch["twice"] == 2 * batch["n"]).all()
            rows += batch["n"].tolist()
            time.sleep(pause)
    return rows


def test_s23_twenty_jobs_read_and_transform_as_much_as_one(serve):
    server = serve("1GiB")
    before = server.counters()
    alone = read(server, "alone")
    one = server.cost(before)
    assert sorted(alone) == list(range(ROWS))
    assert one["made"] == ROWS / BATCH and one["bytes"] > ROWS * WIDTH * 0.9

    other = serve_again(server, serve)
    before = other.counters()
    got: dict[int, list[int]] = {}

    def consumer(number: int) -> None:
        # Two that are slow and two that come late.
        if number in (18, 19):
            time.sleep(2)
        got[number] = read(other, f"job-{number}", 0.01 if number in (0, 1) else 0.0)

    threads = [threading.Thread(target=consumer, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rows == alone for rows in got.values()), "all see the same rows in the same order"
    twenty = other.cost(before)
    assert twenty["bytes"] <= 1.1 * one["bytes"], (one, twenty)
    assert twenty["groups"] <= 1.1 * one["groups"], (one, twenty)
    assert twenty["made"] <= 1.1 * one["made"], (one, twenty)
    assert twenty["again"] == 0


def serve_again(server: Server, serve) -> Server:
    """Another process with an empty cache on the same root."""
    server.process.terminate()
    server.process.wait()
    return serve("1GiB")


def test_s23_a_late_job_reads_again_what_memory_did_not_hold_and_loses_nothing(serve):
    server = serve("1MiB")
    alone = read(server, "first")
    before = server.counters()
    assert read(server, "late") == alone
    cost = server.cost(before)
    assert cost["again"] > 0 and cost["groups"] >= cost["again"], cost
