"""Datasets, pipelines, SQL and writing, against the real binary."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import forebay
import pyarrow as pa
import pytest
from conftest import ROWS


def test_materialize_again_reads_nothing(client, folder):
    again = client.materialize(folder / "points.toml", progress=False)
    assert again["state"] == "already_materialized"


def test_a_changed_pipeline_says_what_changed(client, folder):
    with pytest.raises(forebay.FailedPrecondition, match="factor"):
        client.materialize(folder / "points.toml", set={"steps.double.options.factor": 3.0})


def test_bad_pipelines_name_the_key(client, folder):
    (folder / "bad.toml").write_text('name = "bad"\n[sorce]\nuri = "points.csv"\n')
    with pytest.raises(forebay.BadInput, match="source"):
        client.materialize(folder / "bad.toml")
    with pytest.raises(forebay.NotFound):
        client.materialize(folder / "nothing.toml")


def test_datasets(client):
    assert [d["name"] for d in client.datasets()] == ["points"]
    dataset = client.dataset("points")
    assert dataset.epochs == [0, 1] and dataset.rows == 2 * ROWS
    assert dataset.schema.field("grid").type == pa.fixed_shape_tensor(pa.float64(), [2, 3])
    with pytest.raises(forebay.NotFound, match="nowhere"):
        client.dataset("nowhere")


def test_to_arrow(client):
    dataset = client.dataset("points")
    table = dataset.to_arrow(epoch=1, columns=["_id", "x", "y"])
    assert table.column_names == ["_id", "x", "y"] and table.num_rows == ROWS
    assert all(y == 2 * x + 1 for x, y in zip(table["x"].to_pylist(), table["y"].to_pylist(), strict=True))
    assert dataset.to_arrow().num_rows == 2 * ROWS
    with pytest.raises(forebay.BadInput, match="no column `z`"):
        dataset.to_arrow(columns=["z"])


def test_sql(client):
    table = client.sql("SELECT label, count(*) AS n FROM points WHERE epoch = 0 GROUP BY label ORDER BY label")
    assert table.to_pydict() == {"label": list(range(10)), "n": [ROWS // 10] * 10}
    with pytest.raises(forebay.BadInput, match="nonsense"):
        client.sql("SELECT nonsense FROM points")
    with pytest.raises(forebay.Error):
        client.sql("DROP TABLE points")


def test_write(client):
    table = pa.table({"v": pa.array(range(5000), pa.int64()), "s": [f"text {i}" for i in range(5000)]})
    client.write("written", table)
    back = client.dataset("written").to_arrow()
    assert back["v"].to_pylist() == list(range(5000)) and back["_id"].to_pylist() == list(range(5000))
    with pytest.raises(forebay.AlreadyExists):
        client.write("written", table)
    with pytest.raises(forebay.BadInput):
        client.write("not a name", table)
    with pytest.raises(forebay.BadInput, match="nothing to write"):
        client.write("empty", [])


def test_a_second_client_uses_the_owner(client, root):
    with forebay.connect(root=root) as other:
        assert other.address.split("://")[-1] == client.address.split("://")[-1]
        assert other.datasets() == client.datasets()
    assert client.datasets()


def alive(pid: int) -> bool:
    try:
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("how", ["close", "kill"])
def test_an_embedded_server_ends_with_its_client(tmp_path, how):
    code = f"""
import forebay, json, os, time
client = forebay.connect(root={str(tmp_path)!r})
print(json.loads(open({str(tmp_path / ".forebay.lock")!r}).read())["pid"], flush=True)
time.sleep(0 if {how == "close"} else 600)
client.close()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ, text=True)
    server = int(process.stdout.readline())
    assert alive(server)
    if how == "kill":
        process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    end = time.monotonic() + 60
    while alive(server):
        assert time.monotonic() < end, "the server outlived its client"
        time.sleep(0.05)


def test_a_root_that_cannot_be_served_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(forebay.BadInput, match="cannot be a root"):
        forebay.connect(root=tmp_path / "file")


def test_a_token_is_asked_for(tmp_path):
    with forebay.connect(root=tmp_path, token="secret-of-the-test") as client:
        address = f"grpc://{client.address.split('://')[-1]}"
        with pytest.raises(forebay.Unauthenticated):
            forebay.connect(address, token="another")
        with forebay.connect(address, token="secret-of-the-test") as other:
            assert other.datasets() == []
