"""TPC-H through Flight SQL, beside DataFusion in process and DuckDB on the same Parquet files, in one run.

Pipelines materialize the tables of the given scale. Then each of the 22 queries runs once unmeasured and RUNS times measured in each system, with the
same number of threads; the totals of the medians are compared. Ours pay for the wire. FOREBAY_BIN names the binary, FOREBAY_TPCH_BIN the program that
makes the rows (`tests/examples/tpch.rs`), FOREBAY_IN_PROCESS_BIN DataFusion alone (`sql/examples/in_process.rs`); without release builds the
numbers mean nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import forebay
from adbc_driver_flightsql import dbapi

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))
import test_tpch

QUERIES = range(1, 23)


def materialized(scale: str, folder: Path) -> tuple[Path, Path]:
    """The benchmark's files, and a root with a dataset for each table."""
    files, root = folder / "files", folder / "root"
    subprocess.run([os.environ["FOREBAY_TPCH_BIN"], scale, str(files), "8"], check=True)
    with forebay.connect(root=root) as client:
        for table in test_tpch.TABLES:
            (files / f"{table}.toml").write_text(test_tpch.pipeline(table))
            client.materialize(files / f"{table}.toml")
        client.create_view("revenue", (files / "queries" / "15.view.sql").read_text())
    return files, root


def stored(client) -> dict[str, list[str]]:
    """The Parquet files of each table."""
    tables = {}
    for table in test_tpch.TABLES:
        info = client.dataset(table).info
        folder = info["table"].removeprefix("file://")
        tables[table] = [f"{folder}/{file['path']}" for file in info["files"]]
    return tables


def timed(runs: int, run) -> list[float]:
    """Seconds of each run but the first."""
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def ours(address: str, queries: list[str], runs: int) -> list[list[float]]:
    uri = address.replace("grpc://", "grpc+tcp://")
    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:

        def run(query: str) -> None:
            cursor.execute(query)
            cursor.fetch_arrow_table()

        return [timed(runs, lambda query=query: run(query)) for query in queries]


def theirs(
    tables: dict[str, list[str]], views: dict[str, str], queries: list[str], runs: int, threads: int
) -> list[list[float]]:
    with duckdb.connect(config={"threads": threads}) as database:
        for table, files in tables.items():
            database.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet({files!r})")
        for view, text in views.items():
            database.execute(f"CREATE VIEW {view} AS {text}")
        return [timed(runs, lambda query=query: database.execute(query).fetch_arrow_table()) for query in queries]


def alone(described: Path, queries: list[Path], runs: int, threads: int) -> list[list[float]]:
    command = [os.environ["FOREBAY_IN_PROCESS_BIN"], str(described), str(threads), str(runs), *map(str, queries)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, help="keep the files and the root there, and use them again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if (folder / "root").exists():
            files, root = folder / "files", folder / "root"
        else:
            files, root = materialized(arguments.scale, folder)
        paths = [files / "queries" / f"{number}.sql" for number in QUERIES]
        queries = [path.read_text() for path in paths]
        views = {"revenue": (files / "queries" / "15.view.sql").read_text()}
        with forebay.connect(root=root) as client:
            tables = stored(client)
            described = folder / "tables.json"
            described.write_text(json.dumps({"tables": tables, "views": views}))
            columns = {
                "forebay": ours(client.address, queries, arguments.runs),
                "datafusion": alone(described, paths, arguments.runs, arguments.threads),
                "duckdb": theirs(tables, views, queries, arguments.runs, arguments.threads),
            }
    medians = {name: [statistics.median(runs) for runs in column] for name, column in columns.items()}
    print(f"TPC-H scale {arguments.scale}, {arguments.threads} threads, medians of {arguments.runs} warm runs in ms")
    print("query  " + "".join(f"{name:>12}" for name in medians))
    for place, number in enumerate(QUERIES):
        print(f"{number:>5}  " + "".join(f"{column[place] * 1000:>12.1f}" for column in medians.values()))
    totals = {name: sum(column) for name, column in medians.items()}
    print("total  " + "".join(f"{total * 1000:>12.1f}" for total in totals.values()))
    print(f"forebay / datafusion in process: {totals['forebay'] / totals['datafusion']:.2f}")
    print(f"forebay / duckdb: {totals['forebay'] / totals['duckdb']:.2f}")


if __name__ == "__main__":
    main()
