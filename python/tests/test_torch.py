"""torch's DataLoader over the real binary. Skipped where torch is not installed: its wheels are larger than everything else together."""

import os

import forebay
import pytest
from conftest import ROWS

torch = pytest.importorskip("torch")

from forebay.torch import IterableDataset
from torch.utils.data import DataLoader


def dataset(client, **settings):
    return IterableDataset("points", server=client.address, batch_size=64, seed=3, **settings)


def rows(batches) -> list[int]:
    return [int(x) for batch in batches for x in batch["x"]]


def test_tensors_are_views(client):
    batch = next(iter(client.loader("points", batch_size=8, format="torch")))
    assert batch["grid"].shape == (8, 2, 3) and batch["grid"].dtype == torch.float64
    assert batch["label"].dtype == torch.int64 and batch["name"][0].startswith("row ")


@pytest.mark.parametrize("workers", [0, 3])
def test_every_row_once_per_pass(client, workers):
    # Fork after gRPC has started hangs, and this process has a client already.
    loader = DataLoader(
        dataset(client),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )
    assert len(loader) == 16
    first, second = rows(loader), rows(loader)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert workers or first != second


def test_persistent_workers_go_on_to_the_next_pass(client):
    loader = DataLoader(
        dataset(client), batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context="spawn"
    )
    epochs = [sorted({int(2 * x - y) for batch in loader for x, y in zip(batch["x"], batch["y"])}) for _ in range(2)]
    assert epochs == [[0], [-1]], "the second pass reads the second epoch"


def test_set_epoch_chooses_the_pass(client):
    data = dataset(client)
    data.set_epoch(1)
    chosen = rows(DataLoader(data, batch_size=None))
    data.set_epoch(0)
    assert rows(DataLoader(data, batch_size=None)) != chosen == rows(DataLoader(data, batch_size=None))


def test_forked_workers_before_any_connection(client):
    """The fork server's processes start without gRPC, as a trainer's do that only makes the dataset and the DataLoader."""
    loader = DataLoader(dataset(client), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(rows(loader)) == list(range(ROWS))


def test_ranks_come_from_the_environment(client, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(forebay.BadInput, match="rank"):
        dataset(client)
    with pytest.raises(forebay.BadInput, match="set_epoch"):
        IterableDataset("points", epochs=3, rank=0)
    assert "RANK" not in os.environ
