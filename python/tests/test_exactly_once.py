"""Exactly once relative to checkpoints: commits, restores at other world sizes, and real processes killed in between."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import forebay
import pytest
import roles
from roles import Role, Trainer, check_ledger, finished, lead, needs_binary, started, worker

BATCH = 30
BATCHES = 34
EXACT = {"batch_size": BATCH, "visitation": "exactly_once", "timeout": 60}


def exact(client, job=None, **settings):
    return client.loader("points", job=job, **({"epochs": 1} | EXACT | settings))


def draw(loader, most: int | None = None) -> list[int]:
    """Batches of one iteration, the first ``most`` of them."""
    got: list[int] = []
    for _ in loader:
        got.append(loader.meta["batch"])
        if most is not None and len(got) == most:
            break
    return got


def every(got: list[int]) -> None:
    assert Counter(got) == Counter(range(BATCHES))


def test_without_a_fault_every_batch_comes_once(client):
    with exact(client, "smooth") as loader:
        every(draw(loader))
    states = client.sql("SELECT state, count(*) AS n FROM system.visits WHERE job = 'smooth' GROUP BY state")
    assert states.to_pylist() == [{"state": "acknowledged", "n": BATCHES}]


def test_s10_a_restore_gives_exactly_what_the_checkpoint_lacks_twice_in_succession(client):
    with exact(client, "twice") as first:
        kept = draw(first, 10)
        state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 200, "a token is of constant size"
    with exact(client, "twice") as second:
        second.load_state_dict(state, attempt="second")
        undone = draw(second, 7)
    assert not set(undone) & set(kept)
    with exact(client, "twice") as third:
        third.load_state_dict(state, attempt="third")
        more = draw(third, 9)
        state = third.state_dict()
    with exact(client, "twice") as fourth:
        fourth.load_state_dict(state)
        every(kept + more + draw(fourth))
    incarnations = client.sql("SELECT DISTINCT incarnation FROM system.visits WHERE job = 'twice' ORDER BY incarnation")
    assert incarnations["incarnation"].to_pylist() == [0, 1, 2, 3]


def test_an_older_checkpoint_may_be_restored_after_a_newer_one(client):
    states, taken = [], []
    with exact(client, "older") as loader:
        for number, _ in enumerate(loader):
            taken.append(loader.meta["batch"])
            if number % 10 == 4:
                states.append(loader.state_dict())
    for number, state in reversed(list(enumerate(states))):
        with exact(client, "older") as loader:
            loader.load_state_dict(state)
            every(taken[: number * 10 + 5] + draw(loader))


@pytest.mark.parametrize("at", ["end", "next", "done"])
def test_s12_checkpoints_at_the_end_of_an_epoch_and_after_several(client, at):
    with exact(client, f"passes-{at}", epochs=3) as loader:
        first = draw(loader)
        if at == "end":
            state = loader.state_dict()
        second = draw(loader, 5)
        if at == "next":
            state = loader.state_dict()
        if at == "done":
            second += draw(loader)
            third = draw(loader)
            state = loader.state_dict()
    every(first)
    with exact(client, f"passes-{at}", epochs=3) as loader:
        loader.load_state_dict(state)
        if at == "done":
            every(second)
            every(third)
            assert draw(loader) == [], "nothing is left"
            assert loader.finished
            return
        rest = draw(loader)
        every(rest if at == "end" else second + rest)
        assert loader.meta["pass"] == 1 and not loader.finished
        every(draw(loader))
        assert loader.finished


def test_a_private_loader_is_resumed_by_its_state_alone(client):
    with exact(client) as loader:
        kept = draw(loader, 12)
        state = loader.state_dict()
    with exact(client) as loader:
        loader.load_state_dict(state)
        every(kept + draw(loader))


def test_the_older_trainer_is_refused_after_a_restore(client):
    with forebay.connect(client.address) as other:
        old = exact(other, "fenced", prefetch_batches=2)
        batches = iter(old)
        next(batches)
        state = old.state_dict()
        with exact(client, "fenced") as fresh:
            fresh.load_state_dict(state)
            rest = draw(fresh, 3)
            with pytest.raises(forebay.FailedPrecondition):
                for _ in range(BATCHES):
                    next(batches)
            rest += draw(fresh)
        old.close()
    assert len(rest) == len(set(rest)) == BATCHES - 1


def together(
    client, world: int, job: str, most: int | None, state=None, **settings
) -> tuple[list[list[int]], list[dict]]:
    """What each of several consumers took before they committed together, and the states that they got.

    As after a training step, nobody commits before all have drawn: a commit is complete without whoever has not joined.
    """
    drawn = threading.Barrier(world)
    got: list[list[int]] = [[] for _ in range(world)]
    states: list[dict | None] = [None] * world
    failed: list[BaseException] = []

    def consumer(number: int) -> None:
        try:
            with forebay.connect(client.address) as own:
                ranked = {"rank": number, "world_size": world} if settings.get("assignment") else {}
                with exact(own, job, **ranked, **settings) as loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    got[number] = draw(loader, most)
                    drawn.wait(60)
                    states[number] = loader.state_dict()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
            drawn.abort()

    threads = [threading.Thread(target=consumer, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return got, states


def test_s11_dynamic_consumers_commit_together_and_go_on_at_another_world_size(client):
    taken: list[int] = []
    state = None
    for world in (3, 2, 4, 1):
        got, states = together(client, world, "worlds", 2, state)
        assert len({json.dumps(s) for s in states}) == 1, "all get the same token"
        state = states[0]
        taken += [batch for rank in got for batch in rank]
    with exact(client, "worlds") as loader:
        loader.load_state_dict(state)
        every(taken + draw(loader))


@pytest.mark.parametrize("assignment", ["static", "rounds"])
def test_s11_ranks_go_on_at_another_world_size_from_a_state_that_each_computes(client, assignment):
    settings = {"assignment": assignment, "steps": "any", "end": "short"}
    taken: list[int] = []
    state = None
    for world in (3, 2, 4):
        got, states = together(client, world, f"map-{assignment}", 2, state, **settings)
        assert len({json.dumps(s) for s in states}) == 1
        state = states[0]
        for step in range(2):
            taken += [rank[step] for rank in got]
        assert taken == list(range(len(taken))), "in the order of the map"
    got, _ = together(client, 1, f"map-{assignment}", None, state, **settings)
    every(taken + got[0])


def test_ranks_at_different_steps_cannot_commit(client):
    failed: list[BaseException] = []

    def rank(number: int) -> None:
        with forebay.connect(client.address) as own:
            loader = exact(own, "uneven", rank=number, world_size=2, assignment="static")
            with loader:
                draw(loader, 1 + number)
                try:
                    loader.commit()
                except forebay.FailedPrecondition as error:
                    failed.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 2
    assert all("step" in error.message for error in failed)


def test_what_cannot_be_restored_says_why(client):
    with exact(client, "refusals") as loader:
        draw(loader, 2)
        state = loader.state_dict()
    with exact(client, "refusals", batch_size=7) as loader:
        loader.load_state_dict(state)
        with pytest.raises(forebay.AlreadyExists, match="batch_size"):
            next(iter(loader))
    with exact(client, "refusals") as loader:
        loader.load_state_dict({"job": "refusals", "token": {"incarnation": 0, "commit": 99}})
        with pytest.raises(forebay.NotFound, match="commit 99"):
            next(iter(loader))
        with pytest.raises(forebay.BadInput, match="state_dict"):
            loader.load_state_dict({"nothing": 1})
        loader.load_state_dict({"job": "refusals", "token": "x"})
        with pytest.raises(forebay.BadInput, match="token"):
            next(iter(loader))


# What a trainer does: it draws, commits now and then, and says so. Its parent kills it.
TRAINER = """
import json, sys
import forebay

