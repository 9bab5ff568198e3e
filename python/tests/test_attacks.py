"""Hostile SQL over the wire: each attack ends in an error that says why, reaches nothing but datasets, and holds up nobody else."""

import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
import threading
import time

import forebay
import pyarrow as pa
import pytest
from adbc_driver_flightsql import dbapi
from roles import Role

TIMEOUT = 3
ROW_LIMIT = 1_000_000
POINTS = 1_000
# Slower than this and somebody else's query was held up: an honest one takes a few milliseconds.
SLOW = 2.0
CANARY = "canary-b1946ac9"

SETTINGS = f"""
memory_limit = "64MiB"

[query]
timeout = "{TIMEOUT}s"
row_limit = {ROW_LIMIT}
concurrent = 4
spill_limit = "32MiB"
"""

RECURSIVE = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t)"
CROSSED = "points a CROSS JOIN points b CROSS JOIN points c CROSS JOIN points d"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "canary.csv").write_text(f"secret\n{CANARY}\n")
    (folder / "forebay.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    config = ["--config", str(folder / "forebay.toml")]
    role = Role("serve", "--root", str(folder / "root"), *config, FOREBAY_CANARY=CANARY)
    try:
        with forebay.connect(role.address) as client:
            client.write("points", pa.table({"x": pa.array(range(POINTS), pa.int64()), "name": ["row"] * POINTS}))
        yield role.address.replace("grpc://", "grpc+tcp://")
    finally:
        role.kill()


@contextlib.contextmanager
def cursor_of(server):
    with dbapi.connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def cursor(server):
    with cursor_of(server) as cursor:
        yield cursor


def honest(cursor) -> float:
    """Seconds that an ordinary query takes."""
    begun = time.monotonic()
    cursor.execute("SELECT sum(x) FROM points")
    assert cursor.fetchall() == [(POINTS * (POINTS - 1) // 2,)]
    return time.monotonic() - begun


@contextlib.contextmanager
def others_going_on(server):
    """A client of its own asks ordinary queries all the while; none of them fails or is slow."""
    took, begun, over = [], threading.Event(), threading.Event()

    def ask():
        with cursor_of(server) as cursor:
            while not over.is_set():
                took.append(honest(cursor))
                begun.set()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        assert begun.wait(30)
        try:
            yield
        finally:
            over.set()
        asking.result(timeout=60)
    assert len(took) > 1 and max(took) < SLOW, took


def refusal(cursor, sql: str) -> str:
    with pytest.raises(dbapi.Error) as caught:
        cursor.execute(sql)
        cursor.fetch_arrow_table()
    text = str(caught.value)
    # Ours, and not a connection that broke or a panic that was caught.
    assert "panic" not in text and "(Internal;" not in text, text
    return text


# --- greedy and endless


LARGE = {
    "long text": ("SELECT 1 -- " + "x" * (2 << 20), "bytes long; the limit is"),
    "a sum of 2,000 terms": (
        "SELECT " + " + ".join(["x"] * 2_000) + " FROM points",
        "operators and connectives; the limit is",
    ),
    "2,000 unions": (" UNION ALL ".join(["SELECT 1"] * 2_000), "operators and connectives; the limit is"),
    "60,000 columns": (
        "SELECT " + ", ".join(f"1 AS c{i}" for i in range(60_000)),
        "columns, arguments and values; the limit is",
    ),
    "5,000 parentheses": ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "(?i)recursion limit"),
}

LONG = {
    "an endless recursion": (f"{RECURSIVE} SELECT count(*) FROM t", f"deadline of {TIMEOUT} s"),
    "an endless answer": (f"{RECURSIVE} SELECT n FROM t", f"more than {ROW_LIMIT} rows|deadline of {TIMEOUT} s"),
    "a cross join that is sorted": (
        f"SELECT a.name || b.x AS k, c.x, d.x FROM {CROSSED} ORDER BY k, 2, 3",
        f"deadline of {TIMEOUT} s|query.spill_limit|(?i:memory)",
    ),
    "a cross join that is counted": (f"SELECT count(a.x + b.x * c.x - d.x) FROM {CROSSED}", f"deadline of {TIMEOUT} s"),
    "a join on a key of one value": (
        "SELECT sum(a.x * b.x + c.x * d.x) FROM points a, points b, points c, points d WHERE a.name = b.name AND b.name = c.name AND c.name = d.name",
        f"deadline of {TIMEOUT} s|query.spill_limit|(?i:memory)",
    ),
    "a join by more and less": (
        "SELECT sum(a.x * b.x + c.x * d.x) FROM points a JOIN points b ON a.x <> b.x JOIN points c ON b.x <> c.x JOIN points d ON c.x <> d.x",
        f"deadline of {TIMEOUT} s|query.spill_limit|(?i:memory)",
    ),
    "a cross join that is read": (f"SELECT a.x, b.x AS y, c.x AS z FROM {CROSSED}", f"more than {ROW_LIMIT} rows"),
    "a series as a value": ("SELECT generate_series(0, 1000000000000)", "limit"),
    "a series per row": ("SELECT cardinality(generate_series(0, x * 1000000000)) FROM points", "limit"),
    "a series as a table": ("SELECT * FROM generate_series(1, 1000000000000)", "generate_series"),
    "a text without end": ("SELECT repeat(name, 1000000000) FROM points", "limit"),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_text_ends_before_it_runs(server, cursor, name):
    sql, why = LARGE[name]
    with others_going_on(server):
        begun = time.monotonic()
        with pytest.raises(dbapi.Error, match=why):
            cursor.execute(sql)
            cursor.fetchall()
        took = time.monotonic() - begun
    assert took < TIMEOUT, took
    honest(cursor)


@pytest.mark.parametrize("name", LONG)
def test_an_attack_ends_in_time_while_others_go_on(server, cursor, name):
    sql, why = LONG[name]
    with others_going_on(server):
        begun = time.monotonic()
        with pytest.raises(dbapi.Error, match=why):
            cursor.execute(sql)
            cursor.fetch_arrow_table()
        took = time.monotonic() - begun
    assert took < TIMEOUT + 5, took
    honest(cursor)


def test_more_than_may_run_wait_and_end(server, cursor):
    """Six endless queries for four places: all end by their deadline, and the next query has its place."""
    texts = []

    def attack():
        with cursor_of(server) as endless:
            texts.append(refusal(endless, f"{RECURSIVE} SELECT count(*) FROM t"))

    threads = [threading.Thread(target=attack) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(texts) == 6 and all(f"deadline of {TIMEOUT} s" in text for text in texts), texts
    assert honest(cursor) < SLOW


# --- anything but reading


def writes(target: pathlib.Path) -> list[str]:
    return [
        f"COPY (SELECT 1) TO '{target}'",
        f"COPY points TO '{target}' STORED AS CSV",
        f"EXPLAIN COPY points TO '{target}'",
        f"EXPLAIN ANALYZE COPY points TO '{target}'",
        f"CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{target}'",
        "CREATE TABLE t AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE SCHEMA s",
        "CREATE DATABASE d",
        "CREATE FUNCTION f() RETURNS INT RETURN 1",
        "INSERT INTO points SELECT * FROM points",
        "EXPLAIN ANALYZE INSERT INTO points SELECT * FROM points",
        "UPDATE points SET x = 1",
        "DELETE FROM points",
        "DROP TABLE points",
        "TRUNCATE TABLE points",
        "ALTER TABLE points RENAME TO q",
        "SET datafusion.execution.target_partitions = 64",
        "RESET datafusion.execution.target_partitions",
        "SHOW ALL",
        "BEGIN",
        "SELECT 1; DROP TABLE points",
    ]


def test_sql_writes_and_sets_nothing(cursor, tmp_path):
    target = tmp_path / "out.csv"
    for sql in writes(target):
        refusal(cursor, sql)
        # A prepared statement is checked the same way.
        with pytest.raises(dbapi.Error):
            cursor.adbc_prepare(sql)
    assert list(tmp_path.iterdir()) == []
    honest(cursor)


def test_no_file_url_or_environment_is_reached(cursor, folder):
    file = folder / "canary.csv"
    tables = [
        f"'{file}'",
        f'"{file}"',
        f"'file://{file}'",
        f'"file://{file}"',
        f"'../../../{file.relative_to('/')}'",
        "'/proc/self/environ'",
        "'http://169.254.169.254/latest/meta-data'",
        '"s3://bucket/x.parquet"',
        '"../journal"',
        '"points/../points"',
        f"read_csv('{file}')",
        f"read_parquet('{file}')",
        f"read_json('{file}')",
        f"parquet_metadata('{file}')",
        f"search('{file}', 'secret')",
        "secrets.points",
    ]
    values = [
        "getenv('FOREBAY_CANARY')",
        "env('FOREBAY_CANARY')",
        "@@FOREBAY_CANARY",
        "$FOREBAY_CANARY",
        f"pg_read_file('{file}')",
    ]
    for sql in [f"SELECT * FROM {table}" for table in tables] + [f"SELECT {value}" for value in values]:
        assert CANARY not in refusal(cursor, sql), sql
    honest(cursor)


def test_the_command_line_says_why_too(server, tmp_path):
    """The same refusals reach whoever has no driver, with the status of bad input."""
    command = [os.environ["FOREBAY_BIN"], "sql", "--server", server.replace("grpc+tcp://", "grpc://")]
    for sql, why in [
        (f"COPY points TO '{tmp_path / 'x'}'", "SELECT or EXPLAIN"),
        (LARGE["a sum of 2,000 terms"][0], "limit is"),
    ]:
        done = subprocess.run([*command, sql], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (1, 2) and why in done.stderr and not done.stdout, done
