"""Loaders against the real binary: every row once, formats, sharing, acknowledgements."""

import os
import subprocess
import sys
import threading

import forebay
import numpy as np
import pyarrow as pa
import pytest
from conftest import ROWS


def rows(batches) -> list[int]:
    """Line numbers; `_id` is a position in the file."""
    return [int(x) for batch in batches for x in batch["x"]]


def test_a_pass_holds_every_row_once(client):
    with client.loader("points", batch_size=64, epochs=2, seed=3) as loader:
        assert len(loader) == 16
        first, second = [list(loader) for _ in range(2)]
    assert sorted(rows(first)) == sorted(rows(second)) == list(range(ROWS))
    assert rows(first) != rows(second) != list(range(ROWS))
    assert [len(batch["x"]) for batch in first] == [64] * 15 + [40]
    assert all((b["y"] == 2 * b["x"]).all() for b in first) and all((b["y"] == 2 * b["x"] + 1).all() for b in second)


def test_the_same_plan_gives_the_same_batches(client):
    def draw(**settings):
        with client.loader("points", batch_size=100, epochs=1, **settings) as loader:
            return [(loader.meta["batch"], loader.meta["digest"], b["_id"].tolist()) for b in loader]

    assert draw(seed=5) == draw(seed=5) != draw(seed=6)
    stored = client.dataset("points").to_arrow(epoch=0, columns=["_id"])["_id"].to_pylist()
    assert [i for _, _, ids in draw(shuffle=False) for i in ids] == stored == sorted(stored)
    xxhash = pytest.importorskip("xxhash")
    for _, digest, ids in draw(seed=5):
        assert xxhash.xxh3_64_hexdigest(np.array(ids, "<i8").tobytes()) == digest


def test_a_finished_job_says_so_and_starts_again_when_told(client):
    settings = {"job": "finishing", "batch_size": 500, "epochs": 1}
    loader = client.loader("points", **settings)
    assert len(list(loader)) == 2
    with pytest.raises(forebay.FailedPrecondition, match="finished"):
        list(loader)
    assert len(list(client.loader("points", **settings, restart=True))) == 2


def test_a_consumer_between_two_streams_hears_that_the_others_finished(client):
    settings = {"job": "others-finish", "batch_size": 100, "epochs": 2, "timeout": 60}
    loader = client.loader("points", **settings)
    for _ in loader:
        # Its stream ends here, as when its worker dies; before it has joined again another consumer takes what is left.
        break
    with client.loader("points", consumer="another", **settings) as other:
        for _ in range(2):
            assert list(other)
        assert other.finished
    assert list(loader) == [] and loader.finished
    assert list(loader) == [], "a loop over more passes ends as well"
    loader.close()


def test_other_settings_for_the_same_job_are_shown(client):
    loader = client.loader("points", job="differing", batch_size=10, epochs=1)
    next(iter(loader))
    with pytest.raises(forebay.Error, match="batch_size"):
        next(iter(client.loader("points", job="differing", batch_size=20, epochs=1)))
    loader.close()


def test_set_epoch_chooses_the_pass(client):
    with client.loader("points", batch_size=100, seed=9) as loader:
        loader.set_epoch(1)
        chosen = list(loader)
        assert loader.meta["pass"] == 1 and loader.meta["epoch"] == 1
    with client.loader("points", batch_size=100, seed=9, epochs=2) as loader:
        assert rows(chosen) != rows(list(loader))
        assert rows(chosen) == rows(list(loader))
    with pytest.raises(forebay.Unsupported):
        client.loader("points", job="named").set_epoch(1)


def test_formats(client):
    batch = next(iter(client.loader("points", batch_size=8, columns=["grid", "name", "label"])))
    assert batch["grid"].shape == (8, 2, 3) and batch["grid"].dtype == np.float64
    assert not batch["grid"].flags.owndata, "a tensor was copied"
    assert batch["name"].dtype == object and batch["name"][0].startswith("row ")
    assert "x" not in batch
    arrow = next(iter(client.loader("points", batch_size=8, format="arrow")))
    assert isinstance(arrow, pa.RecordBatch) and arrow.num_rows == 8
    assert arrow.schema.field("grid").type == pa.fixed_shape_tensor(pa.float64(), [2, 3])
    torch = pytest.importorskip("torch")
    batch = next(iter(client.loader("points", batch_size=8, format="torch")))
    assert isinstance(batch["grid"], torch.Tensor) and tuple(batch["grid"].shape) == (8, 2, 3)


