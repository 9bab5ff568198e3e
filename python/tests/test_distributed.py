"""Queries that workers share: the same answers as one process gives, at any number of workers, and when one of them dies."""

import contextlib
import os
import threading
import time
from pathlib import Path

import forebay
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from roles import Role, free_port, needs_binary, started

pytestmark = needs_binary

ROWS, USERS = 60_000, 500

QUERIES = {
    "scan": "SELECT _id, amount, note FROM orders ORDER BY _id",
    "filter": "SELECT _id FROM orders WHERE amount % 97 = 3 AND note LIKE 'n%' ORDER BY _id",
    "aggregate": "SELECT count(*) AS n, sum(amount) AS total, min(note) AS first FROM orders",
    "groups": (
        "SELECT who, count(*) AS n, sum(amount) AS total, avg(amount) AS mean, count(DISTINCT amount) AS kinds "
        "FROM orders GROUP BY who ORDER BY who"
    ),
    "join": (
        "SELECT o._id, o.amount, u.name || '-' || o.note AS told FROM orders o JOIN users u ON o.who = u.id "
        "WHERE o.amount > 50 ORDER BY o._id"
    ),
    "outer": (
        "SELECT u.id, count(o._id) AS n FROM users u LEFT JOIN orders o ON o.who = u.id AND o.amount > 995 "
        "GROUP BY u.id ORDER BY u.id"
    ),
    "sort": "SELECT amount, _id FROM orders ORDER BY amount DESC, _id LIMIT 1000",
    "distinct": "SELECT DISTINCT amount FROM orders ORDER BY amount",
    "window": "SELECT _id, row_number() OVER (PARTITION BY who ORDER BY _id) AS nth FROM orders ORDER BY _id LIMIT 5000",
    "union": "SELECT who AS x FROM orders WHERE amount < 10 UNION ALL SELECT id FROM users ORDER BY x",
    "subquery": "SELECT count(*) AS n FROM orders WHERE amount > (SELECT avg(amount) FROM orders)",
    "exists": "SELECT id FROM users u WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.who = u.id AND o.amount = 1) ORDER BY id",
}


@pytest.fixture
def start():
    with started() as start:
        yield start


@contextlib.contextmanager
def environment(**values: str):
    """Settings of the processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """A root with two datasets in many shards, and what one process answers."""
    folder = tmp_path_factory.mktemp("store")
    orders = pa.table(
        {
            "who": [(n * 7919) % (USERS + 20) for n in range(ROWS)],
            "amount": [(n * 104_729) % 1000 for n in range(ROWS)],
            "note": [f"n{n % 1013}" if n % 5 else f"m{n}" for n in range(ROWS)],
        }
    )
    users = pa.table({"id": list(range(USERS)), "name": [f"user {n}" for n in range(USERS)]})
    (folder / "in").mkdir()
    for part in range(12):
        pq.write_table(orders.slice(part * ROWS // 12, ROWS // 12), folder / f"in/orders-{part:02}.parquet")
    pq.write_table(users, folder / "in/users.parquet")
    for name, extra in [
        ("orders", 'options = { task_size = "16KiB" }\n[output]\nrow_group_size = "16KiB"\n'),
        ("users", ""),
    ]:
        text = f'name = "{name}"\n[source]\nuri = "in/{name}*.parquet"\nformat = "parquet"\n{extra}'
        (folder / f"{name}.toml").write_text(text)
    with forebay.connect(root=folder / "root") as client:
        for name in ("orders", "users"):
            client.materialize(folder / f"{name}.toml", progress=False)
    return folder


@pytest.fixture(scope="module")
def answers(store) -> dict[str, pa.Table]:
    with forebay.connect(root=store / "root") as client:
        return {name: client.sql(query) for name, query in QUERIES.items()}


def cluster(start, root: Path, workers: int, *args: str, **settings: str) -> tuple[Role, list[Role]]:
    """A dispatcher and workers whose queries are shared however small they are."""
    with environment(**({"FOREBAY_QUERY_DISTRIBUTED_SIZE": "1"} | settings)):
        listen = f"127.0.0.1:{free_port()}"
        leader = start(Role, "dispatcher", "--root", str(root), "--listen", listen, "--lease", "15s", *args)
        each = ["worker", "--dispatcher", leader.address, "--listen", "127.0.0.1:0", *args]
        roles = [start(Role, *each, "--name", f"w{number}") for number in range(workers)]
    return leader, roles


def explained(client, query: str) -> str:
    return "\n".join(str(text) for text in client.sql(f"EXPLAIN {query}")["plan"].to_pylist())


def patiently(ask):
    """The answer, when it is there: a worker may not have opened its port yet, or may be dead and not known to be."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask()
        except forebay.errors.Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def until_shared(client, tasks: int, query: str = QUERIES["groups"]) -> str:
    """Waits until a query is shared by so many workers; every worker has to know of the others, whichever is asked."""
    deadline, seen = time.monotonic() + 60, 0
    while time.monotonic() < deadline:
        plan = patiently(lambda: explained(client, query))
        seen = seen + 1 if f"tasks={tasks}" in plan else 0
        if seen >= 3 * tasks:
            return plan
        time.sleep(0.05)
    raise AssertionError(f"no query was shared by {tasks} workers:\n{plan}")


