"""A real pipeline's result through delta-rs, Polars and DuckDB: the same rows as Forebay gives, also after others worked on the table."""

import json
import os
import pathlib
import subprocess

import deltalake
import duckdb
import forebay
import polars
import pytest

PIPELINE = """
name = "made"

[source]
uri = "made.csv"
format = "csv"

[source.csv]

[[steps]]
name = "shape"
sql = "SELECT x, name, random_uniform() AS noise, tensor(make_array(x, x + 1.0), 1, 2) AS grid FROM input"

[output]
shard_size = "8KiB"

[epochs]
count = 2
seed = 5
"""
ROWS = 500


@pytest.fixture
def made(tmp_path) -> pathlib.Path:
    lines = [f"{i}.5,{'' if i % 7 == 0 else f'rów {i}'}" for i in range(ROWS)]
    (tmp_path / "made.csv").write_text("x,name\n" + "\n".join(lines) + "\n")
    (tmp_path / "made.toml").write_text(PIPELINE.replace("[source.csv]\n\n", ""))
    forebay_command(tmp_path, "materialize", "made.toml")
    return tmp_path


def forebay_command(folder, *arguments):
    binary = os.environ.get("FOREBAY_BIN", "forebay")
    done = subprocess.run(
        [binary, *arguments, "--root", "root", "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(folder, epoch) -> list[tuple]:
    with forebay.connect(root=folder / "root") as client:
        table = client.sql(f"SELECT _id, x, name, noise FROM made WHERE epoch = {epoch} ORDER BY _id")
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def files(folder, version=None) -> list[str]:
    table = deltalake.DeltaTable(folder / "root" / "datasets" / "made", version=version)
    return [uri for uri in table.file_uris()]


def test_three_readers_see_the_same_rows(made):
    table = str(made / "root" / "datasets" / "made")
    for epoch in range(2):
        expected = ours(made, epoch)
        assert len(expected) == ROWS and len({row[3] for row in expected}) > ROWS // 2
        of_epoch = deltalake.DeltaTable(table).to_pyarrow_table(
            partitions=[("epoch", "=", str(epoch))], columns=["_id", "x", "name", "noise"]
        )
        delta = of_epoch.sort_by("_id")
        assert list(zip(*(c.to_pylist() for c in delta.columns), strict=True)) == expected
        lazily = polars.scan_delta(table).filter(polars.col("epoch") == epoch).sort("_id")
        assert lazily.select("_id", "x", "name", "noise").collect().rows() == expected
        paths = [path for path in files(made) if f"epoch={epoch}/" in path]
        rows = duckdb.sql("SELECT _id, x, name, noise FROM read_parquet($paths) ORDER BY _id", params={"paths": paths})
        assert rows.fetchall() == expected


def test_a_checkpoint_of_another_writer_changes_nothing(made):
    before = [ours(made, epoch) for epoch in range(2)]
    table = deltalake.DeltaTable(made / "root" / "datasets" / "made")
    table.create_checkpoint()
    for commit in (made / "root" / "datasets" / "made" / "_delta_log").glob("*.json"):
        commit.unlink()
    forebay_command(made, "materialize", "made.toml", "--set", "epochs.count=3")
    assert [ours(made, epoch) for epoch in range(2)] == before
    third = ours(made, 2)
    assert [row[:3] for row in third] == [row[:3] for row in before[0]] and third != before[0]
    assert deltalake.DeltaTable(made / "root" / "datasets" / "made").version() == table.version() + 1
