"""Views from Python and over Flight SQL, against the real binary: on one node, and with a dispatcher and workers."""

from concurrent.futures import ThreadPoolExecutor

import forebay
import pyarrow as pa
import pytest
from adbc_driver_flightsql import dbapi
from conftest import ROWS
from roles import Role, free_port, needs_binary, started

SELECTION = "SELECT x, label FROM points p WHERE p.label IN (3, 5) AND p.x < 800"
EXPECTED = sorted(i + 0.5 for i in range(800) if i % 10 in (3, 5))


@pytest.fixture
def view(client):
    yield client.create_view("some_points", SELECTION)
    client.drop_view("some_points")


def taken(loader) -> list[float]:
    return sorted(x for batch in loader for x in batch["x"].tolist())


def test_a_view_is_described_with_its_cost(client, view):
    assert (view["kind"], view["dataset"], view["version"]) == ("selection", "points", None)
    assert [c["name"] for c in view["columns"]] == ["x", "label"]
    assert view["cost"]["rows"] == 2 * ROWS and view["cost"]["selected"] == 2 * len(EXPECTED)
    assert view["share"] == pytest.approx(len(EXPECTED) / ROWS)
    assert view["cost"]["bytes"] > 0 and view["cost"]["selection_bytes"] > 0
    assert client.view("some_points")["cost"] == view["cost"]
    assert [v["name"] for v in client.views()] == ["some_points"]
    assert client.sql("SELECT kind, selected FROM system.views").to_pylist() == [
        {"kind": "selection", "selected": 2 * len(EXPECTED)}
    ]


def test_a_loader_reads_a_view_in_every_way(client, view):
    with client.loader("some_points", batch_size=16, epochs=1) as loader:
        assert len(loader) == -(-len(EXPECTED) // 16)
        batches = list(loader)
        assert set(batches[0]) == {"x", "label"}
        assert sorted(x for batch in batches for x in batch["x"].tolist()) == EXPECTED
    with client.loader("some_points", batch_size=16, epochs=1, filter="x > 400", columns=["x"]) as loader:
        assert taken(loader) == [x for x in EXPECTED if x > 400]
    for assignment in ("static", "rounds"):
        shared = {
            "job": f"view-{assignment}",
            "world_size": 2,
            "assignment": assignment,
            "end": "pad",
            "batch_size": 16,
        }

        def rank(number: int, shared=shared) -> list[list[float]]:
            with client.loader("some_points", rank=number, epochs=1, **shared) as loader:
                return [batch["x"].tolist() for batch in loader]

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(rank, range(2))
        assert len(first) == len(second)
        assert sorted({x for batch in (*first, *second) for x in batch}) == EXPECTED


def test_a_restored_job_keeps_its_view(client):
    client.create_view("pinned", SELECTION)
    settings = {"job": "view-restored", "visitation": "exactly_once", "batch_size": 16, "epochs": 1}
    loader = client.loader("pinned", **settings)
    seen = []
    for batch in loader:
        seen.extend(batch["x"].tolist())
        if len(seen) >= 48:
            break
    state = loader.state_dict()
    loader.close()
    # The name means something else by now; the job does not.
    client.drop_view("pinned")
    client.create_view("pinned", "SELECT x FROM points WHERE label = 1")
    again = client.loader("pinned", **settings)
    again.load_state_dict(state)
    rest = taken(again)
    again.close()
    assert sorted(seen + rest) == EXPECTED
    job = client.action("forebay.job.status", {"job": "view-restored"})[0]
    assert job["settings"]["view"]["name"] == "pinned" and "label IN (3, 5)" in job["settings"]["filter"]
    client.drop_view("pinned")


def test_flight_sql_knows_views(client, view):
    with dbapi.connect(client.address.replace("grpc://", "grpc+tcp://"), autocommit=True) as connection:
        objects = connection.adbc_get_objects(depth="columns", table_name_filter="some_points").read_all().to_pylist()
        tables = [t for c in objects for s in c["catalog_db_schemas"] for t in s["db_schema_tables"]]
        assert [(t["table_name"], t["table_type"]) for t in tables] == [("some_points", "VIEW")]
        assert [c["column_name"] for c in tables[0]["table_columns"]] == ["x", "label"]
        views = connection.adbc_get_objects(depth="tables", table_types_filter=["VIEW"]).read_all().to_pylist()
        names = {t["table_name"] for c in views for s in c["catalog_db_schemas"] for t in s["db_schema_tables"]}
        assert "some_points" in names and "points" not in names
        assert connection.adbc_get_table_schema("some_points") == pa.schema(
            [("x", pa.float64()), ("label", pa.int64())]
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM some_points WHERE x > ?", (400.0,))
            assert cursor.fetchone() == (len([x for x in EXPECTED if x > 400]) * 2,)
            with pytest.raises(Exception, match="there is a view `some_points`"):
                cursor.adbc_ingest("some_points", pa.table({"x": [1.0]}))


def test_what_is_no_selection_is_asked_by_sql_only(client):
    made = client.create_view("per_label", "SELECT label, count(*) AS n FROM points GROUP BY label")
    assert made["kind"] == "query" and "GROUP BY" in made["error"] and made["cost"]["rows"] == 2 * ROWS
    assert client.view("per_label")["cost"]["selected"] == 10
    assert client.sql("SELECT sum(n) AS n FROM per_label")["n"].to_pylist() == [2 * ROWS]
    with pytest.raises(forebay.Unsupported, match=r"\[source\] sql"):
        client.loader("per_label").__iter__().__next__()
    with pytest.raises(forebay.AlreadyExists, match="there is a dataset"):
        client.create_view("points", "SELECT 1 AS one")
    with pytest.raises(forebay.AlreadyExists, match="there is a view"):
        client.write("per_label", pa.table({"a": [1]}))
    with pytest.raises(forebay.Unsupported, match="DELETE"):
        client.create_view("bad", "DELETE FROM points")
    with pytest.raises(forebay.NotFound, match="per_label"):
        client.drop_view("per_labels")
    client.drop_view("per_label")


@needs_binary
def test_workers_answer_views(folder, tmp_path):
    root = tmp_path / "root"
    with forebay.connect(root=root) as client:
        client.materialize(folder / "points.toml", progress=False)
    with started() as start:
        leader = start(Role, "dispatcher", "--root", str(root), "--listen", f"127.0.0.1:{free_port()}")
        for name in ("w0", "w1"):
            start(Role, "worker", "--dispatcher", leader.address, "--listen", "127.0.0.1:0", "--name", name)
        with forebay.connect(leader.address) as client:
            client.create_view("some_points", SELECTION)
            assert client.sql("SELECT count(*) AS n FROM some_points")["n"].to_pylist() == [2 * len(EXPECTED)]
            with client.loader("some_points", batch_size=16, epochs=1) as loader:
                assert taken(loader) == EXPECTED
