"""Materialization by several workers: any number of rows, any codec, deaths at every point, two writers, bad rows, full slots."""

import contextlib
import threading
from pathlib import Path

import forebay
import pyarrow as pa
import pytest
from roles import lead, needs_binary, started, worker, workers_there

pytestmark = needs_binary

FILES, ROWS = 6, 200


@pytest.fixture
def start():
    with started() as start:
        yield start


def pipeline(
    folder: Path,
    name: str,
    files: int = 0,
    rows: int = 0,
    more: str = "",
    step: str = "SELECT n, n * 2 AS twice FROM input",
) -> Path:
    """A pipeline over CSV files of ``rows`` numbers each, which are written unless they are there."""
    data = folder / name
    data.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        numbers = "".join(f"{n}\n" for n in range(file * rows, (file + 1) * rows))
        (data / f"f{file}.csv").write_text(f"n\n{numbers}")
    text = f'name = "{name}"\n[source]\nuri = "{name}/*.csv"\nformat = "csv"\n'
    text += '[source.options]\ntypes = { n = "int64" }\ntask_size = "1KB"\n'
    text += f'[[steps]]\nname = "step"\nsql = "{step}"\n{more}'
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def orphans(client, root: Path, name: str) -> set[str]:
    """Shards that no version names, after a sweep of everything that is not in use."""
    client.action("forebay.datasets", {"op": "vacuum", "name": name, "older_than_s": 0})
    table = root / "datasets" / name
    stored = {str(path.relative_to(table)) for path in table.glob("epoch=*/*.parquet")}
    named = client.sql(f"SELECT path FROM system.shards WHERE dataset = '{name}'")["path"].to_pylist()
    assert set(named) <= stored, "a shard that is named is there"
    return stored - set(named)


