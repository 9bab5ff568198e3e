"""Checkpoints at the edges: before anything was read, after everything was, and calls that are made again."""

import json

import forebay
import pytest
from pyarrow import flight

BATCH, BATCHES = 100, 10


def exact(client, job: str, **settings):
    return client.loader(
        "points", job=job, batch_size=BATCH, visitation="exactly_once", timeout=60, **{"epochs": 2} | settings
    )


def drawn(loader) -> list[int]:
    return [loader.meta["batch"] for _ in loader]


def test_loops_over_more_passes_than_are_left_end(client):
    """A trainer loops over all its epochs, wherever its checkpoint stands."""
    states = []
    with exact(client, "loops") as loader:
        for _ in range(2):
            assert len(drawn(loader)) == BATCHES
            states.append(loader.state_dict())
        # Without a checkpoint it says that it reads what is over.
        with pytest.raises(forebay.FailedPrecondition, match="is finished"):
            drawn(loader)
    for done, state in enumerate(states, 1):
        with exact(client, "loops") as loader:
            loader.load_state_dict(state)
            counts = [len(drawn(loader)) for _ in range(4)]
            assert counts == [BATCHES] * (2 - done) + [0] * (2 + done) and loader.finished
            # And its state is still that of the end.
            again = loader.state_dict() if done == 1 else state
        with exact(client, "loops") as loader:
            loader.load_state_dict(again)
            assert drawn(loader) == [] and drawn(loader) == []


def test_another_checkpoint_may_follow_an_end(client):
    with exact(client, "follows", epochs=1) as loader:
        for _ in loader:
            if loader.meta["batch"] == 0:
                state = loader.state_dict()
        over = loader.state_dict()
    with exact(client, "follows", epochs=1) as loader:
        loader.load_state_dict(over)
        assert drawn(loader) == []
        loader.load_state_dict(state)
        assert 0 < len(drawn(loader)) < BATCHES
        assert drawn(loader) == []


@pytest.mark.parametrize("assignment", ["static", "rounds"])
def test_the_state_of_a_job_that_nobody_opened(client, assignment):
    """Saved before the first step: the job begins with it, for all ranks."""
    settings = {"assignment": assignment, "world_size": 2, "epochs": [1, 0]}
    job = f"unopened-{assignment}"
    states = []
    for rank in range(2):
        with exact(client, job, rank=rank, **settings) as loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert states == [{"job": job, "token": {"pass": 1, "next": 0}}] * 2
    with exact(client, job, rank=0, **settings) as one, exact(client, job, rank=1, **settings) as other:
        one.load_state_dict(states[0])
        other.load_state_dict(states[1])
        ranks = [iter(one), iter(other)]
        for step in range(BATCHES // 2):
            for rank, batches in enumerate(ranks):
                next(batches)
                assert (one, other)[rank].meta["batch"] == 2 * step + rank
                assert (one, other)[rank].meta["pass"] == 1
    incarnations = client.sql(f"SELECT DISTINCT incarnation FROM system.visits WHERE job = '{job}'")
    assert incarnations["incarnation"].to_pylist() == [0], "the second rank joins the first"
    with exact(client, f"{job}-never", rank=0, **settings) as loader:
        loader.load_state_dict({"job": f"{job}-never", "token": {"pass": 1, "next": 4}})
        with pytest.raises(forebay.NotFound, match="there is no job"):
            next(iter(loader))


def test_a_bad_filter_of_a_state_makes_no_job(client):
    settings = {"assignment": "static", "world_size": 1, "rank": 0}
    with exact(client, "bad-filter", filter="nonsense > 1", **settings) as loader:
        loader.load_state_dict({"job": "bad-filter", "token": {"pass": 0, "next": 0}})
        with pytest.raises(forebay.BadInput, match="filter.*nonsense"):
            next(iter(loader))
    with pytest.raises(forebay.NotFound):
        client.action("forebay.job.status", {"job": "bad-filter"})


def test_acknowledgements_and_commits_by_action_answer_what_they_changed(client):
    """A consumer in another language: what it says again changes nothing, and what it can't say again is refused."""
    about = {"job": "by-hand", "consumer": "c", "session": 7}
    command = about | {
        "dataset": "points",
        "batch_size": BATCH,
        "epochs": 1,
        "visitation": "exactly_once",
        "acks": "action",
    }
    info = client.info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))
    assert json.loads(info.app_metadata)["created_ms"] > 0
    reader = client.flight.do_get(info.endpoints[0].ticket, client.options)
    got = [json.loads(reader.read_chunk().app_metadata.to_pybytes())["batch"] for _ in range(4)]

    def acknowledge(*batches: int) -> int:
        return client.action("forebay.job.ack", about | {"pass": 0, "batches": list(batches)})[0]["acknowledged"]

    def commit(call: int, *batches: int) -> dict:
        taken = [{"pass": 0, "batches": list(batches)}]
        return client.action("forebay.job.commit", about | {"call": call, "taken": taken, "wait_ms": 10_000})[0]

    assert acknowledge(got[0], got[1]) == 2
    assert acknowledge(got[0], got[1]) == 0, "they were acknowledged before"
    first = commit(1, *got[:3])
    assert first["complete"] and commit(1, *got[:3]) == first == commit(1)
    with pytest.raises(forebay.BadInput, match=f"call 1 .* without batch {got[3]}"):
        commit(1, *got)
    second = commit(2, got[3])
    assert second["complete"] and second["token"] != first["token"]
    client.action("forebay.job.stop", {"job": "by-hand"})
