"""TPC-H and clicks through Flight SQL, beside DataFusion in process and DuckDB on the same Parquet files, in one run.

Pipelines materialize the tables of the given scale, and an epoch of clicks shaped like Criteo's: a label, 13 integers, 26 categories. Then each of
the 22 queries and of three over the clicks runs once unmeasured and RUNS times measured in each system, with the
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
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_flightsql import dbapi

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))
import test_tpch

QUERIES = range(1, 23)

CLICKS = """
name = "clicks"
[source]
uri = "clicks-*.parquet"
format = "parquet"
"""
# What is asked of such an epoch before training: how often each category comes and how well it tells, what the integers look like, what a rare one is.
CLICK_QUERIES = {
    "rate": "SELECT c3, count(*) AS n, avg(label) AS rate FROM clicks GROUP BY c3 HAVING count(*) >= 100 ORDER BY rate DESC, c3 LIMIT 100",
    "moments": """SELECT label, count(*) AS n, count(DISTINCT c6) AS kinds, avg(ln(1 + i1)) AS i1, stddev(ln(1 + i2)) AS i2, max(i5) AS i5, sum(i11) AS i11
        FROM clicks WHERE i7 IS NOT NULL AND c20 <> '' GROUP BY label ORDER BY label""",
    "rare": """SELECT count(*) AS n, avg(label) AS rate FROM clicks
        WHERE c12 IN (SELECT c12 FROM clicks GROUP BY c12 HAVING count(*) <= 3)""",
}


def write_clicks(files: Path, rows: int, shards: int = 8) -> None:
    """Rows with the shape of Criteo's: skewed counts of which some are missing, categories of Zipf's law as eight hexadecimal digits."""
    rng = np.random.default_rng(4)
    sizes = [10 ** (1 + place % 6) for place in range(26)]
    for shard in range(shards):
        n = rows // shards
        columns = {"label": pa.array((rng.random(n) < 0.256).astype(np.int8))}
        for place in range(1, 14):
            counts = np.floor(rng.lognormal(1.0 + place / 6, 1.2, n)).astype(np.int64)
            columns[f"i{place}"] = pa.array(counts, mask=rng.random(n) < place / 40)
        for place, size in enumerate(sizes, start=1):
            ranks = (rng.zipf(1.2, n) % size).astype(np.uint64)
            hashed = (ranks * np.uint64(0x9E3779B1) + np.uint64(place)) & np.uint64(0xFFFFFFFF)
            kinds, codes = np.unique(hashed, return_inverse=True)
            texts = pa.array([f"{kind:08x}" for kind in kinds.tolist()])
            columns[f"c{place}"] = texts.take(pa.array(codes))
        pq.write_table(pa.table(columns), files / f"clicks-{shard}.parquet")


def materialized(scale: str, rows: int, folder: Path) -> tuple[Path, Path]:
    """The benchmark's files, and a root with a dataset for each table."""
    files, root = folder / "files", folder / "root"
    subprocess.run([os.environ["FOREBAY_TPCH_BIN"], scale, str(files), "8"], check=True)
    with forebay.connect(root=root) as client:
        for table in test_tpch.TABLES:
            (files / f"{table}.toml").write_text(test_tpch.pipeline(table))
            client.materialize(files / f"{table}.toml")
        write_clicks(files, rows)
        (files / "clicks.toml").write_text(CLICKS)
        client.materialize(files / "clicks.toml")
        client.create_view("revenue", (files / "queries" / "15.view.sql").read_text())
    return files, root


def stored(client) -> dict[str, list[str]]:
    """The Parquet files of each table."""
    tables = {}
    for table in [*test_tpch.TABLES, "clicks"]:
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
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the clicks")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, help="keep the files and the root there, and use them again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if (folder / "root").exists():
            files, root = folder / "files", folder / "root"
        else:
            files, root = materialized(arguments.scale, arguments.rows, folder)
        paths = [files / "queries" / f"{number}.sql" for number in QUERIES]
        for name, text in CLICK_QUERIES.items():
            paths.append(files / "queries" / f"{name}.sql")
            paths[-1].write_text(text)
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
    print(
        f"TPC-H scale {arguments.scale}, {arguments.rows:,} clicks, {arguments.threads} threads, medians of {arguments.runs} warm runs in ms"
    )
    print("query    " + "".join(f"{name:>12}" for name in medians))
    for place, name in enumerate([*QUERIES, *CLICK_QUERIES]):
        print(f"{name!s:>7}  " + "".join(f"{column[place] * 1000:>12.1f}" for column in medians.values()))
    for what, part in [("TPC-H", slice(0, len(QUERIES))), ("clicks", slice(len(QUERIES), None)), ("all", slice(None))]:
        totals = {name: sum(column[part]) for name, column in medians.items()}
        print(f"{what:>7}  " + "".join(f"{total * 1000:>12.1f}" for total in totals.values()))
        ratios = [f"forebay / {other} {totals['forebay'] / totals[other]:.2f}" for other in ("datafusion", "duckdb")]
        print(f"         {', '.join(ratios)}")


if __name__ == "__main__":
    main()