@pytest.fixture(scope="module")
def by_one_and_three(tmp_path_factory):
    """Clients of a cluster with one worker, and of one with three."""
    with started() as start, contextlib.ExitStack() as stack:
        clients = []
        for count in (1, 3):
            root = tmp_path_factory.mktemp(f"of-{count}") / "root"
            leader = lead(start, root)
            for number in range(count):
                worker(start, leader, f"w{number}")
            clients.append((stack.enter_context(forebay.connect(leader.address)), root))
            workers_there(clients[-1][0], count)
        yield clients


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd(1)", "zstd(19)"])
def test_s25_any_number_of_rows_by_one_worker_and_by_three(by_one_and_three, tmp_path, codec):
    word = "".join(c for c in codec if c.isalnum())
    for rows in (0, 1, 10, 10_000):
        name = f"rows_{rows}_{word}"
        files = min(rows, 5) or 1
        path = pipeline(tmp_path, name, files, rows // files, f'[output]\ncompression = "{codec}"\n')
        tables = []
        for client, root in by_one_and_three:
            assert client.materialize(path, progress=False)["state"] == "done"
            tables.append(client.dataset(name).to_arrow())
            assert orphans(client, root, name) == set()
        assert sorted(tables[0]["n"].to_pylist()) == list(range(rows))
        assert tables[0]["twice"].to_pylist() == [2 * n for n in tables[0]["n"].to_pylist()]
        assert tables[0].equals(tables[1]), "equal rows in equal order, whoever made them"


def test_s25_workers_that_die_between_their_shards_and_the_report(start, tmp_path):
    """One never comes back, one comes back under its name, and another one elsewhere does the rest."""
    root = tmp_path / "root"
    leader = lead(start, root)
    crashing = [
        worker(start, leader, name, "--slots", "1", FOREBAY_CRASH_AT="after-shards") for name in ("gone", "back")
    ]
    with forebay.connect(leader.address) as client:
        workers_there(client, 2)
        path = pipeline(tmp_path, "numbers", FILES, ROWS)
        client.materialize(path, wait=False, progress=False)
        for each in crashing:
            each.died()
        crashing[1].start(FOREBAY_CRASH_AT="")
        worker(start, leader, "elsewhere", "--slots", "1")
        client.materialize(path, progress=False)
        once(client)
        attempts = client.sql("SELECT count(*) AS n FROM system.shards WHERE attempt > 0")["n"][0].as_py()
        assert attempts >= 2, "what the dead had written was written again"
        left = {str(p) for p in (root / "datasets/numbers").glob("epoch=*/*.parquet")}
        assert len(left) >= FILES + 2, "and the shards that they left are there until they are swept"
        assert orphans(client, root, "numbers") == set()


def once(client) -> None:
    rows = client.sql(
        "SELECT count(*) AS n, count(DISTINCT n) AS d, sum(twice) AS s, count(DISTINCT _id) AS i FROM numbers"
    )
    count = FILES * ROWS
    assert rows.to_pylist() == [{"n": count, "d": count, "s": count * (count - 1), "i": count}]
    versions = client.sql("SELECT count(*) AS n FROM system.versions WHERE dataset = 'numbers'")
    assert versions["n"].to_pylist() == [1], "one commit"


@pytest.mark.parametrize("point", ["after-staged", "after-publishing-entry", "after-commit", "after-published"])
def test_s25_s27_a_dispatcher_that_dies_at_each_point_of_publishing(start, tmp_path, point):
    root = tmp_path / "root"
    leader = lead(start, root, FOREBAY_CRASH_AT=point)
    worker(start, leader, "w")
    path = pipeline(tmp_path, "numbers", FILES, ROWS)
    with forebay.connect(leader.address) as client:
        # It may die before it answers.
        run = threading.Thread(target=lambda: suppressed(lambda: client.materialize(path, wait=False, progress=False)))
        run.start()
        leader.died()
        leader.start(FOREBAY_CRASH_AT="")
        run.join()
        client.materialize(path, progress=False)
        once(client)
        assert orphans(client, root, "numbers") == set()
        assert client.materialize(path, progress=False)["state"] == "already_materialized"


def suppressed(call) -> None:
    with contextlib.suppress(forebay.Error):
        call()


def at_once(calls) -> list:
    """Results or errors of calls in threads of their own."""
    barrier, got = threading.Barrier(len(calls)), [None] * len(calls)

    def run(number: int) -> None:
        barrier.wait()
        try:
            got[number] = calls[number]()
        except forebay.Error as error:
            got[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_s26_writers_of_one_dataset_at_the_same_time(start, tmp_path):
    leader = lead(start, tmp_path / "root")
    worker(start, leader, "w")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(forebay.connect(leader.address)) for _ in range(4)]
        tables = [pa.table({"n": pa.array(range(number * 100, number * 100 + 100))}) for number in range(4)]
        created = at_once([lambda c=c, t=t: c.write("made", t) for c, t in zip(clients, tables, strict=True)])
        won = [number for number, answer in enumerate(created) if isinstance(answer, dict)]
        assert len(won) == 1, created
        assert all(isinstance(answer, (dict, forebay.AlreadyExists)) for answer in created), created
        assert sorted(clients[0].dataset("made").to_arrow()["n"].to_pylist()) == tables[won[0]]["n"].to_pylist()
        # Who adds rows loses nobody else's.
        added = [(c, t) for number, (c, t) in enumerate(zip(clients, tables, strict=True)) if number != won[0]]
        answers = at_once([lambda c=c, t=t: c.write("made", t, mode="append") for c, t in added])
        assert all(isinstance(answer, dict) for answer in answers), answers
        back = clients[0].dataset("made").to_arrow()
        assert sorted(back["n"].to_pylist()) == list(range(400))
        assert len(set(back["_id"].to_pylist())) == 400
        # Two pipelines for one name: the second is refused, and says what differs.
        one = pipeline(tmp_path, "numbers", FILES, ROWS)
        text = one.read_text()
        other = tmp_path / "other.toml"
        other.write_text(text.replace("n * 2", "n * 3"))
        got = at_once(
            [lambda c=c, p=p: c.materialize(p, progress=False) for c, p in zip(clients, (one, other), strict=False)]
        )
        failed = [answer for answer in got if isinstance(answer, forebay.Error)]
        assert len(failed) == 1 and isinstance(failed[0], forebay.FailedPrecondition) and "step" in str(failed[0]), got
        factor = clients[0].sql("SELECT sum(twice) / sum(n) AS f FROM numbers")["f"][0].as_py()
        assert factor == (2 if isinstance(got[0], dict) else 3)


def test_s27_the_same_command_from_many_clients(start, tmp_path):
    leader = lead(start, tmp_path / "root")
    for name in ("a", "b"):
        worker(start, leader, name)
    path = pipeline(tmp_path, "numbers", FILES, ROWS)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(forebay.connect(leader.address)) for _ in range(5)]
        got = at_once([lambda c=c: c.materialize(path, progress=False) for c in clients])
        assert {answer["state"] for answer in got} <= {"done", "already_materialized"}, got
        once(clients[0])


