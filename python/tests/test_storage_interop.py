"""A table written by `storage/examples/write_sample.rs`, read by other programs: each must see the same rows.

FOREBAY_SAMPLE_TABLE is the table's folder. The values follow from the row number by the formulas of the example.
"""

import datetime
import json
import os

import deltalake
import duckdb
import numpy
import polars
import pyarrow.parquet

TABLE = os.environ["FOREBAY_SAMPLE_TABLE"]
ROWS = 1000
EPOCHS = 2
UTC = datetime.UTC
START = datetime.datetime(1970, 1, 1)


def scan(i):
    height = i % 3
    values = numpy.arange(height * 2, dtype=numpy.uint16) + i * 50
    return {"data": values.astype("<u2").tobytes(), "shape": [height, 2]}


def expected(epoch, i):
    return {
        "epoch": epoch,
        "_id": i,
        "_source": "sample.csv",
        "n": None if i % 5 == 0 else i * 10 + epoch,
        "name": None if i % 7 == 0 else f"rów {i}",
        "small": 65535 - i,
        "big": 2**63 + i,
        "half": i / 2,
        "flag": None if i % 3 == 0 else i % 2 == 0,
        "day": datetime.date(1970, 1, 1) + datetime.timedelta(days=19000 + i),
        "seen": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) + datetime.timedelta(microseconds=i),
        "local": START + datetime.timedelta(microseconds=i),
        "tokens": None if i % 11 == 0 else [i + k for k in range(i % 4)],
        "image": bytes((i + k) % 256 for k in range(48)),
        "scan": None if i % 13 == 0 else scan(i),
    }


def plain(row):
    """Differences of representation that are no differences of value."""
    row = dict(row)
    row["big"] = int(row["big"])
    row["half"] = float(row["half"])
    for key in ("seen", "local"):
        value = row[key]
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        row[key] = value.astimezone(UTC)
    row["image"] = bytes(row["image"])
    if row["scan"] is not None:
        row["scan"] = {"data": bytes(row["scan"]["data"]), "shape": list(row["scan"]["shape"])}
    if row["tokens"] is not None:
        row["tokens"] = list(row["tokens"])
    return row


def check(rows):
    rows = sorted((plain(r) for r in rows), key=lambda r: (r["epoch"], r["_id"]))
    assert len(rows) == ROWS * EPOCHS
    for n, row in enumerate(rows):
        assert row == plain(expected(n // ROWS, n % ROWS)), f"row {n}"


def files():
    return deltalake.DeltaTable(TABLE).file_uris()


def test_deltalake_reads_the_rows():
    table = deltalake.DeltaTable(TABLE)
    assert table.version() == EPOCHS - 1
    assert table.metadata().partition_columns == ["epoch"]
    check(polars.read_delta(TABLE).iter_rows(named=True))


def test_deltalake_reads_an_old_version():
    assert polars.read_delta(TABLE, version=0).height == ROWS
    table = deltalake.DeltaTable(TABLE, version=0)
    assert len(table.file_uris()) == 3


def test_deltalake_arrow_reads_the_rows():
    table = deltalake.DeltaTable(TABLE).to_pyarrow_table()
    check(table.to_pylist())


def test_the_schema_keeps_what_the_stored_types_stood_for():
    fields = {f.name: f for f in deltalake.DeltaTable(TABLE).schema().fields}
    tensor = json.loads(fields["image"].metadata["forebay.tensor"])
    assert tensor == {"dtype": "UInt8", "shape": [4, 4, 3]}
    assert fields["small"].metadata["forebay.type"] == "UInt16"
    assert fields["big"].metadata["forebay.type"] == "UInt64"


def test_polars_prunes_and_projects():
    frame = (
        polars.scan_delta(TABLE)
        .filter((polars.col("epoch") == 1) & (polars.col("_id") >= 990))
        .select("_id", "n")
        .collect()
    )
    assert sorted(frame["_id"].to_list()) == list(range(990, 1000))
    assert set(frame["n"].drop_nulls().to_list()) == {i * 10 + 1 for i in range(990, 1000) if i % 5}


def test_duckdb_reads_the_files():
    relation = duckdb.sql(f"SELECT * FROM read_parquet({files()!r}, hive_partitioning = true)")
    names = relation.columns
    check(dict(zip(names, row)) for row in relation.fetchall())
    sums = duckdb.sql(
        f"SELECT epoch, count(*), sum(n), min(small) FROM read_parquet({files()!r}, hive_partitioning = true) GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert sums == [(e, ROWS, sum(i * 10 + e for i in range(ROWS) if i % 5), 65535 - 999) for e in range(EPOCHS)]


def test_pyarrow_sees_tensors_as_fixed_size_bytes():
    file = min(files()).removeprefix("file://")
    table = pyarrow.parquet.read_table(file, partitioning=None)
    assert str(table.schema.field("image").type) == "fixed_size_binary[48]"
    first = numpy.frombuffer(table["image"][1].as_py(), dtype=numpy.uint8).reshape(4, 4, 3)
    assert first[0, 0].tolist() == [1, 2, 3]
    metadata = pyarrow.parquet.read_metadata(file)
    image = metadata.row_group(0).column(table.schema.get_field_index("image"))
    assert image.physical_type == "FIXED_LEN_BYTE_ARRAY" and "PLAIN" in image.encodings and not image.is_stats_set


if __name__ == "__main__":
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
