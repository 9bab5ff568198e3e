"""A job's batches as a Python iterator: one Flight exchange per pass, prefetched by a thread, acknowledged as the trainer takes them."""

import contextlib
import json
import os
import queue
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Self

import pyarrow as pa
from pyarrow import flight

from . import arrays
from .errors import (
    BadInput,
    Cancelled,
    Error,
    FailedPrecondition,
    Internal,
    Unavailable,
    Unsupported,
    from_flight,
    translated,
)

FORMATS = ("numpy", "torch", "jax", "tf", "arrow")

# How long a server may take to hear the last acknowledgements before the stream is cancelled.
_CLOSE_SECONDS = 10.0
# How long a loader whose streams break tries to join again without getting a batch.
_REJOIN_SECONDS = 30.0


class Loader:
    """Batches of one job. Each iteration is one pass; ``len`` is the batches of a pass; a context manager that closes.

    ``meta`` is what the server says of the batch last yielded: job, pass, epoch, batch, window, rows, digest.
    """

    def __init__(
        self,
        client,
        dataset: str,
        *,
        batch_size: int = 64,
        job: str | None = None,
        epochs=None,
        shuffle: bool | str = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        assignment: str | None = None,
        visitation: str = "at_most_once",
        steps: str | None = None,
        end: str | None = None,
        columns: list[str] | None = None,
        filter: str | None = None,
        bucket_by: str | None = None,
        format: str = "numpy",
        prefetch_batches: int = 4,
        transform: Callable | None = None,
        device=None,
        timeout: float | None = None,
        version: int | None = None,
        window: str | int | None = None,
        consumer: str | None = None,
        restart: bool = False,
    ):
        if format not in FORMATS:
            raise BadInput(f"unknown format {format!r}", "use " + ", ".join(repr(f) for f in FORMATS))
        if prefetch_batches < 1:
            raise BadInput("prefetch_batches must be at least 1")
        self._client, self._format, self._device = client, format, device
        self._prefetch, self._transform, self._timeout = prefetch_batches, transform, timeout
        self._private = job is None and (world_size or 1) == 1
        self._settings = {
            "dataset": dataset,
            "version": version,
            "job": job or self._job_name(world_size),
            "epochs": epochs if epochs is None or isinstance(epochs, (int, str)) else list(epochs),
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": {True: None, False: "none"}.get(shuffle, shuffle) if isinstance(shuffle, bool) else shuffle,
            "window": window,
            "assignment": assignment,
            "visitation": visitation,
            "world_size": world_size,
            "rank": rank,
            "steps": steps,
            "end": end,
            "bucket_by": bucket_by,
            "columns": columns,
            "filter": filter,
            "consumer": consumer or _consumer_name(rank),
        }
        self._restart = restart
        # A job that nobody else can name ends with its loader; else it would stay open until somebody stops it.
        self._ends = self._private
        self._opened: set[str] = set()
        self._only_pass: int | None = None
        self._stream: _Stream | None = None
        self._length: int | None = None
        self.meta: dict | None = None

    @staticmethod
    def _job_name(world_size: int | None) -> str:
        return f"private-{uuid.uuid4().hex[:16]}" if (world_size or 1) == 1 else run_name()

    @property
    def job(self) -> str:
        """The job's name."""
        return self._settings["job"]

    def __len__(self) -> int:
        """Batches of one pass, over all consumers of a dynamic job; per rank where steps are equal."""
        if self._length is None:
            names = ("dataset", "version", "batch_size", "seed", "shuffle", "window", "filter", "world_size")
            plan = self._client.action("forebay.plan", {n: _text(n, self._settings[n]) for n in names})[0]
            batches, world = plan["batches"], self._settings["world_size"] or 1
            if self._settings["end"] == "drop" or (world > 1 and self._settings["end"] is None):
                batches = plan["rows"] // plan["batch_size"]
            equal = self._settings["steps"] == "equal" or (world > 1 and self._settings["steps"] is None)
            if equal:
                batches = -(-batches // world) if self._settings["end"] == "pad" else batches // world
            self._length = batches
        return self._length

    def set_epoch(self, n: int) -> None:
        """Makes the next iteration pass ``n``, before its first batch. For a private job; a named job's passes advance by themselves."""
        if not self._private:
            raise Unsupported(
                "set_epoch of a named job is not supported by this version", "its passes advance by themselves"
            )
        if self._stream is not None:
            raise FailedPrecondition("set_epoch in the middle of a pass", "call it between two loops")
        self._only_pass = int(n)

    def state_dict(self) -> dict:
        """The job and a token that a later run restores."""
        return {"job": self.job, "token": self.commit()}

    def commit(self) -> str:
        """Commits what all consumers have taken; gives the token."""
        answers = self._client.action("forebay.job.commit", {"job": self.job, "consumer": self._settings["consumer"]})
        return answers[0]["token"]

    def load_state_dict(self, state: dict) -> None:
        """Takes the job back to a commit."""
        self._client.action("forebay.job.restore", state)

    def __iter__(self) -> Iterator:
        if self._stream is not None:
            raise FailedPrecondition("this loader is already being read", "use one loop at a time, or another loader")
        settings = dict(self._settings)
        if self._only_pass is not None:
            # A private job of one pass: the same plan identity, so the same batches as that pass of any job.
            settings |= {"job": f"{self.job}-p{self._only_pass}-{uuid.uuid4().hex[:8]}", "epochs": [self._only_pass]}
        if self._restart:
            settings["restart"], self._restart = True, False
        return self._read(settings)

    def _read(self, settings: dict) -> Iterator:
        self._opened.add(settings["job"])
        broken = None
        try:
            while True:
                stream = None
                try:
                    stream = self._stream = _Stream(self._client, settings, self._prefetch, self._convert)
                    for meta, batch in stream.batches(self._timeout):
                        self.meta, broken = meta, None
                        yield batch
                    if stream.end != "drain":
                        return
                    # The worker is leaving: the next endpoint is another's.
                except Unavailable:
                    # The worker died. What was lost with it is in system.losses; the rest comes from another one.
                    broken = broken or time.monotonic()
                    if time.monotonic() - broken > _REJOIN_SECONDS:
                        raise
                    time.sleep(0.5)
                finally:
                    self._stream = None
                    if stream is not None:
                        stream.close()
                settings.pop("restart", None)
        finally:
            if settings["job"] != self.job:
                self._end(settings["job"])

    def _end(self, job: str) -> None:
        """Ends a job of this loader's own. What it delivered stays in the ledger."""
        if not self._ends or job not in self._opened:
            return
        self._opened.discard(job)
        # A server that is gone, or a job that is finished, needs no end.
        with contextlib.suppress(Error):
            self._client.action("forebay.job.stop", {"job": job})

    def _convert(self, parts: list[pa.RecordBatch]):
        if self._format == "arrow":
            batch = parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        else:
            schema = parts[0].schema
            batch = {
                field.name: arrays.joined([arrays.to_numpy(part.column(index), field) for part in parts])
                for index, field in enumerate(schema)
            }
            if convert := arrays.CONVERSIONS.get(self._format):
                batch = {name: convert(name, array, self._device) for name, array in batch.items()}
        return self._transform(batch) if self._transform else batch

    def close(self) -> None:
        """Leaves the job. Batches that were taken are acknowledged; prefetched ones are not."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._end(self.job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def run_name() -> str:
    """A job's name that all ranks of a run agree on, from what the launcher sets."""
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MPI_JOB_ID", "JOB_ID"):
        if value := os.environ.get(variable, "").strip():
            return "run-" + re.sub(r"[^A-Za-z0-9_.-]", "-", value)[:100]
    raise BadInput("a world_size above 1 needs a job that all ranks name", "give job='...'")


def _text(name: str, value):
    return str(value) if name == "window" and value is not None else value


def _consumer_name(rank: int | None) -> str:
    host = re.sub(r"[^A-Za-z0-9]", "-", socket.gethostname())[:60].strip("-") or "host"
    return f"{host}-{os.getpid()}-{rank if rank is not None else uuid.uuid4().hex[:6]}"


class _Stream:
    """One pass: a thread reads and converts, the trainer's thread takes and acknowledges.

    Credits bound what is prefetched: the server sends one batch per credit, and a credit goes back when the trainer takes a batch.
    """

    def __init__(self, client, settings: dict, credits: int, convert: Callable):
        self._convert = convert
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        self._taken: dict | None = None
        self._closed = False
        self.end: str | None = None
        with translated():
            command = json.dumps({k: v for k, v in settings.items() if v is not None}).encode()
            endpoint = client.info(flight.FlightDescriptor.for_command(command)).endpoints[0]
            descriptor = flight.FlightDescriptor.for_command(endpoint.ticket.ticket)
            self._writer, self._reader = client.place(endpoint).do_exchange(descriptor, client.options)
            self._say({"credits": credits})
        self._thread = threading.Thread(target=self._run, name="forebay-prefetch", daemon=True)
        self._thread.start()

    def _say(self, message: dict) -> None:
        self._writer.write_metadata(pa.py_buffer(json.dumps(message).encode()))

    def _run(self) -> None:
        try:
            parts: list[pa.RecordBatch] = []
            while True:
                chunk = self._reader.read_chunk()
                meta = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata is not None else {}
                if "end" in meta:
                    self._ready.put(("end", meta["end"], None))
                    return
                if chunk.data is None:
                    continue
                if meta.get("part", 0) != len(parts):
                    raise Internal(
                        f"part {meta.get('part')} of batch {meta.get('batch')} where part {len(parts)} was due"
                    )
                parts.append(chunk.data)
                if len(parts) == meta.get("parts", 1):
                    whole = meta | {"part": 0, "parts": 1, "rows": sum(part.num_rows for part in parts)}
                    batch, parts = self._convert(parts), []
                    self._ready.put(("batch", whole, batch))
        except StopIteration:
            self._ready.put(("error", Internal("the job's stream ended without its end message"), None))
        except (pa.lib.ArrowException, flight.FlightError) as error:
            self._ready.put(("error", from_flight(error), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the trainer's thread
            self._ready.put(("error", error, None))

    def batches(self, timeout: float | None) -> Iterator:
        """(meta, batch) until the pass ends. Asking for the next acknowledges the one before."""
        while True:
            self._acknowledge()
            try:
                what, meta, batch = self._ready.get(timeout=timeout)
            except queue.Empty:
                raise Cancelled(
                    f"no batch came within {timeout} s", "give a longer timeout, or look at the server"
                ) from None
            if what == "error":
                raise meta
            if what == "end":
                self.end = meta
                return
            self._taken = meta
            yield meta, batch

    def _acknowledge(self) -> None:
        if self._taken is not None:
            taken, self._taken = self._taken, None
            with translated():
                self._say({"credits": 1, "ack": [taken["batch"]], "pass": taken["pass"]})

    def close(self) -> None:
        """Says good-bye, and waits for the server to have heard everything."""
        if self._closed:
            return
        self._closed = True
        message = {"close": True}
        if self._taken is not None:
            message |= {"ack": [self._taken["batch"]], "pass": self._taken["pass"]}
        # A stream that broke has said why already.
        with contextlib.suppress(pa.lib.ArrowException, flight.FlightError, Error):
            self._say(message)
            self._writer.done_writing()
        # The server ends the stream when it has heard everything; the thread reads until then.
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._reader.cancel()
            self._thread.join(_CLOSE_SECONDS)
        with contextlib.suppress(pa.lib.ArrowException, flight.FlightError, StopIteration):
            while True:
                self._reader.read_chunk()
        with contextlib.suppress(pa.lib.ArrowException, flight.FlightError):
            self._writer.close()