address, job, state, each = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
with forebay.connect(address) as client:
    loader = client.loader("points", batch_size=30, epochs=1, job=job, visitation="exactly_once", timeout=90)
    if state:
        loader.load_state_dict(state)
    with loader:
        for number, batch in enumerate(loader, 1):
            print(json.dumps({"batch": loader.meta["batch"]}), flush=True)
            if number % each == 0:
                print(json.dumps({"state": loader.state_dict()}), flush=True)
    print(json.dumps({"end": True}), flush=True)
"""


def trainer(address: str, job: str, state, each: int) -> subprocess.Popen:
    command = [sys.executable, "-c", TRAINER, address, job, json.dumps(state), str(each)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen) -> dict:
    line = process.stdout.readline()
    assert line, "the trainer ended early"
    return json.loads(line)


def test_s09_trainers_killed_again_and_again_train_on_every_row_once(client):
    """A restart from the last checkpoint after each kill: what is in checkpoints is everything, once."""
    done: list[int] = []
    state, kills = None, 0
    while True:
        process = trainer(client.address, "killed", state, 5)
        since: list[int] = []
        limit = 7 + kills
        while True:
            told = said(process)
            if "end" in told:
                assert process.wait() == 0
                break
            if "state" in told:
                done, since, state = done + since, [], told["state"]
            else:
                since.append(told["batch"])
                limit -= 1
            if limit == 0:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                break
        if "end" in told:
            break
        kills += 1
    assert kills >= 3
    every(done + since)


@pytest.fixture
def processes():
    with started() as start:
        yield start


@needs_binary
def test_s13_a_server_killed_in_the_middle_of_a_pass_costs_and_repeats_nothing(folder: Path, tmp_path: Path, processes):
    server = processes(Role, "serve", "--root", str(tmp_path / "root"))
    with forebay.connect(server.address) as client:
        client.materialize(folder / "points.toml", progress=False)
        got: list[int] = []
        with exact(client, "server") as loader:
            for _ in loader:
                got.append(loader.meta["batch"])
                if len(got) in (5, 17):
                    server.kill()
                    server.start()
            every(got)
            state = loader.state_dict()
        with exact(client, "server") as loader:
            loader.load_state_dict(state)
            assert draw(loader) == []


@needs_binary
def test_s05_workers_killed_under_consumers_that_go_on(folder: Path, tmp_path: Path, processes):
    """Two consumers and two workers, one of which dies: the trainers hear nothing of it, and every batch is yielded once."""
    leader = lead(processes, tmp_path / "root", folder)
    workers = [worker(processes, leader, f"w{number}") for number in range(2)]
    trainers = [processes(Trainer, [leader.address], job="workers", epochs=1, **EXACT) for _ in range(2)]
    roles.together(trainers, 3)
    workers[0].kill()
    assert finished(trainers) == [{"end": True}] * 2
    every([told["batch"] for trainer in trainers for told in trainer.told])
    with forebay.connect(leader.address) as client:
        check_ledger(client, "workers", trainers, BATCHES, 1)
        losses = client.sql("SELECT count(*) AS n FROM system.losses WHERE job = 'workers'")
        assert losses["n"].to_pylist() == [0]


@needs_binary
def test_a_trainer_that_slept_too_long_yields_nothing_that_went_to_another(folder: Path, tmp_path: Path, processes):
    """Stopped for longer than its lease: what it held is given to another, and it is refused when it wakes."""
    leader = lead(processes, tmp_path / "root", folder)
    only = worker(processes, leader, "w0")
    asleep = processes(Trainer, [leader.address], job="sleeper", epochs=1, **EXACT)
    asleep.take(3)
    os.kill(asleep.process.pid, signal.SIGSTOP)
    # An open stream keeps its consumer alive until the pings of its connection fail, which takes a minute: it breaks now.
    only.kill()
    only.start()
    with forebay.connect(leader.address) as client, exact(client, "sleeper", timeout=120) as loader:
        every(draw(loader))
        os.kill(asleep.process.pid, signal.SIGCONT)
        assert "fenced" in asleep.finish()["error"]
    # It may have had its fourth in hand when it was stopped.
    assert len(asleep.told) <= 4


def test_an_older_checkpoint_is_not_joined_to_what_was_committed_since(client):
    """The trainer that went on from it died after another commit, which nobody saved."""
    settings = {"job": "unsaved", "batch_size": BATCH, "epochs": 1, "visitation": "exactly_once"}
    with client.loader("points", timeout=60, **settings) as first:
        kept = draw(first, 5)
        saved = first.state_dict()
    dead = trainer(client.address, "unsaved", saved, 6)
    for _ in range(6):
        said(dead)
    assert "state" in said(dead)
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait()
    with client.loader("points", timeout=60, **settings) as third:
        third.load_state_dict(saved)
        every(kept + draw(third))


@pytest.mark.parametrize("end", ["pad", "drop", "short"])
@pytest.mark.parametrize("assignment", ["static", "rounds"])
def test_ranks_agree_on_the_pass_after_a_state_from_a_passs_end(client, assignment, end):
    steps = "any" if end == "short" else "equal"
    settings = {"assignment": assignment, "end": end, "steps": steps, "epochs": 2}
    _, states = together(client, 2, f"end-{assignment}-{end}", None, **settings)
    assert states[0] == states[1]
    again, later = together(client, 3, f"end-{assignment}-{end}", None, states[0], **settings)
    assert all(rank for rank in again), "the next pass, for every rank"
    assert later[0] == later[1] == later[2] and later[0]["token"]["pass"] == 1


def test_padding_does_not_move_the_place_of_a_rank(client):
    settings = {"assignment": "static", "end": "pad", "steps": "equal"}
    _, states = together(client, 3, "padded", 11, **settings)
    assert states[0]["token"] == {"pass": 0, "next": 33}
    # Batch 33 and three repetitions.
    _, states = together(client, 4, "padded", 1, states[0], **settings)
    assert [state["token"] for state in states] == [{"pass": 0, "next": 37}] * 4


def test_rounds_of_lengths_go_on_at_another_world_size(client):
    settings = {"assignment": "rounds", "end": "short", "steps": "any", "bucket_by": "label"}
    got, states = together(client, 2, "lengths", 3, **settings)
    rest, _ = together(client, 1, "lengths", None, states[0], **settings)
    every([batch for rank in got + rest for batch in rank])


def test_other_epochs_than_the_checkpoints_are_refused(client):
    with exact(client, "order", epochs=[1, 0]) as loader:
        draw(loader, 5)
        state = loader.state_dict()
    with exact(client, "order", epochs=[0, 1]) as loader:
        loader.load_state_dict(state)
        with pytest.raises(forebay.BadInput, match="epochs"):
            next(iter(loader))


def test_a_loader_is_read_once_at_a_time_and_not_after_it_was_closed(client):
    loader = exact(client, "once", prefetch_batches=8)
    one, other = iter(loader), iter(loader)
    next(one)
    with pytest.raises(forebay.FailedPrecondition, match="already being read"):
        next(other)
    time.sleep(0.5)
    loader.close()
    with pytest.raises(forebay.FailedPrecondition, match="closed"):
        next(one)


def test_a_call_without_a_session_does_not_speak_for_a_trainer(client):
    with exact(client, "foreign") as loader:
        batches = iter(loader)
        next(batches)
        about = {"job": "foreign", "consumer": loader._settings["consumer"]}
        for action, body in (("ack", {}), ("report", {"number": 9}), ("commit", {"call": 1})):
            with pytest.raises(forebay.FailedPrecondition, match="another process"):
                client.action(f"forebay.job.{action}", about | body)
        every([0, *(loader.meta["batch"] for _ in batches)])


def test_a_pass_that_set_epoch_chose_can_be_gone_on_with(client):
    with exact(client, epochs=None) as loader:
        loader.set_epoch(1)
        kept = draw(loader, 5)
        state = loader.state_dict()
    with exact(client, epochs=[1]) as loader:
        loader.load_state_dict(state)
        with pytest.raises(forebay.FailedPrecondition, match="set_epoch after"):
            loader.set_epoch(0)
            next(iter(loader))
        loader._only_pass = None
        every(kept + draw(loader))
