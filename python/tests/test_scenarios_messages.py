"""Rows of awkward sizes and shapes through every door, and a server that is used a hundred times."""

import gc
import json
import os
import threading
import urllib.request
from pathlib import Path

import forebay
import numpy as np
import pyarrow as pa
import pytest
from roles import Role, lead, needs_binary, started, until, worker, workers_there

pytestmark = needs_binary

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A dispatcher and two workers: rows cross two processes."""
    with started() as start:
        leader = lead(start, tmp_path_factory.mktemp("cluster") / "root")
        for name in ("a", "b"):
            worker(start, leader, name)
        with forebay.connect(leader.address) as client:
            workers_there(client, 2)
            yield client


def same(client, name: str, wanted: pa.Table, batch_size: int) -> None:
    """The rows as stored, by SQL and through a job are those that were written."""
    columns = ", ".join(f'"{column}"' for column in wanted.column_names)
    assert client.dataset(name).to_arrow(columns=wanted.column_names).combine_chunks().equals(wanted.combine_chunks())
    assert client.sql(f"SELECT {columns} FROM {name} ORDER BY _id").combine_chunks().equals(wanted.combine_chunks())
    settings = {"batch_size": batch_size, "epochs": 1, "shuffle": False, "format": "arrow", "timeout": 90}
    with client.loader(name, **settings) as loader:
        batches = [batch.select(wanted.column_names) for batch in loader]
    # In order of their numbers, whichever worker sent them.
    assert sum(batch.num_rows for batch in batches) == wanted.num_rows
    assert pa.Table.from_batches(batches, wanted.schema).combine_chunks().equals(wanted.combine_chunks())


@pytest.mark.parametrize("mebibytes", [5, 20])
def test_s33_rows_larger_than_messages(cluster, mebibytes):
    """5 MiB is more than gRPC's default limit, 20 MiB more than most raise it to."""
    noise = np.random.default_rng(mebibytes).integers(0, 256, mebibytes * MIB, dtype=np.uint8).tobytes()
    blobs = [noise, b"", noise[::-1], b"small"]
    wanted = pa.table({"n": pa.array(range(4), pa.int32()), "blob": pa.array(blobs, pa.binary())})
    cluster.write(f"blobs{mebibytes}", wanted)
    same(cluster, f"blobs{mebibytes}", wanted, 1)
    same(cluster, f"blobs{mebibytes}", wanted, 4)


def test_s33_empty_batches_between_others(cluster):
    schema = pa.schema({"n": pa.int64(), "s": pa.string()})
    empty = pa.RecordBatch.from_pylist([], schema)
    some = [pa.RecordBatch.from_pylist([{"n": n, "s": f"row {n}"}], schema) for n in range(3)]
    cluster.write("gaps", [empty, some[0], empty, empty, some[1], some[2], empty])
    same(cluster, "gaps", pa.Table.from_batches(some), 2)
    cluster.write("nothing", [empty, empty])
    assert cluster.dataset("nothing").to_arrow(columns=["n", "s"]).schema.equals(schema)
    assert cluster.sql("SELECT count(*) AS n FROM nothing")["n"].to_pylist() == [0]
    with cluster.loader("nothing", epochs=1, timeout=90) as loader:
        assert list(loader) == [] and loader.finished


def test_s33_batches_of_which_no_row_is_left(cluster, tmp_path):
    """A filter and a Python step drop all rows of some batches, of some files, and of everything."""
    (tmp_path / "raw").mkdir()
    for file in range(4):
        (tmp_path / f"raw/f{file}.csv").write_text(
            "n\n" + "".join(f"{n}\n" for n in range(file * 100, file * 100 + 100))
        )
    (tmp_path / "some.py").write_text(
        "import pyarrow as pa\nimport pyarrow.compute as pc\n\n\ndef some(batch, least):\n"
        "    kept = batch.filter(pc.greater_equal(batch['n'], least))\n    return kept.select(['_id', 'n'])\n"
    )
    for least in (0, 150, 399, 400):
        name = f"some{least}"
        text = f'name = "{name}"\n[source]\nuri = "raw/*.csv"\nformat = "csv"\n'
        text += '[[steps]]\nname = "odd"\nsql = "SELECT n FROM input WHERE n % 2 = 1 AND (n < 200 OR n >= 300)"\n'
        text += f'[[steps]]\nname = "some"\npython = "some:some"\nbatch_size = 10\noptions = {{ least = {least} }}\n'
        (tmp_path / f"{name}.toml").write_text(text)
        cluster.materialize(tmp_path / f"{name}.toml", progress=False)
        wanted = [n for n in range(400) if n % 2 == 1 and (n < 200 or n >= 300) and n >= least]
        assert cluster.dataset(name).to_arrow()["n"].to_pylist() == wanted
        with cluster.loader(name, epochs=1, batch_size=7, timeout=90) as loader:
            assert sorted(int(n) for batch in loader for n in batch["n"]) == wanted
    with cluster.loader("some0", epochs=1, filter="n > 1000", timeout=90) as loader:
        assert list(loader) == [], "a filter that no row passes"