def test_three_workers_answer_as_one_process_does(start, store, answers):
    leader, _ = cluster(start, store / "root", 3)
    with forebay.connect(leader.address) as client:
        plan = until_shared(client, 3)
        assert "Stage 1" in plan and "NetworkShuffle" in plan and "RowGroupScan: orders@v0" in plan, plan
        for name, query in QUERIES.items():
            assert client.sql(query).equals(answers[name]), name
        assert "DistributedExec" in explained(client, QUERIES["join"])
        told = client.sql("EXPLAIN ANALYZE " + QUERIES["groups"])["plan"].to_pylist()
        assert any("Stage 1" in text for text in told), told
        # What only one process can answer stays there.
        assert "Distributed" not in explained(client, "SELECT count(*) FROM system.datasets")


@pytest.mark.parametrize("settings", [{"FOREBAY_QUERY_DISTRIBUTED": "off"}, {"FOREBAY_QUERY_DISTRIBUTED_SIZE": "1GiB"}])
def test_what_is_small_or_not_to_be_shared_runs_in_one_place(start, store, answers, settings):
    leader, _ = cluster(start, store / "root", 2, **settings)
    with forebay.connect(leader.address) as client:
        registered = "SELECT count(*) AS n FROM system.workers WHERE address IS NOT NULL"
        deadline = time.monotonic() + 60
        while client.sql(registered)["n"][0].as_py() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for name in ("join", "groups"):
            assert "Distributed" not in patiently(lambda: explained(client, QUERIES[name]))  # noqa: B023
            assert client.sql(QUERIES[name]).equals(answers[name])


def test_errors_of_a_query_are_its_own(start, store):
    leader, _ = cluster(start, store / "root", 2)
    with forebay.connect(leader.address) as client:
        until_shared(client, 2)
        with pytest.raises(forebay.Error, match="(?i)divide by zero"):
            client.sql("SELECT amount / (amount - amount) AS x FROM orders")


@pytest.mark.parametrize("victims", [1, 2])
def test_workers_that_die_cost_no_answer(start, store, answers, victims):
    leader, workers = cluster(start, store / "root", 3)
    with forebay.connect(leader.address) as client:
        until_shared(client, 3)
    outcomes: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        # The name of a query that was answered, or the error; a wrong answer is neither.
        with forebay.connect(leader.address) as client:
            while not stop.is_set():
                for name in ("join", "groups", "sort"):
                    try:
                        right = client.sql(QUERIES[name]).equals(answers[name])
                        outcomes.append(name if right else f"wrong: {name}")
                    except forebay.Error as error:
                        outcomes.append(f"error: {error}")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 120
        while len(outcomes) < count:
            assert time.monotonic() < deadline, outcomes[-5:]
            time.sleep(0.01)

    wait_for(3)
    for victim in workers[:victims]:
        victim.kill()
    died = len(outcomes)
    # Some of these ran when the workers died; the others meet workers that the dispatcher doesn't know to be dead.
    wait_for(died + 12)
    stop.set()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a query hangs"
    assert not [outcome for outcome in outcomes if outcome.startswith("wrong")]
    with forebay.connect(leader.address) as client:
        for name in ("join", "groups", "sort"):
            # A client may be sent to a dead worker until its lease ends, and is told so.
            assert patiently(lambda: client.sql(QUERIES[name])).equals(answers[name]), name  # noqa: B023


def test_a_query_as_a_source_is_shared_too(start, store, tmp_path):
    leader, _ = cluster(start, store / "root", 3)
    query = QUERIES["join"].replace("o._id,", "o._id AS number,")
    (tmp_path / "told.toml").write_text(f'name = "told"\n[source]\nsql = """{query}"""\n')
    with forebay.connect(leader.address) as client:
        until_shared(client, 3)
        client.materialize(tmp_path / "told.toml", progress=False)
        found = client.sql("SELECT _id, number, amount, told FROM told ORDER BY _id")
        expected = client.sql(query)
        assert found["_id"].to_pylist() == list(range(expected.num_rows))
        assert found.drop_columns(["_id"]).equals(expected)
