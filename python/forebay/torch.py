"""Batches for ``torch.utils.data.DataLoader``: ``DataLoader(forebay.torch.IterableDataset(...), batch_size=None, num_workers=4)``.

Each worker process of the DataLoader is a consumer of one job, so that a pass's batches are spread over them and each row comes once.
"""

import os
import re
import uuid

import torch
import torch.utils.data

from .client import Client, connect
from .errors import BadInput, FailedPrecondition
from .loader import Loader, run_name

# Worker processes of one DataLoader that can be told apart.
_MOST_WORKERS = 4096


class IterableDataset(torch.utils.data.IterableDataset):
    """A dataset's batches as dicts of tensors; batches come ready-made, so the DataLoader takes ``batch_size=None``.

    ``server``, ``root`` and ``token`` are those of ``forebay.connect``; ``settings`` are those of ``client.loader``, with ``format='torch'``. Rank
    and world size come from RANK and WORLD_SIZE (torchrun) unless given. Iteration n draws pass n; ``set_epoch(n)`` chooses the pass of the
    next iteration. Without ``job`` each pass is a job of its own, named after the launcher's run where the world size is above 1.

    Nothing is connected before the first batch is asked for, and a connection is never carried into another process: it is safe to fork.
    """

    def __init__(
        self,
        dataset: str,
        *,
        server: str | None = None,
        root: str | os.PathLike | None = None,
        token: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        job: str | None = None,
        **settings,
    ):
        super().__init__()
        if unknown := sorted({"consumer", "epochs", "restart"} & set(settings)):
            raise BadInput(
                f"`{unknown[0]}` is not a setting of forebay.torch.IterableDataset",
                "each iteration is one pass; set_epoch(n) chooses it",
            )
        world_size = _environment("WORLD_SIZE") if world_size is None else world_size
        rank = _environment("RANK") if rank is None and (world_size or 1) > 1 else rank
        if (world_size or 1) > 1 and rank is None:
            raise BadInput("a world_size above 1 needs a rank", "start with torchrun, or give rank=...")
        self._dataset, self._settings = dataset, {"format": "torch"} | settings
        self._connection = {"server": server, "root": None if root is None else os.fspath(root), "token": token}
        self._rank, self._world = rank or 0, world_size or 1
        self._named = job
        if job is None:
            job = run_name() if self._world > 1 else f"private-{uuid.uuid4().hex[:16]}"
            job = f"{job}-{re.sub(r'[^A-Za-z0-9_.-]', '-', dataset)}"
        self._job = job
        # How often each worker process's place has begun an iteration, and what is added to that for the pass. Shared, because a DataLoader
        # makes new processes for every iteration.
        self._begun = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._offset = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._client: Client | None = None
        self._owner: int | None = None

    def set_epoch(self, n: int) -> None:
        """Makes the next iteration pass ``n``, in every worker process."""
        if self._named is not None:
            raise BadInput("set_epoch of a named job: its passes advance by themselves", "leave `job` out")
        self._offset[0] = int(n) - self._begun.max()

    def __len__(self) -> int:
        """Batches of one pass for this rank."""
        return len(self._loader(0, 0, 1))  # every pass has as many

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        if workers > _MOST_WORKERS:
            raise BadInput(f"{workers} worker processes are more than {_MOST_WORKERS}", "use fewer")
        number = int(self._begun[worker])
        self._begun[worker] += 1
        with self._loader(number, worker, workers) as loader:
            batches = iter(loader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except FailedPrecondition as error:
                    # The others took everything before this process came.
                    if workers * self._world > 1 and self._named is None and "is finished" in error.message:
                        return
                    raise
                yield batch

    def _loader(self, iteration: int, worker: int, workers: int) -> Loader:
        settings = dict(self._settings)
        if self._world > 1 or settings.get("assignment") in ("static", "rounds"):
            # Every worker process is a rank of the job: rank r's processes take turns, and the DataLoader reads them in turn.
            settings |= {"rank": self._rank * workers + worker, "world_size": self._world * workers}
        if self._named is None:
            settings |= {"job": f"{self._job}-{iteration}", "epochs": [iteration + int(self._offset)]}
        else:
            settings |= {"job": self._job}
        loader = Loader(self._connected(), self._dataset, **settings)
        # Ends with its only consumer; where there are several, with the pass.
        loader._ends = self._named is None and workers == self._world == 1
        return loader

    def _connected(self) -> Client:
        if self._client is None or self._owner != os.getpid():
            self._client, self._owner = connect(**self._connection), os.getpid()
        return self._client

    def __getstate__(self):
        return self.__dict__ | {"_client": None, "_owner": None}

    def close(self) -> None:
        """Closes this process's connection, and stops the embedded server if there is one."""
        client, self._client = self._client, None
        if client is not None and self._owner == os.getpid():
            client.close()


def _environment(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdigit() else None
