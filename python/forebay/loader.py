"""A job's batches as a Python iterator: one Flight exchange per pass, prefetched by a thread, acknowledged as the trainer takes them."""

import contextlib
import json
import logging
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

from . import allocator, arrays
from .errors import (
    AlreadyExists,
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
from .member import Member, now

_log = logging.getLogger("forebay")

FORMATS = ("numpy", "torch", "jax", "tf", "arrow")

# How long a server may take to hear the last acknowledgements before the stream is cancelled.
_CLOSE_SECONDS = 10.0
# Acknowledgements wait this long for each other, or until they hold half of the credits back: each message costs as much as a small batch.
_ACK_SECONDS = 0.01
# Behind every batch of a pass.
_PASS_END = (1 << 53) - 1
# How long a loader waits for its rank while another consumer has it.
_RANK_SECONDS = 60.0
# How long a loader whose streams break tries to join again without getting a batch.
_REJOIN_SECONDS = 30.0


class Loader:
    """Batches of one job. Each iteration is one pass; ``len`` is the batches of a pass; a context manager that closes.

    ``meta`` is what the server says of the batch last yielded: job, pass, epoch, batch, window, rows, digest. ``finished`` is true when the
    job's passes are over.

    ``order='staged'`` begins with the first rows while an epoch is still being materialized, and gives the same batches in the same order once it is
    published. ``len`` is known then.
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
        round_size: int | None = None,
        format: str = "numpy",
        prefetch_batches: int = 4,
        transform: Callable | None = None,
        device=None,
        timeout: float | None = None,
        version: int | None = None,
        window: str | int | None = None,
        consumer: str | None = None,
        restart: bool = False,
        rank_lost: str | None = None,
        rank_timeout: str | None = None,
        idle_timeout: str | None = None,
        kept_commits: int | None = None,
        order: str | None = None,
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
            "order": order,
            "window": window,
            "assignment": assignment,
            "visitation": visitation,
            "world_size": world_size,
            "rank": rank,
            "steps": steps,
            "end": end,
            "bucket_by": bucket_by,
            "round_size": round_size,
            "columns": columns,
            "filter": filter,
            "rank_lost": rank_lost,
            "rank_timeout": rank_timeout,
            "idle_timeout": idle_timeout,
            "kept_commits": kept_commits,
            "consumer": consumer or _consumer_name(rank),
        }
        self._restart = restart
        # A job that nobody else can name ends with its loader; else it would stay open until somebody stops it.
        self._ends = self._private
        self._opened: set[str] = set()
        self._only_pass: int | None = None
        self._stream: _Stream | None = None
        self._ranked = (world_size or 1) > 1 or assignment in ("static", "rounds") or steps == "equal"
        self._fixed = assignment in ("static", "rounds")
        self._member = Member(client, self._settings, self._ranked)
        # A stream was given up in the middle of a pass: the next one needs a report.
        self._lost = False
        self._reading = False
        self._restore: dict | None = None
        # A state was loaded, or the others finished the job: a loop over more passes than are left ends, and finds no finished job.
        self._quiet = False
        # Of a fixed map: where the next step begins, and per pass where step 0 does.
        self._next: dict | None = None
        self._bases: dict[int, int] = {}
        self._length: int | None = None
        self.meta: dict | None = None
        # The job's passes are all over for this consumer.
        self.finished = False

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
            names = ("dataset", "version", "batch_size", "seed", "shuffle", "order", "window", "filter", "world_size")
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
        """The job's name and a token of constant size: what ``load_state_dict`` of a later run goes on from.

        Of a dynamic job it is a ``commit``, so every consumer has to call it. With ``assignment`` static or rounds it is computed here and asks
        nobody: all ranks must have made equally many steps.
        """
        if self._fixed:
            self._take()
            return {"job": self._member.job, "token": self._next or self._first()}
        return {"job": self._member.job, "token": self.commit()}

    def commit(self) -> dict:
        """Commits what the trainers have taken, the batch last yielded included; gives the token.

        Collective: complete when every live consumer of the job has made its call, and the same for all of them.
        """
        self._take()
        if self._stream is not None:
            self._stream.tell()
        return self._member.commit()

    def load_state_dict(self, state: dict, attempt: str | None = None) -> None:
        """Makes the next iteration go on from a checkpoint, whatever the world size was when it was made.

        The job goes on in a new incarnation: consumers of the older one are refused from then on. Every consumer loads the same state, and
        ``attempt`` is named alike by all that load it together; by default it comes from torchrun's restart count, where there is one. Consumers of a
        dynamic job that start at their own times should name it: whoever comes without after others have committed again begins a restore
        of its own, which takes the job back behind that commit and refuses them.
        """
        if self._stream is not None:
            raise FailedPrecondition("load_state_dict in the middle of a pass", "call it before the loop")
        if not isinstance(state, dict) or not {"job", "token"} <= state.keys():
            raise BadInput("this is not what state_dict gave", "give the dict with `job` and `token`")
        self._end(self.job)
        self._member.leave()
        self._settings["job"] = state["job"]
        self._member = Member(self._client, self._settings, self._ranked)
        self._restore = {"token": state["token"], "attempt": attempt or self._attempt()}
        self._lost, self._only_pass, self.finished, self._quiet = False, None, False, True
        token = state["token"]
        self._next = token if self._fixed else None
        # Step 0 of the pass that goes on is where the checkpoint stands.
        self._bases = (
            {token["pass"]: token["next"]} if self._fixed and isinstance(token, dict) and "next" in token else {}
        )

    def _attempt(self) -> str | None:
        # Whoever restores a private job does so alone.
        return f"alone-{uuid.uuid4().hex}" if self._private else _launch()

    def _take(self) -> None:
        """The batch last yielded is behind the trainer."""
        if self._stream is not None:
            self._stream.take()

    def _first(self) -> dict:
        """Where a job begins that gave nothing yet."""
        place, epochs = self._member.place, self._settings["epochs"]
        if place is not None and place["pass"] is not None:
            return {"pass": place["pass"], "next": 0}
        return {"pass": epochs[0] if isinstance(epochs, list) else 0, "next": 0}

    def _taken(self, meta: dict) -> None:
        self._member.took(meta["pass"], meta["batch"])
        rank, world, step = self._settings["rank"], self._settings["world_size"], meta.get("step")
        if not self._fixed or step is None:
            return
        if not meta.get("padding"):
            self._bases[meta["pass"]] = meta["batch"] - (rank or 0) - step * world
        self._next = {"pass": meta["pass"], "next": self._bases.get(meta["pass"], 0) + (step + 1) * world}

    def __iter__(self) -> Iterator:
        if self._stream is not None:
            raise FailedPrecondition("this loader is already being read", "use one loop at a time, or another loader")
        settings = dict(self._settings)
        if self._quiet and self.finished and self._only_pass is None and not self._restart:
            return iter(())
        if self._only_pass is not None and self._restore is not None:
            raise FailedPrecondition(
                "set_epoch after load_state_dict: the checkpoint says which pass goes on",
                "call set_epoch after that pass",
            )
        # Passes of their own that were broken off: nobody goes on with them.
        for job in [job for job in self._opened if job != self.job]:
            self._end(job)
        if self._only_pass is not None:
            # A private job of one pass: the same plan identity, so the same batches as that pass of any job.
            settings |= {"job": f"{self.job}-p{self._only_pass}-{uuid.uuid4().hex[:8]}", "epochs": [self._only_pass]}
        if self._restart:
            settings["restart"], self._restart = True, False
        return self._read(settings)

    def _read(self, settings: dict) -> Iterator:
        if self._reading:
            raise FailedPrecondition("this loader is already being read", "use one loop at a time, or another loader")
        self._reading = True
        try:
            yield from self._pass(settings)
        finally:
            self._reading = False

    def _pass(self, settings: dict) -> Iterator:
        if self._member.job != settings["job"]:
            self._member.close()
            self._member = Member(self._client, settings, self._ranked)
        member = self._member
        if member.session is not None:
            settings["session"] = member.session
        self._opened.add(settings["job"])
        if self._restore is not None:
            command = {k: v for k, v in settings.items() if v is not None}
            restored = self._client.action("forebay.job.restore", self._restore | {"command": command})[0]
            self._restore = None
            if restored["pass"] is None:
                # The checkpoint lacks nothing.
                self.finished = True
                return
        broken = held = None
        try:
            while True:
                stream = None
                try:
                    if self._lost:
                        member.report()
                    self._lost = True
                    stream = self._stream = _Stream(
                        self._client, settings, self._prefetch, self._convert, member, self._taken
                    )
                    begun = member.place["pass"]
                    for meta, batch in stream.batches(self._timeout):
                        self.meta, broken = meta, None
                        yield batch
                    if stream.end != "drain":
                        self._lost = False
                        if self._fixed and begun is not None:
                            # The same for all ranks, however many steps each of them had.
                            self._next = {"pass": begun, "next": _PASS_END}
                        if stream.end == "job":
                            self.finished = True
                            member.close()
                        return
                    # The worker is leaving: the next endpoint is another's.
                except AlreadyExists as error:
                    # Whoever has the rank may be dead, and its lease not over.
                    if "gives its rank back" not in str(error):
                        raise
                    if held is None:
                        held = time.monotonic()
                        _log.warning("waiting for it: %s", error.message)
                    if time.monotonic() - held > _RANK_SECONDS:
                        raise
                    time.sleep(0.5)
                except FailedPrecondition as error:
                    if "is finished" not in error.message or self.finished or member.place is None:
                        raise
                    if member.exact and not member.sure():
                        raise FailedPrecondition(
                            f"this consumer of job `{member.job}` is fenced: its lease ran out before the job was finished, and what it had "
                            "not committed went to others",
                            "go back to the last commit",
                        ) from error
                    # While this consumer was between two streams the others took what was left.
                    self._lost, self.finished, self._quiet = False, True, True
                    member.close()
                    return
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
            if settings["job"] != self.job and not self._lost:
                member.close()
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
        self._member.leave()
        for job in list(self._opened):
            self._end(job)

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


def _launch() -> str | None:
    """A name of this start that all ranks of a launcher agree on: torchrun counts its restarts."""
    run, count = (
        os.environ.get("TORCHELASTIC_RUN_ID", "").strip(),
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "").strip(),
    )
    # `none` is what torchrun calls every run that was not named.
    return f"{run}-{count}" if count and run and run != "none" else None


def _text(name: str, value):
    return str(value) if name == "window" and value is not None else value


def _consumer_name(rank: int | None) -> str:
    host = re.sub(r"[^A-Za-z0-9]", "-", socket.gethostname())[:60].strip("-") or "host"
    return f"{host}-{os.getpid()}-{rank if rank is not None else uuid.uuid4().hex[:6]}"


class _Stream:
    """One pass: a thread reads and converts, the trainer's thread takes and acknowledges.

    Credits bound what is prefetched: the server sends one batch per credit, and a credit goes back when the trainer takes a batch.
    """

    def __init__(self, client, settings: dict, credits: int, convert: Callable, member: Member, taken: Callable):
        self._convert, self._member, self._note = convert, member, taken
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        self._yielded: dict | None = None
        # Taken, and not said: batches of one pass.
        self._unsaid: list[int] = []
        self._pass: int | None = None
        self._most = max(1, credits // 2)
        self._said_at = 0.0
        self._closed = False
        self.end: str | None = None
        allocator.keep_freed_memory()
        with translated():
            command = json.dumps({k: v for k, v in settings.items() if v is not None}).encode()
            asked_at = now()
            info = client.info(flight.FlightDescriptor.for_command(command))
            member.joined(json.loads(info.app_metadata), asked_at)
            endpoint = info.endpoints[0]
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
        """(meta, batch) until the pass ends. Asking for the next takes the one before."""
        while True:
            if self._closed:
                # What was prefetched may be another's by now.
                raise FailedPrecondition("the loader was closed in the middle of a pass", "make another one to go on")
            self.take()
            if len(self._unsaid) >= self._most or time.monotonic() - self._said_at >= _ACK_SECONDS:
                self.tell()
            what, meta, batch = self._next(timeout)
            if what == "error":
                raise meta
            if what == "end":
                self.end = meta
                return
            self._member.check(timeout)
            self._yielded = meta
            yield meta, batch

    def _next(self, timeout: float | None) -> tuple:
        try:
            if self._unsaid:
                # Nobody takes anything for a while: what was held back is said now.
                with contextlib.suppress(queue.Empty):
                    return self._ready.get(timeout=_ACK_SECONDS)
                self.tell()
            return self._ready.get(timeout=timeout)
        except queue.Empty:
            raise Cancelled(
                f"no batch came within {timeout} s", "give a longer timeout, or look at the server"
            ) from None

    def take(self) -> None:
        """The batch last yielded is behind the trainer."""
        if self._yielded is not None:
            taken, self._yielded = self._yielded, None
            self._note(taken)
            if self._pass != taken["pass"]:
                self.tell()
                self._pass = taken["pass"]
            self._unsaid.append(taken["batch"])

    def tell(self) -> None:
        """Acknowledges what was taken."""
        if self._unsaid:
            batches, self._unsaid = self._unsaid, []
            self._said_at = time.monotonic()
            with translated():
                self._say({"credits": len(batches), "ack": batches, "pass": self._pass})

    def close(self) -> None:
        """Says good-bye, and waits for the server to have heard everything."""
        if self._closed:
            return
        self._closed = True
        # A stream that broke has said why already.
        with contextlib.suppress(pa.lib.ArrowException, flight.FlightError, Error):
            self.take()
            message = {"close": True}
            if self._unsaid:
                message |= {"ack": self._unsaid, "pass": self._pass}
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