def test_filters_and_transforms(client):
    loader = client.loader(
        "points", batch_size=32, epochs=1, filter="label < 3", transform=lambda b: b["label"].tolist()
    )
    assert sorted(label for batch in loader for label in batch) == sorted([0, 1, 2] * (ROWS // 10))
    assert len(loader) == 10
    with pytest.raises(forebay.BadInput, match="no_such"):
        list(client.loader("points", filter="no_such = 1"))
    with pytest.raises(ZeroDivisionError):
        list(client.loader("points", transform=lambda b: 1 / 0))


def test_two_consumers_share_a_job(client):
    taken: list[list[int]] = [[], []]

    def consume(index: int) -> None:
        with forebay.connect(client.address if "://" in client.address else f"grpc://{client.address}") as own:
            for batch in own.loader("points", job="shared", batch_size=10, epochs=1, prefetch_batches=1):
                taken[index] += rows([batch])

    threads = [threading.Thread(target=consume, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken[0] + taken[1]) == list(range(ROWS))


def test_what_was_taken_is_acknowledged_and_the_rest_is_not(client):
    loader = client.loader("points", job="left-early", batch_size=10, epochs=1, prefetch_batches=2)
    for count, _ in enumerate(loader, 1):
        if count == 7:
            break
    loader.close()
    states = client.sql(
        "SELECT state, count(*) AS n FROM system.visits WHERE job = 'left-early' GROUP BY state"
    ).to_pylist()
    counts = {row["state"]: row["n"] for row in states}
    assert counts["acknowledged"] == 7, counts
    rest = rows(list(loader))
    # What was granted and not taken is lost, listed, and never handed out again; everything else comes.
    lost = client.sql("SELECT count(*) AS n FROM system.losses WHERE job = 'left-early'").to_pylist()[0]["n"]
    assert len(rest) == len(set(rest)) == ROWS - 70 - 10 * lost


def test_batches_larger_than_a_message_are_put_together(client):
    count = 40
    values = np.arange(count * 100_000, dtype=np.float32).reshape(count, 100_000)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    client.write("large", pa.table({"v": tensors, "k": pa.array(range(count))}))
    seen = 0
    for batch in client.loader("large", batch_size=16, epochs=1):
        assert batch["v"].shape[1:] == (100_000,) and (batch["v"] == values[batch["k"]]).all()
        seen += len(batch["k"])
    assert seen == count


def test_a_commit_wants_something_to_commit(client):
    with client.loader("points", job="committing", batch_size=10, epochs=1) as loader:
        with pytest.raises(forebay.FailedPrecondition, match="nothing was read"):
            loader.commit()
        for _ in loader:
            break
        assert set(loader.commit()) == {"incarnation", "commit"}


def test_loops_do_not_nest(client):
    loader = client.loader("points", batch_size=100)
    for _ in loader:
        with pytest.raises(forebay.FailedPrecondition, match="already being read"):
            next(iter(loader))
        break
    loader.close()


def test_plain_flight_draws_the_same_job(client):
    example = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "plain_flight.py")
    address = f"grpc://{client.address.split('://')[-1]}"
    done = subprocess.run(
        [sys.executable, example, address, "points"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{ROWS} rows in 16 batches" in done.stdout and f"{2 * ROWS} rows stored" in done.stdout


def test_a_private_job_ends_with_its_loader(client):
    with client.loader("points", batch_size=100, epochs=1) as loader:
        next(iter(loader))
        assert client.action("forebay.job.status", {"job": loader.job})[0]["state"] == "open"
    job = client.action("forebay.job.status", {"job": loader.job})[0]
    assert job["state"] == "stopped" and job["acknowledged"] == 1
    assert job["granted"] == job["sent"] == 0 and job["pending"] + job["lost"] == 9, "all is accounted for"
