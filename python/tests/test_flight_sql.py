"""Flight SQL with the drivers that people have: ADBC's own, DuckDB and Polars through it, bare pyarrow.flight, and the command line."""

import datetime
import decimal
import json
import os
import pathlib
import subprocess
import threading
import time

import adbc_driver_manager
import duckdb
import forebay
import numpy as np
import polars
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions, dbapi
from conftest import ROWS
from pyarrow import flight

FORBIDDEN = [
    "INSERT INTO points SELECT * FROM points",
    "DELETE FROM points",
    "DROP TABLE points",
    "SET x = 1",
    "COPY points TO '/tmp/x'",
]


def location(client) -> str:
    return client.address.replace("grpc://", "grpc+tcp://")


def connect(client, **options):
    options = {key: str(value) for key, value in options.items()}
    return dbapi.connect(location(client), db_kwargs=options, autocommit=True)


@pytest.fixture
def connection(client):
    with connect(client) as connection:
        yield connection


@pytest.fixture
def cursor(connection):
    with connection.cursor() as cursor:
        yield cursor


def one(cursor, sql, parameters=None):
    cursor.execute(sql, parameters)
    rows = cursor.fetchall()
    assert len(rows) == 1 and len(rows[0]) == 1
    return rows[0][0]


# --- queries


def test_queries_answer_rows_and_tables(cursor):
    assert one(cursor, "SELECT count(*) FROM points WHERE epoch = 0") == ROWS
    cursor.execute("SELECT _id, label, name, grid FROM points WHERE epoch = 1 ORDER BY _id LIMIT 3")
    assert [column[0] for column in cursor.description] == ["_id", "label", "name", "grid"]
    table = cursor.fetch_arrow_table()
    assert table["name"].to_pylist() == ["row 0", "row 1", "row 2"]
    assert table.schema.field("grid").type == pa.fixed_shape_tensor(pa.float64(), (2, 3))
    assert table["grid"].combine_chunks().to_numpy_ndarray().shape == (3, 2, 3)


def test_an_empty_answer_has_its_columns(cursor):
    cursor.execute("SELECT _id, name FROM points WHERE _id < 0")
    table = cursor.fetch_arrow_table()
    assert table.num_rows == 0 and table.schema.names == ["_id", "name"]


def test_types_arrive_as_they_are(cursor):
    cursor.execute(
        "SELECT arrow_cast([1, 2], 'LargeList(Int64)') AS large, arrow_cast('a', 'Utf8View') AS view, arrow_cast('b', 'Dictionary(Int32, Utf8)') AS word,"
        " DATE '2020-02-29' AS day, TIMESTAMP '2020-01-01 00:00:00.5' AS time, 1.25::decimal(5, 2) AS money, NULL AS nothing, X'00ff' AS bytes,"
        " {'a': 1} AS record, INTERVAL '1 day' AS span"
    )
    table = cursor.fetch_arrow_table()
    assert table.schema.field("large").type == pa.large_list(pa.int64())
    assert table.schema.field("view").type == pa.string() and table.schema.field("word").type == pa.string()
    row = table.drop_columns(["span"]).to_pylist()[0]
    assert (
        row["day"] == datetime.date(2020, 2, 29)
        and row["money"] == decimal.Decimal("1.25")
        and row["bytes"] == b"\x00\xff"
    )
    assert row["nothing"] is None and row["record"] == {"a": 1} and row["large"] == [1, 2]


def test_tensors_in_sql(cursor):
    row = "FROM points WHERE name = 'row 4' AND epoch = 0"
    cursor.execute(
        f"SELECT min(tensor_get(grid, 0, 0)), max(tensor_max(grid)), avg(tensor_mean(grid)), min(tensor_min(grid)) {row}"
    )
    first = float(cursor.fetchone()[0])
    cursor.execute(f"SELECT tensor_shape(grid), tensor_to_list(grid), tensor_max(grid), tensor_mean(grid) {row}")
    shape, elements, largest, mean = cursor.fetchone()
    assert list(shape) == [2, 3] and elements[0] == first
    assert largest == max(elements) and mean == pytest.approx(np.mean(elements))


