"""Full-text search over captions, beside SQLite's FTS5 (and DuckDB's fts where its extension is at hand) in the same run.

Captions are synthetic: words of a Zipf vocabulary, so that there are common and rare ones, as in real text. All systems answer the same mixed
set of queries with their ten best rows, interleaved, and one client at a time. Measured are the median and the 99th percentile of warm queries,
and the first query of a new process with an empty bundle cache. FOREBAY_BIN names the binary; without a release build the numbers mean nothing.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import forebay
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BINARY = os.environ["FOREBAY_BIN"]
SHARDS = 8
LIMIT = 10

PIPELINE = """
name = "captions"
[source]
uri = "captions-*.parquet"
format = "parquet"
options = {{ task_size = {task_size} }}
[output]
shard_size = "1GiB"
[index]
text = ["caption"]
"""


def vocabulary(size: int, rng: random.Random) -> list[str]:
    """Different words of three to ten letters."""
    words: set[str] = set()
    while len(words) < size:
        words.add("".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(3, 10))))
    return sorted(words, key=lambda _: rng.random())


def captions(rows: int, words: list[str], seed: int) -> list[str]:
    """Texts of 5 to 20 words; the word of rank r is drawn with a weight of 1/r."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 21, rows)
    weights = 1.0 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), lengths.sum(), p=weights / weights.sum())
    ends = np.cumsum(lengths)
    return [" ".join(words[i] for i in drawn[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


def queries(words: list[str], texts: list[str], count: int, rng: random.Random) -> list[tuple[str, str, str]]:
    """(kind, our query, FTS5's) of common and rare words, several words, either of two, without one, phrases and beginnings."""
    common, middle, rare = words[:20], words[20:2000], words[2000:]
    found = []
    for i in range(count):
        match i % 7:
            case 0:
                word = rng.choice(common)
                found.append(("common word", word, word))
            case 1:
                word = rng.choice(rare)
                found.append(("rare word", word, word))
            case 2:
                a, b = rng.choice(common), rng.choice(middle)
                found.append(("two words", f"{a} {b}", f"{a} {b}"))
            case 3:
                a, b = rng.choice(middle), rng.choice(middle)
                found.append(("either", f"{a} OR {b}", f"{a} OR {b}"))
            case 4:
                a, b = rng.choice(middle), rng.choice(common)
                found.append(("without", f"{a} -{b}", f"{a} NOT {b}"))
            case 5:
                text = rng.choice(texts).split()
                at = rng.randrange(len(text) - 1)
                phrase = f'"{text[at]} {text[at + 1]}"'
                found.append(("phrase", phrase, phrase))
            case 6:
                start = rng.choice(middle)[:4]
                found.append(("beginning", f"{start}*", f"{start}*"))
    return found


class Sqlite:
    """FTS5 in a file, with its own BM25."""

    name = "SQLite FTS5"

    def __init__(self, folder: Path, texts: list[str]):
        self.db = sqlite3.connect(folder / "fts.db")
        self.db.execute("CREATE VIRTUAL TABLE t USING fts5(caption)")
        with self.db:
            self.db.executemany("INSERT INTO t(rowid, caption) VALUES (?, ?)", enumerate(texts))
            self.db.execute("INSERT INTO t(t) VALUES ('optimize')")

    def ask(self, query: tuple[str, str, str]) -> int:
        sql = "SELECT rowid, rank FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?"
        return len(self.db.execute(sql, (query[2], LIMIT)).fetchall())

    def count(self, query: tuple[str, str, str]) -> int:
        return self.db.execute("SELECT count(*) FROM t WHERE t MATCH ?", (query[2],)).fetchone()[0]


class Forebay:
    """A server process and a client over Flight, the wire included."""

    name = "Forebay"

    def __init__(self, root: Path):
        self.client = forebay.connect(root=root)

    def sql(self, query: tuple[str, str, str], limit: int) -> str:
        return f"SELECT _id, _score FROM search(captions, '{query[1]}', {limit})"

    def ask(self, query: tuple[str, str, str]) -> int:
        return self.client.sql(self.sql(query, LIMIT)).num_rows

    def count(self, query: tuple[str, str, str]) -> int:
        text = f"SELECT count(*) AS n FROM captions WHERE text_match(caption, '{query[1]}')"
        return self.client.sql(text)["n"][0].as_py()


def duckdb_error() -> type[Exception]:
    """What DuckDB raises, where it is installed."""
    try:
        import duckdb
    except ImportError:
        return ImportError
    return duckdb.Error


class Duck:
    """DuckDB's fts extension: words only, all of them."""

    name = "DuckDB fts"

    def __init__(self, folder: Path, texts: list[str]):
        import duckdb

        self.db = duckdb.connect(str(folder / "fts.duckdb"))
        self.db.execute("LOAD fts")
        table = pa.table({"id": range(len(texts)), "caption": texts})
        self.db.register("given", table)
        self.db.execute("CREATE TABLE t AS SELECT * FROM given")
        self.db.execute("PRAGMA create_fts_index('t', 'id', 'caption', stemmer='none', stopwords='none')")

    def ask(self, query: tuple[str, str, str]) -> int:
        sql = (
            "SELECT id, s FROM (SELECT id, fts_main_t.match_bm25(id, ?, conjunctive := 1) AS s FROM t)"
            " WHERE s IS NOT NULL ORDER BY s DESC LIMIT ?"
        )
        return len(self.db.execute(sql, (query[1], LIMIT)).fetchall())


def materialize(folder: Path, root: Path, texts: list[str]) -> float:
    share = -(-len(texts) // SHARDS)
    for i in range(SHARDS):
        part = pa.table({"caption": texts[i * share : (i + 1) * share]})
        pq.write_table(part, folder / f"captions-{i}.parquet")
    largest = max(path.stat().st_size for path in folder.glob("captions-*.parquet"))
    (folder / "captions.toml").write_text(PIPELINE.format(task_size=largest))
    started = time.perf_counter()
    subprocess.run([BINARY, "materialize", str(folder / "captions.toml"), "--root", str(root)], check=True)
    return time.perf_counter() - started


def cold(root: Path, query: tuple[str, str, str], folder: Path, runs: int) -> tuple[float, float]:
    """Seconds of a whole new process with an empty cache, and of its query alone as the process sees it."""
    whole, inner = [], []
    for i in range(runs):
        environment = os.environ | {"FOREBAY_CACHE_DIR": str(folder / f"cache-{i}")}
        sql = f"SELECT _id, _score FROM search(captions, '{query[1]}', {LIMIT})"
        started = time.perf_counter()
        subprocess.run(
            [BINARY, "sql", sql, "--root", str(root), "--format", "json"],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        whole.append(time.perf_counter() - started)
        started = time.perf_counter()
        empty = [BINARY, "sql", "SELECT 1", "--root", str(root), "--format", "json"]
        subprocess.run(empty, check=True, env=environment, stdout=subprocess.DEVNULL)
        inner.append(whole[-1] - (time.perf_counter() - started))
    return statistics.median(whole), statistics.median(inner)


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=700)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    rng = random.Random(7)
    words = vocabulary(args.words, rng)
    texts = captions(args.rows, words, 7)
    asked = queries(words, texts, args.queries, rng)
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name), Path(name) / "root"
        built = materialize(folder, root, texts)
        started = time.perf_counter()
        systems: list = [Sqlite(folder, texts)]
        print(
            f"{args.rows:,} captions: materialized and indexed in {built:.1f} s, FTS5 in {time.perf_counter() - started:.1f} s"
        )
        try:
            systems.append(Duck(folder, texts))
        except (ImportError, duckdb_error()) as error:
            print(f"without DuckDB's fts: {str(error).splitlines()[0]}")
        figures: dict = {"rows": args.rows, "built": built}
        # Before a server holds the root: each of these is a process of its own.
        whole, inner = cold(root, asked[2], folder, 5)
        figures["cold"] = {"process": whole, "query": inner}
        print(f"first query of a new process: {whole * 1e3:.0f} ms in all, {inner * 1e3:.0f} ms more than SELECT 1")
        systems.insert(0, Forebay(root))
        for query in asked[:14]:
            counts = {s.name: s.count(query) for s in systems if hasattr(s, "count")}
            assert len(set(counts.values())) == 1, (query, counts)
        times: dict[str, list[tuple[str, float]]] = {s.name: [] for s in systems}
        for query in asked:
            for system in systems:
                if isinstance(system, Duck) and query[0] not in ("common word", "rare word", "two words"):
                    continue
                started = time.perf_counter()
                system.ask(query)
                times[system.name].append((query[0], time.perf_counter() - started))
        for system in systems:
            taken = [seconds for _, seconds in times[system.name]]
            median, high = statistics.median(taken), percentile(taken, 0.99)
            figures[system.name] = {"median": median, "p99": high, "queries": len(taken)}
            print(
                f"{system.name:12} median {median * 1e3:7.2f} ms   p99 {high * 1e3:7.2f} ms   of {len(taken)} queries"
            )
            for kind in dict.fromkeys(kind for kind, _ in times[system.name]):
                of_kind = [seconds for k, seconds in times[system.name] if k == kind]
                print(f"    {kind:12} median {statistics.median(of_kind) * 1e3:7.2f} ms")
        systems[0].client.close()
        if args.json:
            print(json.dumps(figures))


if __name__ == "__main__":
    main()
