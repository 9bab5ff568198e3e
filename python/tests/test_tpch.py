"""TPC-H by pipelines and through Flight SQL: the 22 queries answer what DuckDB answers of the same files.

FOREBAY_TPCH_BIN names the program that makes the rows (`tests/examples/tpch.rs`), FOREBAY_TPCH_SCALE how many: 0.1 unless it says otherwise.
"""

import datetime
import decimal
import math
import os
import pathlib
import subprocess
import time

import duckdb
import forebay
import pytest
from adbc_driver_flightsql import dbapi
from roles import Role, free_port, started

pytestmark = pytest.mark.skipif("FOREBAY_TPCH_BIN" not in os.environ, reason="names the program that makes the rows")

SCALE = os.environ.get("FOREBAY_TPCH_SCALE", "0.1")
# Files of the larger tables, and so tasks of their pipelines.
PARTS = 4
# Averages and ratios are doubles in DuckDB. Beside a decimal they may differ by one of its last digit, beside a double by this part of the value.
TOLERANCE = 1e-9

INT, BIG, TEXT, MONEY, DATE = "INTEGER", "BIGINT", "VARCHAR", "DECIMAL(15, 2)", "DATE"
TABLES = {
    "nation": {"n_nationkey": BIG, "n_name": TEXT, "n_regionkey": BIG, "n_comment": TEXT},
    "region": {"r_regionkey": BIG, "r_name": TEXT, "r_comment": TEXT},
    "supplier": {
        "s_suppkey": BIG,
        "s_name": TEXT,
        "s_address": TEXT,
        "s_nationkey": BIG,
        "s_phone": TEXT,
        "s_acctbal": MONEY,
        "s_comment": TEXT,
    },
    "part": {
        "p_partkey": BIG,
        "p_name": TEXT,
        "p_mfgr": TEXT,
        "p_brand": TEXT,
        "p_type": TEXT,
        "p_size": INT,
        "p_container": TEXT,
        "p_retailprice": MONEY,
        "p_comment": TEXT,
    },
    "customer": {
        "c_custkey": BIG,
        "c_name": TEXT,
        "c_address": TEXT,
        "c_nationkey": BIG,
        "c_phone": TEXT,
        "c_acctbal": MONEY,
        "c_mktsegment": TEXT,
        "c_comment": TEXT,
    },
    "partsupp": {"ps_partkey": BIG, "ps_suppkey": BIG, "ps_availqty": INT, "ps_supplycost": MONEY, "ps_comment": TEXT},
    "orders": {
        "o_orderkey": BIG,
        "o_custkey": BIG,
        "o_orderstatus": TEXT,
        "o_totalprice": MONEY,
        "o_orderdate": DATE,
        "o_orderpriority": TEXT,
        "o_clerk": TEXT,
        "o_shippriority": INT,
        "o_comment": TEXT,
    },
    "lineitem": {
        "l_orderkey": BIG,
        "l_partkey": BIG,
        "l_suppkey": BIG,
        "l_linenumber": INT,
        "l_quantity": MONEY,
        "l_extendedprice": MONEY,
        "l_discount": MONEY,
        "l_tax": MONEY,
        "l_returnflag": TEXT,
        "l_linestatus": TEXT,
        "l_shipdate": DATE,
        "l_commitdate": DATE,
        "l_receiptdate": DATE,
        "l_shipinstruct": TEXT,
        "l_shipmode": TEXT,
        "l_comment": TEXT,
    },
}


