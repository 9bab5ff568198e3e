"""A root per test module with a small dataset, served by the real binary (FOREBAY_BIN, or what `forebay.connect` finds)."""

import pathlib

import forebay
import pytest

ROWS = 1000

PIPELINE = """
name = "points"

[source]
uri = "points.csv"
format = "csv"

[[steps]]
name = "shape"
sql = "SELECT x, label, name, tensor(make_array(x, x + 1.0, x + 2.0, x + 3.0, x + 4.0, x + 5.0), 2, 3) AS grid FROM input"

[[steps]]
name = "double"
python = "twice:twice"
options = { factor = 2.0 }

[epochs]
count = 2
seed = 1
"""

STEP = """
import helper


def twice(batch, factor, epoch):
    return helper.with_column(batch, "y", [x * factor + epoch for x in batch.column("x").to_pylist()])
"""

HELPER = """
import pyarrow as pa


def with_column(batch, name, values):
    kept = [c for c in batch.schema.names if c not in ("_id", "_part", "_source")]
    columns = {c: batch.column(c) for c in kept}
    return pa.record_batch(columns | {name: pa.array(values, pa.float64())})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pipeline")
    lines = [f"{i}.5,{i % 10},row {i}" for i in range(ROWS)]
    (folder / "points.csv").write_text("x,label,name\n" + "\n".join(lines) + "\n")
    (folder / "points.toml").write_text(PIPELINE)
    (folder / "twice.py").write_text(STEP)
    (folder / "helper.py").write_text(HELPER)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def client(root, folder):
    with forebay.connect(root=root) as client:
        client.materialize(folder / "points.toml")
        yield client