def test_s27_two_embedded_programs_on_one_root(tmp_path):
    """One of them owns the root, and the other goes through it."""
    path, root = pipeline(tmp_path, "numbers", FILES, ROWS), tmp_path / "root"
    both = threading.Barrier(2)

    def program():
        with forebay.connect(root=root) as client:
            state = client.materialize(path, progress=False)
            # The owner's program is the last to leave, as users of its root would have it.
            both.wait()
            return state

    got = at_once([program, program])
    assert {answer["state"] for answer in got} <= {"done", "already_materialized"}, got
    with forebay.connect(root=root) as client:
        once(client)


def test_s28_poison_rows_are_set_aside_and_too_many_fail_the_run(start, tmp_path):
    root = tmp_path / "root"
    leader = lead(start, root)
    for name in ("a", "b"):
        worker(start, leader, name)
    aside = '[output]\non_error = "quarantine"\nmax_errors = {}\n'
    with forebay.connect(leader.address) as client:
        path = pipeline(tmp_path, "numbers", FILES, ROWS, aside.format(3))
        for file in (1, 4, 5):
            with (tmp_path / f"numbers/f{file}.csv").open("a") as out:
                out.write(f"poison-{file}\n")
        assert client.materialize(path, progress=False)["quarantined"] == 3
        once(client)
        bad = client.sql(
            "SELECT _source AS source, message FROM system.quarantine WHERE dataset = 'numbers' ORDER BY source"
        ).to_pylist()
        assert [row["source"].split("/")[-1] for row in bad] == ["f1.csv", "f4.csv", "f5.csv"], bad
        assert all(f"poison-{file}" in row["message"] for file, row in zip((1, 4, 5), bad, strict=True)), bad

        strict = tmp_path / "strict.toml"
        strict.write_text(path.read_text().replace('name = "numbers"', 'name = "strict"', 1).replace("= 3", "= 2"))
        with pytest.raises(
            forebay.BadInput, match="3 rows of epoch 0 of `strict` are bad, and max_errors is 2"
        ) as failed:
            client.materialize(strict, progress=False)
        assert "system.quarantine" in str(failed.value), "it says where to look"
        bad = client.sql("SELECT _source AS source FROM system.quarantine WHERE dataset = 'strict' ORDER BY source")
        assert [source.split("/")[-1] for source in bad["source"].to_pylist()] == ["f1.csv", "f4.csv", "f5.csv"]
        with pytest.raises(forebay.NotFound):
            client.dataset("strict")
        # Mended, the rest is taken up.
        for file in (1, 4, 5):
            mended = tmp_path / f"numbers/f{file}.csv"
            mended.write_text("\n".join(mended.read_text().splitlines()[:-1]) + "\n")
        assert client.materialize(strict, progress=False)["state"] == "done"
        assert client.dataset("strict").rows == FILES * ROWS


NAP = """
import os, pathlib, time, uuid

FOLDER = pathlib.Path({folder!r})


def nap(batch):
    if batch.num_rows < 20:
        # What is looked at to learn its columns is no task.
        return batch.select(["n", "twice"])
    mine = FOLDER / f"now-{{uuid.uuid4().hex}}"
    mine.touch()
    # Until there are as many at once as there may be, or somebody saw that there were.
    end = time.monotonic() + 30
    while time.monotonic() < end and not (FOLDER / "seen").exists():
        running = len(list(FOLDER.glob("now-*")))
        if running > {slots}:
            (FOLDER / "too-many").touch()
        if running >= {slots}:
            time.sleep(0.3)
            (FOLDER / "seen").touch()
        time.sleep(0.01)
    if len(list(FOLDER.glob("now-*"))) > {slots}:
        (FOLDER / "too-many").touch()
    mine.unlink()
    return batch.select(["n", "twice"])
"""


@pytest.mark.parametrize("slots", [1, 2])
def test_s32_a_worker_runs_as_many_tasks_at_once_as_it_has_slots(start, tmp_path, slots):
    leader = lead(start, tmp_path / "root")
    worker(start, leader, "w", "--slots", str(slots))
    folder = tmp_path / "running"
    folder.mkdir()
    (tmp_path / "nap.py").write_text(NAP.format(folder=str(folder), slots=slots))
    path = pipeline(tmp_path, "numbers", FILES, ROWS, '[[steps]]\nname = "nap"\npython = "nap:nap"\n')
    with forebay.connect(leader.address) as client:
        client.materialize(path, progress=False)
        once(client)
    assert (folder / "seen").exists(), f"{slots} ran at once"
    assert not (folder / "too-many").exists(), "and never more"