def pipeline(table: str) -> str:
    """A pipeline that reads a table's files as text and casts its columns to TPC-H's types."""
    columns = TABLES[table]
    types = ", ".join(f'{name} = "string"' for name in columns)
    casts = ", ".join(name if kind == TEXT else f"CAST({name} AS {kind}) AS {name}" for name, kind in columns.items())
    return f"""
name = "{table}"
[source]
uri = "{table}/*.csv"
format = "csv"
options = {{ types = {{ {types} }}, null_values = [] }}
[[steps]]
name = "typed"
sql = "SELECT {casts} FROM input"
[epochs]
count = 1
seed = 1
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tpch")
    subprocess.run([os.environ["FOREBAY_TPCH_BIN"], SCALE, str(folder), str(PARTS)], check=True)
    for table in TABLES:
        (folder / f"{table}.toml").write_text(pipeline(table))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory, files) -> pathlib.Path:
    root = tmp_path_factory.mktemp("root")
    with forebay.connect(root=root) as client:
        for table in TABLES:
            client.materialize(files / f"{table}.toml", progress=False)
        # Query 15 asks a view.
        client.create_view("revenue", (files / "queries" / "15.view.sql").read_text())
    return root


@pytest.fixture(scope="module")
def expected(files) -> list[list[tuple]]:
    """What DuckDB answers, of the same files."""
    with duckdb.connect() as database:
        for table, columns in TABLES.items():
            kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
            source = f"read_csv('{files / table}/*.csv', header = true, nullstr = '\\N', columns = {{{kinds}}})"
            database.execute(f"CREATE TABLE {table} AS SELECT * FROM {source}")
        database.execute(f"CREATE VIEW revenue AS {(files / 'queries' / '15.view.sql').read_text()}")
        return [database.execute(query(files, number)).fetchall() for number in range(1, 23)]


def query(files: pathlib.Path, number: int) -> str:
    return (files / "queries" / f"{number}.sql").read_text()


def same(ours, theirs) -> bool:
    """Equal: exactly, but where DuckDB has a double."""
    if isinstance(theirs, float) and isinstance(ours, int | float | decimal.Decimal):
        digit = 10.0 ** ours.as_tuple().exponent if isinstance(ours, decimal.Decimal) else 0.0
        return math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=digit)
    if isinstance(ours, datetime.date) or isinstance(theirs, datetime.date):
        return str(ours) == str(theirs)
    return ours == theirs


def check(number: int, ours: list[tuple], theirs: list[tuple]) -> None:
    assert len(ours) == len(theirs), f"query {number}: {len(ours)} rows, DuckDB has {len(theirs)}"
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        equal = len(mine) == len(other) and all(same(a, b) for a, b in zip(mine, other, strict=True))
        assert equal, f"query {number}, row {row}: {mine}, DuckDB has {other}"


def answers(address: str, files: pathlib.Path) -> list[list[tuple]]:
    """Of all queries, through ADBC."""
    uri = address.replace("grpc://", "grpc+tcp://")
    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        rows = []
        for number in range(1, 23):
            cursor.execute(query(files, number))
            rows.append(cursor.fetchall())
        return rows


def settle(number: int, rows: list[tuple]) -> list[tuple]:
    """Rows as their ORDER BY fixes them: where it leaves some in any order, by all their columns."""
    key = ORDERS.get(number)
    return sorted(rows, key=lambda row: (*key(row), *(repr(value) for value in row))) if key else rows


# What the queries order by where that leaves ties; the others' keys are unique.
ORDERS = {
    3: lambda row: (-row[1], row[2]),
    10: lambda row: (-row[2],),
    11: lambda row: (-row[1],),
    18: lambda row: (-row[4], row[3]),
    21: lambda row: (-row[1], row[0]),
}


def check_all(ours: list[list[tuple]], theirs: list[list[tuple]]) -> None:
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        if key := ORDERS.get(number):
            keys = [key(row) for row in mine]
            assert keys == sorted(keys), f"query {number} is not in order"
        check(number, settle(number, mine), settle(number, other))
    # A scale at which nothing is found would show nothing.
    assert sum(bool(rows) for rows in theirs) >= 20


def test_one_node_answers_what_duckdb_answers(root, files, expected):
    with forebay.connect(root=root) as client:
        check_all(answers(client.address, files), expected)


def test_three_workers_answer_what_duckdb_answers(root, files, expected):
    with started() as start:
        leader = start(Role, "dispatcher", "--root", str(root), "--listen", f"127.0.0.1:{free_port()}")
        for number in range(3):
            start(Role, "worker", "--dispatcher", leader.address, "--listen", "127.0.0.1:0", "--name", f"w{number}")
        with forebay.connect(leader.address) as client:
            # Queries go to workers that have come.
            end = time.monotonic() + 60
            while client.sql("SELECT count(*) AS n FROM system.workers")["n"].to_pylist() != [3]:
                assert time.monotonic() < end, "the workers did not come"
                time.sleep(0.1)
        check_all(answers(leader.address, files), expected)
