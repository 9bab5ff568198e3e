"""Roots on S3: the real binary against an S3 endpoint over HTTP, also one that fails, lies and is slow."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

import forebay
import pytest

pytest.importorskip("moto")

HERE = pathlib.Path(__file__).resolve().parent
ROWS = 3000
SECRET = "planted-secret-Zq81"


class Store:
    """An endpoint in a process of its own, with a bucket."""

    def __init__(self, seed: int | str):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "s3.py"), "0", str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.endpoint = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        for _ in range(20):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/bucket", method="PUT")).close()
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError("no bucket could be made")

    def environment(self) -> dict:
        return {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FOREBAY_ROOT"))} | {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def faults(self) -> int:
        return int(urllib.request.urlopen(f"{self.endpoint}/faults").read())

    def lists(self) -> int:
        return int(urllib.request.urlopen(f"{self.endpoint}/lists").read())


@pytest.fixture(params=[0, 7, 8], ids=["reliable", "faulty-7", "faulty-8"])
def store(request):
    store = Store(request.param)
    yield store
    store.process.kill()
    store.process.wait()


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    for part in range(3):
        rows = range(part * ROWS // 3, (part + 1) * ROWS // 3)
        (tmp_path / f"part{part}.csv").write_text("x\n" + "".join(f"{i}\n" for i in rows))
    (tmp_path / "numbers.toml").write_text(
        'name = "numbers"\n[source]\nuri = "part*.csv"\nformat = "csv"\n[[steps]]\nname = "noise"\n'
        'sql = "SELECT x, random_uniform() AS noise FROM input"\n[epochs]\ncount = 2\nseed = 1\n'
    )
    return tmp_path


def command(folder, store, *arguments, root="s3://bucket/root"):
    binary = os.environ.get("FOREBAY_BIN", "forebay")
    return subprocess.run(
        [binary, *arguments, "--root", root],
        cwd=folder,
        env=store.environment() | {"FOREBAY_LOG": "debug"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def succeeds(folder, store, *arguments, root="s3://bucket/root") -> str:
    done = command(folder, store, *arguments, root=root)
    assert done.returncode == 0, done.stderr[-4000:]
    assert SECRET not in done.stdout + done.stderr, "the secret key was logged"
    return done.stdout


def test_the_whole_way_on_s3(folder, store):
    succeeds(folder, store, "materialize", "numbers.toml")
    assert "already" in succeeds(folder, store, "materialize", "numbers.toml")
    query = "SELECT epoch, count(*) AS n, count(DISTINCT x) AS d, sum(noise) AS s FROM numbers GROUP BY epoch ORDER BY epoch"
    stored = [json.loads(line) for line in succeeds(folder, store, "sql", query, "--json").splitlines()]
    assert [(row["n"], row["d"]) for row in stored] == [(ROWS, ROWS)] * 2
    succeeds(folder, store, "materialize", "numbers.toml", root=str(folder / "local"))
    local = succeeds(folder, store, "sql", query, "--json", root=str(folder / "local"))
    assert [json.loads(line) for line in local.splitlines()] == stored, "the same rows wherever they are stored"
    read = [
        json.loads(
            succeeds(folder, store, "read", "numbers", "--batch-size", "100", "--consumers", "2", "--json", root=root)
        )
        for root in ("s3://bucket/root", str(folder / "local"))
    ]
    assert read[0]["rows"] == read[1]["rows"] == 2 * ROWS and read[0]["digest"] == read[1]["digest"]
    if "faulty" in os.environ.get("PYTEST_CURRENT_TEST", ""):
        assert store.faults() > 0


@pytest.mark.parametrize("store", ["plain"], indirect=True)
def test_s31_a_store_that_renames_nothing_and_lists_slowly(folder, store):
    """Shards are written under their final names; reading looks at the log and not at folders, so that slow lists cost no read anything."""
    succeeds(folder, store, "materialize", "numbers.toml")
    binary = os.environ.get("FOREBAY_BIN", "forebay")
    serve = ["serve", "--root", "s3://bucket/root", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"]
    server = subprocess.Popen([binary, *serve], env=store.environment(), stdout=subprocess.PIPE, text=True)
    try:
        with forebay.connect(json.loads(server.stdout.readline())["address"]) as client:
            assert client.dataset("numbers").to_arrow().num_rows == 2 * ROWS
            before = store.lists()
            with client.loader("numbers", job="run", batch_size=10, epochs=2, timeout=90) as loader:
                rows = [sorted(int(x) for batch in loader for x in batch["x"]) for _ in range(2)]
            assert rows == [list(range(ROWS))] * 2
            # One look at the log and one at the journal now and then; 600 batches need none.
            assert store.lists() - before < 60
            visits = client.sql("SELECT state, count(*) AS n FROM system.visits WHERE job = 'run' GROUP BY state")
            assert visits.to_pylist() == [{"state": "acknowledged", "n": 2 * ROWS // 10}]
            assert (
                client.action("forebay.datasets", {"op": "vacuum", "name": "numbers", "older_than_s": 0})[0]["removed"]
                == []
            )
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("store", [0], indirect=True)
def test_a_killed_owner_is_replaced(folder, store):
    succeeds(folder, store, "materialize", "numbers.toml")
    binary = os.environ.get("FOREBAY_BIN", "forebay")
    server = subprocess.Popen(
        [binary, "serve", "--root", "s3://bucket/root", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"],
        env=store.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        json.loads(server.stdout.readline())
        second = command(folder, store, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        assert second.returncode == 2 and "owner" in second.stderr, second.stderr
        succeeds(folder, store, "read", "numbers", "--epochs", "1")
        server.send_signal(signal.SIGKILL)
        server.wait()
        begun = time.monotonic()
        succeeds(folder, store, "read", "numbers", "--epochs", "1")
        assert time.monotonic() - begun >= 5, "a silent owner is watched before it counts as dead"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("store", [0], indirect=True)
def test_wrong_places_and_keys_are_named(folder, store):
    nowhere = command(folder, store, "materialize", "numbers.toml", root="s3://no-such-bucket/root")
    assert nowhere.returncode == 2 and "no such bucket" in nowhere.stderr and SECRET not in nowhere.stderr
    store.environment = lambda inner=store.environment: inner() | {"AWS_ENDPOINT": "http://127.0.0.1:9"}
    away = command(folder, store, "datasets")
    assert away.returncode == 3 and "can't be reached at http://127.0.0.1:9" in away.stderr, away.stderr
    assert SECRET not in away.stderr