def test_large_answers_come_in_small_messages(client):
    # Some clients take no message of over 4 MiB, and never say so.
    sql = "SELECT repeat('x', 1000) || a.name AS text FROM points a CROSS JOIN (SELECT 1 FROM points LIMIT 20) b WHERE a.epoch = 0"
    with (
        connect(client, **{DatabaseOptions.WITH_MAX_MSG_SIZE.value: 4 << 20}) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)
        assert cursor.fetch_arrow_table().num_rows == 20 * ROWS


def test_versions_and_pruning_show_in_the_plan(cursor):
    cursor.execute('EXPLAIN ANALYZE SELECT sum(label) FROM "points@v1" WHERE epoch = 0')
    plan = "\n".join(row[1] for row in cursor.fetchall())
    assert "points@v1" in plan and "epochs=[0]" in plan and "columns=[epoch, label]" in plan and "bytes_read=" in plan


def test_information_schema_and_system_tables(cursor):
    assert (
        one(
            cursor,
            "SELECT data_type FROM information_schema.columns WHERE table_name = 'points' AND column_name = 'grid'",
        )
        == "float64[2,3]"
    )
    cursor.execute(
        "SELECT table_schema FROM information_schema.tables WHERE table_catalog = 'forebay' AND table_name IN ('points', 'workers') ORDER BY 1"
    )
    assert cursor.fetchall() == [("public",), ("system",)]
    assert one(cursor, "SELECT count(*) FROM system.datasets") == 1


# --- parameters


