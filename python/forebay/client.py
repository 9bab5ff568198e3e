"""The client: datasets, pipelines, SQL and loaders over one Flight connection."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import flight

from . import errors, modules
from .errors import BadInput, Cancelled, Internal, Unavailable, translated
from .loader import Loader
from .progress import Progress
from .server import EmbeddedServer, find_owner

# Bodies of about this size are fastest for clients, and far below every limit.
_MESSAGE_BYTES = 2 << 20


def connect(server: str | None = None, *, root: str | os.PathLike | None = None, token: str | None = None) -> "Client":
    """A client of ``server`` (``grpc://host:port``, several separated by commas) or of a ``root`` (a path or URL).

    A root is used through its live owner; where there is none, an embedded server process is started and lives until ``close``. Without both,
    FOREBAY_SERVER, then FOREBAY_ROOT is used. ``token`` defaults to FOREBAY_TOKEN.
    """
    if server and root:
        raise BadInput("both a server and a root are given", "give one of them")
    if not server and not root:
        server, root = os.environ.get("FOREBAY_SERVER"), os.environ.get("FOREBAY_ROOT")
    token = token or os.environ.get("FOREBAY_TOKEN") or None
    if server:
        return Client(server.split(","), token)
    if not root:
        raise BadInput("no server and no root given", "connect('grpc://host:7070') or connect(root='./data')")
    root = os.fspath(root)
    if owner := find_owner(root):
        return Client([owner], token)
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            embedded = EmbeddedServer(root, token)
            break
        except (errors.FailedPrecondition, Unavailable) as error:
            # Somebody else may have become the owner between the look and the start, and not listen yet.
            if owner := find_owner(root):
                return Client([owner], token)
            if "owner" not in str(error) or time.monotonic() >= end:
                raise
            time.sleep(0.2)
    try:
        return Client([embedded.address], token, embedded)
    except BaseException:
        embedded.close()
        raise


# How often a query is asked before its server counts as gone.
_QUERY_ATTEMPTS = 4
# How long a client waits for a server, or for the next leader: longer than a takeover.
_PATIENCE = 15.0
# A host that is cut off sends nothing, not even the end of its connections: silence is asked about after so many milliseconds, and means the end
# after as many more.
_PING, _SILENCE = 10_000, 10_000
# How a standby names the leader.
_LEADER = re.compile(r"the leader is (grpc://[^\s;,]+)")


def _open(uri: str) -> flight.FlightClient:
    """A connection that notices when the other side is gone without a word."""
    options = [
        ("grpc.keepalive_time_ms", _PING),
        ("grpc.keepalive_timeout_ms", _SILENCE),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    return flight.connect(uri, generic_options=options)


class Client:
    """A connection. Made by ``connect``; a context manager that closes."""

    def __init__(self, addresses: list[str], token: str | None = None, embedded: EmbeddedServer | None = None):
        headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self.options = flight.FlightCallOptions(headers=headers)
        self._probe = flight.FlightCallOptions(headers=headers, timeout=5)
        self._embedded = embedded
        self._addresses = [address.strip() for address in addresses]
        self._places: dict[str, flight.FlightClient] = {}
        self.flight: flight.FlightClient = None
        self.address = ""
        self._find_leader()

    def _find_leader(self) -> None:
        """Connects to whoever leads: the first of the addresses that answers, or the one that a standby names. Waits a little for one."""
        end = time.monotonic() + _PATIENCE
        while True:
            failure: Exception = BadInput("no address given")
            asked, todo = set(), list(self._addresses)
            while todo:
                address = todo.pop(0)
                if address in asked:
                    continue
                asked.add(address)
                try:
                    with translated():
                        found = _open(_location(address))
                        list(found.do_action(_action("forebay.datasets", {"op": "list"}), self._probe))
                    self.flight, self.address = found, address
                    return
                except (Unavailable, errors.Cancelled) as error:
                    failure = Unavailable(
                        f"{address} cannot be reached: {error.message}", "start `forebay serve`, or check the address"
                    )
                    if named := _LEADER.search(error.message):
                        todo.insert(0, named.group(1))
            if not isinstance(failure, Unavailable) or time.monotonic() >= end:
                raise failure
            time.sleep(0.2)

    def place(self, endpoint: flight.FlightEndpoint) -> flight.FlightClient:
        """The connection on which an endpoint's ticket is to be used: its location's, or this one."""
        uris = [location.uri.decode() for location in endpoint.locations]
        uris = [uri for uri in uris if not uri.startswith("arrow-flight-reuse-connection:")]
        if not uris:
            return self.flight
        if uris[0] not in self._places:
            self._places[uris[0]] = _open(uris[0])
        return self._places[uris[0]]

    def info(self, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """``GetFlightInfo``, asked again of the next leader if this one is gone."""
        try:
            with translated():
                return self.flight.get_flight_info(descriptor, self.options)
        except Unavailable:
            self._find_leader()
            with translated():
                return self.flight.get_flight_info(descriptor, self.options)

    def action(self, name: str, body: dict) -> list[dict]:
        """All answers of an action, as JSON."""
        return list(self._answers(name, body))

    def _answers(self, name: str, body: dict) -> Iterator[dict]:
        action = _action(name, {key: value for key, value in body.items() if value is not None})
        begun = False
        for again in (False, True):
            try:
                with translated():
                    for result in self.flight.do_action(action, self.options):
                        begun = True
                        yield json.loads(result.body.to_pybytes())
                return
            except Unavailable:
                # Half an answer is not made whole by asking again.
                if begun or again:
                    raise
                self._find_leader()

    def materialize(
        self,
        pipeline: str | os.PathLike,
        *,
        epochs: tuple[int, int] | range | None = None,
        set: dict | Iterable[str] = (),
        wait: bool = True,
        resume: bool = False,
        replace: bool = False,
        progress: bool = True,
    ) -> dict:
        """Runs a pipeline file; gives the run's last state. ``set`` overrides keys: ``{"epochs.count": 5}`` or ``["epochs.count=5"]``."""
        path = Path(pipeline)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise errors.NotFound(f"{path}: {error.strerror}", "name a pipeline file") from None
        folder = path.resolve().parent
        overrides = [f"{key}={json.dumps(value)}" for key, value in set.items()] if isinstance(set, dict) else list(set)
        if isinstance(epochs, range):
            epochs = (epochs.start, epochs.stop)
        request = {
            "pipeline": text,
            "file": str(pipeline),
            "base": str(folder),
            "set": overrides,
            "modules": modules.gather(folder, text, str(pipeline)),
            "epochs": list(epochs) if epochs else None,
            "wait": wait,
            "resume": resume,
            "replace": replace,
        }
        return self._follow(request, Progress(progress))

    def _follow(self, request: dict, bar: Progress) -> dict:
        last: dict = {}
        try:
            for last in self._answers("forebay.materialize", request):
                bar.show(last)
                if last["state"] != "running":
                    break
        except KeyboardInterrupt:
            if name := last.get("dataset"):
                self.action("forebay.cancel", {"dataset": name})
            raise
        finally:
            bar.stop()
        if not last:
            raise Internal("the server did not say what became of the run")
        if last.get("error"):
            raise errors.from_json(last["error"])
        if last["state"] == "failed":
            raise Internal(f"the run of `{last['dataset']}` failed", "see `forebay tasks --failed`")
        if last["state"] == "cancelled":
            raise Cancelled(f"the run of `{last['dataset']}` was stopped", "go on with resume=True")
        return last

    def datasets(self) -> list[dict]:
        """Every dataset: name, description, version, epochs, rows, bytes, shards."""
        answer = self.action("forebay.datasets", {"op": "list"})[0]
        return answer["datasets"] if isinstance(answer, dict) and "datasets" in answer else answer

    def dataset(self, name: str) -> "Dataset":
        """One dataset; ``name@v3`` pins a version."""
        return Dataset(self, name)

    def loader(self, dataset: str, **settings) -> Loader:
        """Batches of a dataset, or of a view that selects from one, for a trainer; see ``Loader`` for the settings."""
        return Loader(self, dataset, **settings)

    def sql(self, query: str) -> pa.Table:
        """The rows of a SELECT over datasets and system tables. Asked again, of another worker where there is one, when a worker goes away."""
        for left in reversed(range(_QUERY_ATTEMPTS)):
            try:
                return self._read(flight.FlightDescriptor.for_command(_statement(query)), None)
            except Unavailable:
                if not left:
                    raise
                time.sleep(0.3)
        raise AssertionError("unreachable")

    def search(self, dataset: str, query: str, limit: int = 10) -> pa.Table:
        """The best rows of a dataset (or ``name@v3``) for a text query: all its columns and ``_score``, best first.

        Words are all looked for; ``"a phrase"``, ``column:word``, ``AND OR NOT ( )``, ``begin*`` and ``near~`` say more."""
        name, text = dataset.replace('"', '""'), query.replace("'", "''")
        return self.sql(f"SELECT * FROM search(\"{name}\", '{text}', {int(limit)}) ORDER BY _score DESC, epoch, _id")

    def index(self, dataset: str, column: str, tokenizer: str | None = None, rebuild: bool = False) -> dict:
        """Builds the text index of a column for the epochs that exist, and returns what was done."""
        body = {"dataset": dataset, "column": column, "tokenizer": tokenizer, "rebuild": rebuild}
        return self.action("forebay.index", body)[-1]

    def views(self) -> list[dict]:
        """Every view: name, sql, kind (``selection`` can be read as a job, ``query`` by SQL only), and its cost when it was made."""
        return self.action("forebay.views", {"op": "list"})[0]

    def view(self, name: str) -> dict:
        """One view, with what it costs now: rows, selected rows and their share, bytes."""
        return self.action("forebay.views", {"op": "show", "name": name})[0]

    def create_view(self, name: str, sql: str) -> dict:
        """Gives a SELECT a name for ``sql`` and, if it is SELECT columns FROM dataset WHERE condition, for ``loader``."""
        return self.action("forebay.views", {"op": "create", "name": name, "sql": sql})[0]

    def drop_view(self, name: str) -> None:
        """Forgets a view. Jobs that began with it go on."""
        self.action("forebay.views", {"op": "drop", "name": name})

    def write(self, name: str, data, mode: str | None = None) -> dict:
        """Creates a dataset of a table, a batch, a reader or an iterable of batches; ``mode`` is None, 'append' or 'replace'."""
        schema, batches = _batches(data)
        command = json.dumps({"dataset": name, "mode": mode} if mode else {"dataset": name}).encode()
        with translated():
            writer, answers = self.flight.do_put(flight.FlightDescriptor.for_command(command), schema, self.options)
            try:
                for batch in batches:
                    for part in _slices(batch):
                        writer.write_batch(part)
                writer.done_writing()
                answer = answers.read()
            finally:
                writer.close()
        return json.loads(answer.to_pybytes()) if answer is not None else {}

    def _read(self, descriptor: flight.FlightDescriptor, columns: list[str] | None) -> pa.Table:
        with translated():
            info = self.info(descriptor)
            batches, schema = [], info.schema
            for endpoint in info.endpoints:
                reader = self.place(endpoint).do_get(endpoint.ticket, self.options)
                schema = reader.schema
                for chunk in reader:
                    if chunk.data is not None:
                        batches.append(chunk.data.select(columns) if columns else chunk.data)
        if columns:
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.Table.from_batches(batches, schema)

    def close(self) -> None:
        """Closes the connection, and stops the embedded server if there is one."""
        for place in (*self._places.values(), self.flight):
            place.close()
        self._places.clear()
        if self._embedded is not None:
            embedded, self._embedded = self._embedded, None
            embedded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Dataset:
    """A dataset as it was when asked for."""

    def __init__(self, client: Client, name: str):
        self._client, self.name = client, name
        base, _, version = name.partition("@v")
        try:
            asked = {"op": "show", "name": base, "version": int(version) if version else None}
        except ValueError:
            raise BadInput(f"`{name}` names no dataset", "use NAME or NAME@v3") from None
        self.info: dict = client.action("forebay.datasets", asked)[0]
        self.version: int = self.info["version"]

    @property
    def epochs(self) -> list[int]:
        """The stored epochs."""
        return self.info["epochs"]

    @property
    def rows(self) -> int:
        """Rows of all epochs."""
        return self.info["rows"]

    @property
    def schema(self) -> pa.Schema:
        """The columns, with tensors as ``arrow.fixed_shape_tensor``."""
        with translated():
            return self._client.flight.get_schema(self._descriptor(None), self._client.options).schema

    def _descriptor(self, epoch: int | None) -> flight.FlightDescriptor:
        path = [f"{self.name.partition('@')[0]}@v{self.version}"]
        return flight.FlightDescriptor.for_path(*path, *([f"epoch={epoch}"] if epoch is not None else []))

    def to_arrow(self, epoch: int | None = None, columns: list[str] | None = None) -> pa.Table:
        """The stored rows, of one epoch or of all."""
        if columns and (unknown := [c for c in columns if c not in self.schema.names]):
            raise BadInput(f"`{self.name}` has no column `{unknown[0]}`", "it has " + ", ".join(self.schema.names))
        return self._client._read(self._descriptor(epoch), columns)


def _location(address: str) -> str:
    return address.replace("grpc://", "grpc+tcp://", 1) if "://" in address else f"grpc://{address}"


def _action(name: str, body: dict) -> flight.Action:
    return flight.Action(name, json.dumps(body).encode())


def _statement(query: str) -> bytes:
    """Flight SQL's CommandStatementQuery in an Any, written by hand: two fields each."""

    def text(field: int, value: bytes) -> bytes:
        length, out = len(value), bytearray([field << 3 | 2])
        while length > 0x7F:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        return bytes(out) + bytes([length]) + value

    name = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return text(1, name) + text(2, text(1, query.encode()))


def _batches(data) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise BadInput("nothing to write", "give a table, or at least one batch")

    def rest() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return first.schema, rest()


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * _MESSAGE_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