def test_s33_columns_of_every_shape(cluster):
    count = 500
    ragged = [None if n % 7 == 3 else [float(i) for i in range(n % 5)] for n in range(count)]
    words = ["red", "green", None, "blue"]
    wanted = pa.table(
        {
            "ragged": pa.array(ragged, pa.list_(pa.float32())),
            "nested": pa.array([[[n], [], [n, None]][: n % 4] for n in range(count)], pa.list_(pa.list_(pa.int64()))),
            "fixed": pa.array([[n, n + 1] for n in range(count)], pa.list_(pa.int16(), 2)),
            "word": pa.array([words[n % 4] for n in range(count)]).dictionary_encode(),
            "maybe": pa.array([None if n % 3 else n for n in range(count)], pa.int32()),
            "never": pa.array([None] * count, pa.string()),
            "record": pa.array([None if n % 5 == 0 else {"a": n, "b": f"{n}"} for n in range(count)]),
            "flag": pa.array([None if n % 11 == 0 else n % 2 == 0 for n in range(count)]),
            "bytes": pa.array([bytes([n % 256]) * (n % 9) for n in range(count)], pa.binary()),
        }
    )
    cluster.write("shapes", wanted)
    back = cluster.dataset("shapes").to_arrow(columns=wanted.column_names)
    assert back.to_pydict() == wanted.to_pydict()
    settings = {"batch_size": 33, "epochs": 1, "shuffle": False, "timeout": 90}
    with cluster.loader("shapes", format="arrow", **settings) as loader:
        rows = [row for batch in loader for row in batch.select(wanted.column_names).to_pylist()]
    assert rows == wanted.to_pylist()
    with cluster.loader("shapes", **settings) as loader:
        batches = list(loader)
    assert [None if v is None else list(v) for b in batches for v in b["ragged"]] == ragged
    assert [v for b in batches for v in b["word"].tolist()] == wanted["word"].to_pylist()
    assert [v for b in batches for v in b["maybe"].tolist()] == wanted["maybe"].to_pylist()
    assert np.concatenate([b["fixed"] for b in batches]).shape == (count, 2)


class Usage:
    """What a process holds."""

    def __init__(self, pid: int):
        self.files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.threads, self.resident = int(status["Threads"]), int(status["VmRSS"].split()[0]) * 1024


USES, WARM = 100, 20


def test_s38_a_hundred_clients_that_come_and_go_leave_nothing_behind(tmp_path):
    """Connect, begin a job, read two batches of it, ask for rows by SQL, leave: files, threads and memory of the server, and of this process."""
    with started() as start:
        server = start(Role, "serve", "--root", str(tmp_path / "root"))
        with forebay.connect(server.address) as client:
            client.write("points", pa.table({"x": pa.array(range(2000), pa.int64())}))

        def use(number: int) -> None:
            with forebay.connect(server.address) as client:
                with client.loader("points", batch_size=100, job=f"use-{number}", timeout=90) as loader:
                    for place, _ in enumerate(loader):
                        if place == 1:
                            break
                client.action("forebay.job.stop", {"job": f"use-{number}"})
                assert client.sql("SELECT count(*) AS n FROM points")["n"].to_pylist() == [2000]

        for number in range(WARM):
            use(number)
        settled(server)
        before, mine = Usage(server.process.pid), own()
        for number in range(WARM, USES):
            use(number)
        settled(server)
        # A connection that ends is closed a moment later.
        until(lambda: Usage(server.process.pid).files <= before.files + 2, "the server's files are closed")
        until(lambda: Usage(server.process.pid).threads <= before.threads + 4, "its threads end")
        grown = Usage(server.process.pid).resident - before.resident
        assert grown < 32 * MIB, f"{grown / MIB:.0f} MiB more after {USES - WARM} uses"
        until(lambda: own()[0] <= mine[0] + 2, "this process's files are closed")
        assert own()[1] <= mine[1] + 2, [thread.name for thread in threading.enumerate()]


def settled(server: Role) -> None:
    """Waits until no stream is open."""

    def over() -> bool:
        with urllib.request.urlopen(f"{server.http}/metrics") as answer:
            lines = dict(
                line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")
            )
        return float(lines["forebay_job_streams"]) == 0

    until(over, "all streams end")


def own() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), sum(t.name.startswith("forebay") for t in threading.enumerate())


def test_s38_embedded_servers_started_and_stopped_again_and_again(tmp_path):
    """Each ends with its client, leaves the root to the next one, and this process as it was."""
    pids = []
    for number in range(12):
        with forebay.connect(root=tmp_path / "root") as client:
            if number == 0:
                client.write("points", pa.table({"x": [1, 2, 3]}))
            assert client.dataset("points").rows == 3
            pids.append(json.loads((tmp_path / "root" / ".forebay.lock").read_text())["pid"])
        if number == 3:
            before = own()
    assert len(set(pids)) == 12
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert own()[0] <= before[0] + 2 and own()[1] == before[1]