@pytest.mark.parametrize(
    ("sql", "parameters", "expected"),
    [
        ("SELECT count(*) FROM points WHERE epoch = 0 AND label = ?", (3,), ROWS // 10),
        ("SELECT count(*) FROM points WHERE epoch = $1 AND label IN ($2, $3)", (0, 3, 4), ROWS // 5),
        (
            "SELECT name FROM points WHERE _id = (SELECT min(_id) FROM points WHERE name = ?) AND epoch = ?",
            ("row 7", 1),
            "row 7",
        ),
        ("SELECT ?", (None,), None),
        ("SELECT ? || '-' || ?", ("a'b", '"'), "a'b-\""),
        ("SELECT ? + INTERVAL '1 day'", (datetime.date(2020, 2, 28),), datetime.datetime(2020, 2, 29)),
        ("SELECT count(*) FROM (SELECT 1 FROM points LIMIT ?)", (5,), 5),
        ("SELECT round(?, 1)", (2.25,), 2.3),
        ("SELECT encode(?, 'hex')", (b"\x00\x01\xff",), "0001ff"),
        ("SELECT '?' WHERE ?", (True,), "?"),
    ],
)
def test_parameters(cursor, sql, parameters, expected):
    got = one(cursor, sql, parameters)
    if isinstance(expected, datetime.datetime):
        got = (
            datetime.datetime.combine(got, datetime.time())
            if not isinstance(got, datetime.datetime)
            else got.replace(tzinfo=None)
        )
    assert got == expected


def test_prepared_statements_say_their_parameters(cursor):
    schema = cursor.adbc_prepare("SELECT name FROM points WHERE _id = ? AND name = ?")
    assert schema.names == ["$1", "$2"] and schema.types == [pa.int64(), pa.string()]
    for number in (3, 5):
        cursor.execute(
            "SELECT name FROM points WHERE _id = ? AND epoch = 0 AND name = ?", (2**0 * number, f"row {number}")
        )
        assert cursor.fetchall() in ([(f"row {number}",)], [])


def test_a_statement_without_its_values_says_so(cursor):
    with pytest.raises(dbapi.Error, match="1 parameter"):
        cursor.execute("SELECT ? FROM points")
        cursor.fetchall()


def test_schemas_without_running(cursor):
    schema = cursor.adbc_execute_schema("SELECT _id, grid FROM points")
    assert schema.names == ["_id", "grid"] and schema.field("grid").type == pa.fixed_shape_tensor(pa.float64(), (2, 3))


def test_partitions_can_be_read_elsewhere(client, cursor):
    partitions, schema = cursor.adbc_execute_partitions("SELECT _id FROM points WHERE epoch = 0")
    assert schema.names == ["_id"] and len(partitions) == 1
    with connect(client) as other, other.cursor() as reader:
        reader.adbc_read_partition(partitions[0])
        assert reader.fetch_arrow_table().num_rows == ROWS


# --- what there is


def test_objects(connection):
    catalogs = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    assert [c["catalog_name"] for c in catalogs] == ["forebay"]
    schemas = {s["db_schema_name"]: s["db_schema_tables"] for s in catalogs[0]["catalog_db_schemas"]}
    assert set(schemas) == {"public", "system", "information_schema"}
    points = next(t for t in schemas["public"] if t["table_name"] == "points")
    assert points["table_type"] == "BASE TABLE"
    assert {"epoch", "_id", "label", "name", "grid", "y"} <= {c["column_name"] for c in points["table_columns"]}
    tables = (
        connection.adbc_get_objects(depth="tables", table_name_filter="poi%", db_schema_filter="public")
        .read_all()
        .to_pylist()
    )
    assert [t["table_name"] for t in tables[0]["catalog_db_schemas"][0]["db_schema_tables"]] == ["points"]
    assert connection.adbc_get_objects(depth="catalogs", catalog_filter="none").read_all().num_rows == 0
    assert connection.adbc_get_table_types() == ["BASE TABLE", "VIEW"]


def test_table_schemas_are_those_of_the_rows(connection, cursor):
    schema = connection.adbc_get_table_schema("points")
    cursor.execute("SELECT * FROM points LIMIT 0")
    assert schema.equals(cursor.fetch_arrow_table().schema)
    assert "worker" in connection.adbc_get_table_schema("workers", db_schema_filter="system").names
    with pytest.raises(dbapi.Error):
        connection.adbc_get_table_schema("pointz")


def test_info(connection):
    info = connection.adbc_get_info()
    assert info["vendor_name"] == "Forebay" and info["vendor_version"] and info["vendor_arrow_version"]


# --- writing


def table(start: int, rows: int) -> pa.Table:
    ids = range(start, start + rows)
    return pa.table({"n": pa.array(ids, pa.int64()), "word": pa.array([f"w{i}" for i in ids]).dictionary_encode()})


def test_ingest(cursor):
    assert cursor.adbc_ingest("taken", table(0, 5000), mode="create") == 5000
    assert one(cursor, "SELECT sum(n) FROM taken") == 5000 * 4999 // 2
    with pytest.raises(dbapi.Error, match="exists"):
        cursor.adbc_ingest("taken", table(0, 1), mode="create")
    assert cursor.adbc_ingest("taken", table(5000, 10).to_reader(max_chunksize=3), mode="append") == 10
    assert one(cursor, "SELECT count(DISTINCT word) FROM taken") == 5010
    assert cursor.adbc_ingest("taken", table(0, 7), mode="replace") == 7
    assert one(cursor, "SELECT count(*) FROM taken") == 7
    with pytest.raises(dbapi.Error, match="no dataset `missing`"):
        cursor.adbc_ingest("missing", table(0, 1), mode="append")
    assert cursor.adbc_ingest("taken", table(7, 1), mode="create_append") == 1
    assert cursor.adbc_ingest("fresh", table(7, 1), mode="create_append") == 1
    with pytest.raises(dbapi.Error, match="temporary"):
        cursor.adbc_ingest("passing", table(0, 1), mode="create", temporary=True)
    with pytest.raises(dbapi.Error):
        cursor.adbc_ingest("select", table(0, 1), mode="create")


# --- what is refused


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_sql_only_reads(cursor, sql):
    with pytest.raises(dbapi.NotSupportedError, match="SELECT or EXPLAIN"):
        cursor.execute(sql)


def test_errors_name_the_place(cursor):
    for sql, part in [
        ("SELECT lable FROM points", "line 1, column 8"),
        ("SELECT label\nFRM points", "Line: 2"),
        ("SELECT * FROM pointz", "did you mean `points`"),
        ("SELECT * FROM '/etc/passwd'", "there is no"),
        ("SELECT getenv('HOME')", "getenv"),
    ]:
        with pytest.raises(dbapi.Error, match=part):
            cursor.execute(sql)
            cursor.fetchall()
    with pytest.raises(dbapi.ProgrammingError) as caught:
        cursor.execute("SELECT lable FROM points")
    assert caught.value.status_code == adbc_driver_manager.AdbcStatusCode.INVALID_ARGUMENT


def test_an_attack_ends_while_others_go_on(client, cursor):
    attacks = [
        "SELECT " + " + ".join(["1"] * 2000),
        "SELECT 1 -- " + "x" * (2 << 20),
        "SELECT range(0, 1000000000000)",
        "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
    ]
    for sql in attacks:
        with pytest.raises(dbapi.Error) as caught:
            cursor.execute(sql)
            cursor.fetchall()
        assert "limit" in str(caught.value), caught.value
        assert one(cursor, "SELECT count(*) FROM points WHERE epoch = 0") == ROWS


def test_transactions_are_refused_and_not_pretended(client):
    with (
        pytest.warns(Warning, match="autocommit"),
        dbapi.connect(location(client)) as connection,
        connection.cursor() as cursor,
    ):
        assert one(cursor, "SELECT 1") == 1


# --- cancelling and leaving


ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT n FROM t"


def test_cancelling_ends_a_query(cursor):
    cursor.execute(ENDLESS)
    reader = cursor.fetch_record_batch()
    assert reader.read_next_batch().num_rows > 0
    timer = threading.Timer(0.5, cursor.adbc_cancel)
    timer.start()
    with pytest.raises((dbapi.Error, OSError, pa.ArrowException), match="(?i)cancel"):
        while True:
            reader.read_next_batch()
    timer.join()


def test_a_cancelled_flight_is_over(client):
    """CancelFlightInfo by hand: the server stops the query, and its ticket is refused from then on."""
    command = statement(ENDLESS)
    with flight.connect(location(client)) as raw:
        info = raw.get_flight_info(flight.FlightDescriptor.for_command(command))
        reader = raw.do_get(info.endpoints[0].ticket)
        assert reader.read_chunk().data.num_rows > 0
        # CancelFlightInfoRequest{info}; the answer is CancelFlightInfoResult{CANCELLED}.
        answers = list(raw.do_action(flight.Action("CancelFlightInfo", field(1, info.serialize()))))
        assert answers[0].body.to_pybytes() == b"\x08\x01"
        with pytest.raises(flight.FlightCancelledError):
            while True:
                reader.read_chunk()
        with pytest.raises(flight.FlightCancelledError):
            raw.do_get(info.endpoints[0].ticket).read_all()


# --- by hand


def field(number: int, value: bytes) -> bytes:
    """One protobuf field of bytes."""
    length, out = len(value), bytes([number << 3 | 2])
    while length >= 0x80:
        out, length = out + bytes([length & 0x7F | 0x80]), length >> 7
    return out + bytes([length]) + value


def command(name: str, *fields: bytes) -> bytes:
    """A Flight SQL message in its Any."""
    return field(1, f"type.googleapis.com/arrow.flight.protocol.sql.{name}".encode()) + field(2, b"".join(fields))


def statement(sql: str) -> bytes:
    return command("CommandStatementQuery", field(1, sql.encode()))


def test_bare_flight_reads_metadata(client):
    with flight.connect(location(client)) as raw:
        for name, columns in [
            ("CommandGetCatalogs", 1),
            ("CommandGetTables", 4),
            ("CommandGetTableTypes", 1),
            ("CommandGetXdbcTypeInfo", 19),
        ]:
            descriptor = flight.FlightDescriptor.for_command(command(name))
            info = raw.get_flight_info(descriptor)
            rows = raw.do_get(info.endpoints[0].ticket).read_all()
            assert (
                rows.schema == info.schema == raw.get_schema(descriptor).schema
                and rows.num_columns == columns
                and rows.num_rows > 0
            )
            assert info.endpoints[0].locations == []
        # include_schema = true, as one byte: five columns, the last of them an encapsulated schema.
        included = field(1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandGetTables") + field(2, b"\x28\x01")
        info = raw.get_flight_info(flight.FlightDescriptor.for_command(included))
        rows = raw.do_get(info.endpoints[0].ticket).read_all().to_pylist()
        points = next(r["table_schema"] for r in rows if r["table_name"] == "points")
        # One message, which some clients take for a stream.
        schema = pa.ipc.read_schema(pa.py_buffer(points))
        assert schema == pa.ipc.open_stream(pa.py_buffer(points)).schema
        assert "grid" in schema.names
        info = raw.get_flight_info(flight.FlightDescriptor.for_command(command("CommandGetSqlInfo")))
        values = dict(zip(*raw.do_get(info.endpoints[0].ticket).read_all().to_pydict().values()))
        assert values[0] == "Forebay" and values[3] is True and values[504] == '"'
        with pytest.raises(
            flight.FlightUnimplementedError if hasattr(flight, "FlightUnimplementedError") else NotImplementedError
        ):
            raw.get_flight_info(
                flight.FlightDescriptor.for_command(command("CommandStatementUpdate", field(1, b"DELETE FROM points")))
            )
        with pytest.raises(pa.ArrowInvalid, match="Line: 1"):
            raw.get_flight_info(flight.FlightDescriptor.for_command(statement("SELEC 1")))


# --- sessions


def test_session_options(client):
    options = {DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value: "true"}
    with connect(client, **options) as connection, connection.cursor() as cursor:
        assert (connection.adbc_current_catalog, connection.adbc_current_db_schema) == ("forebay", "public")
        connection.adbc_current_db_schema = "system"
        assert one(cursor, "SELECT count(*) FROM datasets") >= 1
        with pytest.raises(dbapi.Error):
            connection.adbc_current_db_schema = "nowhere"
        connection.adbc_connection.set_options(**{"adbc.flight.sql.session.option.row_limit": 10})
        with pytest.raises(dbapi.Error, match="10 rows"):
            cursor.execute("SELECT * FROM public.points")
            cursor.fetchall()
        connection.adbc_connection.set_options(**{"adbc.flight.sql.session.option.timeout": 0.5})
        with pytest.raises(dbapi.Error, match="0.5 s"):
            cursor.execute("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t")
            cursor.fetchall()
        with pytest.raises(dbapi.Error):
            connection.adbc_connection.set_options(**{"adbc.flight.sql.session.option.memory": "all"})
        # What was set is still set, and another connection has nothing of it.
        set_options = json.loads(connection.adbc_connection.get_option("adbc.flight.sql.session.options"))
        assert set_options["schema"] == "system" and set_options["row_limit"] == 10
    with connect(client, **options) as other, other.cursor() as cursor:
        assert one(cursor, "SELECT count(*) FROM points WHERE epoch = 0") == ROWS


# --- tokens


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a token and tight limits."""
    root = tmp_path_factory.mktemp("guarded")
    (root / "forebay.toml").write_text('[query]\nrow_limit = 1000\ntimeout = "2s"\n')
    args = [
        os.environ["FOREBAY_BIN"],
        "serve",
        "--root",
        str(root),
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--json",
    ]
    env = os.environ | {"FOREBAY_TOKEN": "a-secret"}
    process = subprocess.Popen(
        [*args, "--config", str(root / "forebay.toml")], stdout=subprocess.PIPE, text=True, env=env
    )
    yield json.loads(process.stdout.readline())["address"].replace("grpc://", "grpc+tcp://")
    process.terminate()
    process.wait()


@pytest.mark.parametrize(
    "options",
    [
        {DatabaseOptions.AUTHORIZATION_HEADER.value: "Bearer a-secret"},
        {DatabaseOptions.AUTHORIZATION_HEADER.value: "bearer a-secret"},
        {"username": "anyone", "password": "a-secret"},
        {"username": "x", "password": "a-secret"},
        {"username": "xx", "password": "a-secret"},
    ],
)
def test_a_token_lets_in(guarded, options):
    with dbapi.connect(guarded, db_kwargs=options, autocommit=True) as connection, connection.cursor() as cursor:
        assert one(cursor, "SELECT 1") == 1


@pytest.mark.parametrize("options", [{}, {"username": "anyone", "password": "guess"}])
def test_no_token_keeps_out(guarded, options):
    with (
        pytest.raises(dbapi.Error, match="token"),
        dbapi.connect(guarded, db_kwargs=options, autocommit=True) as connection,
    ):
        connection.cursor().execute("SELECT 1")


def test_limits_are_settings(guarded):
    credentials = {"username": "anyone", "password": "a-secret"}
    with dbapi.connect(guarded, db_kwargs=credentials, autocommit=True) as connection, connection.cursor() as cursor:
        with pytest.raises(dbapi.Error, match="1000 rows"):
            cursor.execute("SELECT unnest(range(0, 1001))")
            cursor.fetchall()
        with pytest.raises(dbapi.Error, match="deadline of 2 s"):
            cursor.execute("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t")
            cursor.fetchall()


# --- several nodes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A dispatcher, which serves no rows, and a worker; gives the dispatcher's location."""
    root, started = tmp_path_factory.mktemp("cluster"), []

    def start(*args):
        process = subprocess.Popen(
            [os.environ["FOREBAY_BIN"], *args, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"FOREBAY_TOKEN": "a-secret"},
        )
        started.append(process)
        return json.loads(process.stdout.readline())["address"]

    try:
        dispatcher = start("dispatcher", "--root", str(root))
        start("worker", "--dispatcher", dispatcher)
        # Both are there before the dispatcher leads and the worker is known.
        with forebay.connect(dispatcher, token="a-secret") as client:
            end = time.monotonic() + 60
            while client.sql("SELECT worker FROM system.workers").num_rows == 0:
                assert time.monotonic() < end, "no worker"
                time.sleep(0.2)
        yield dispatcher.replace("grpc://", "grpc+tcp://")
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def test_any_node_answers_a_handle(cluster):
    credentials = {"username": "anyone", "password": "a-secret"}
    with dbapi.connect(cluster, db_kwargs=credentials, autocommit=True) as connection, connection.cursor() as cursor:
        assert cursor.adbc_ingest("taken", table(0, 1000), mode="create") == 1000
        # Prepared and bound at the dispatcher, run by the worker that its endpoint names.
        assert one(cursor, "SELECT sum(n) FROM taken WHERE n < ?", (10,)) == 45
        partitions, _ = cursor.adbc_execute_partitions("SELECT n FROM taken")
        assert len(partitions) == 1
        assert one(cursor, "SELECT count(*) FROM system.workers") == 1
        assert "taken" in str(connection.adbc_get_objects(depth="tables").read_all().to_pylist())
        with pytest.raises(dbapi.Error, match="line 1, column 8"):
            cursor.execute("SELECT m FROM taken")


# --- others on top


def test_polars_reads_through_adbc(connection):
    frame = polars.read_database(
        "SELECT label, count(*) AS n FROM points WHERE epoch = 0 GROUP BY label ORDER BY label", connection
    )
    assert frame["n"].to_list() == [ROWS // 10] * 10


def test_duckdb_reads_what_adbc_answers(cursor):
    cursor.execute("SELECT label, y FROM points WHERE epoch = 0")
    rows = duckdb.from_arrow(cursor.fetch_record_batch())
    assert rows.aggregate("count(*), count(DISTINCT label)").fetchall() == [(ROWS, 10)]


def test_the_command_line_asks_the_same_server(client):
    binary = pathlib.Path(os.environ["FOREBAY_BIN"])
    args = [
        binary,
        "sql",
        "SELECT label, count(*) AS n FROM points WHERE epoch = 0 GROUP BY label ORDER BY label LIMIT 1",
        "--format",
        "csv",
    ]
    done = subprocess.run([*args, "--server", client.address], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["label,n", f"0,{ROWS // 10}"]
    done = subprocess.run(
        [binary, "sql", "DROP TABLE points", "--server", client.address], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "SELECT or EXPLAIN" in done.stderr
