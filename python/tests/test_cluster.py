"""A dispatcher, workers and trainers in processes of their own, killed in every combination. Each test ends with the ledger."""

import forebay
import pytest
from roles import Trainer, check_ledger, finished, lead, needs_binary, started, together, worker

pytestmark = needs_binary

BATCHES, BATCH = 50, 20


@pytest.fixture
def start():
    with started() as start:
        yield start


def test_s06_s07_s08_s40_all_workers_die_and_a_new_one_finishes(start, folder, tmp_path):
    leader = lead(start, tmp_path / "root", folder)
    workers = [worker(start, leader, f"w{number}") for number in range(4)]
    settings = {"job": "dying", "batch_size": BATCH, "epochs": 2}
    trainers = [start(Trainer, [leader.address], **settings) for _ in range(3)]
    together(trainers, 3)
    for each in workers[:3]:
        each.kill()
    trainers[0].take(2)
    workers[3].kill()
    worker(start, leader, "another")
    assert finished(trainers) == [{"end": True}] * 3
    with forebay.connect(leader.address) as client:
        states = check_ledger(client, "dying", trainers, BATCHES, 2)
    assert states["acknowledged"] + states["lost"] == 2 * BATCHES and states["acknowledged"] > BATCHES


@pytest.mark.parametrize("visitation", ["at_most_once", "exactly_once"])
def test_s14_s17_s40_dispatcher_and_worker_die_together(start, folder, tmp_path, visitation):
    leader = lead(start, tmp_path / "root", folder)
    first = worker(start, leader, "first")
    settings = {"job": "both", "batch_size": BATCH, "epochs": 1, "visitation": visitation}
    trainers = [start(Trainer, [leader.address], **settings) for _ in range(2)]
    together(trainers, 4)
    worker(start, leader, "second")
    leader.kill()
    first.kill()
    leader.start()
    assert finished(trainers) == [{"end": True}] * 2
    with forebay.connect(leader.address) as client:
        states = check_ledger(client, "both", trainers, BATCHES, 1)
    if visitation == "exactly_once":
        assert states == {"acknowledged": BATCHES}, "nothing is lost, and nothing came twice"


@pytest.mark.parametrize("policy", ["wait", "drop", "fail"])
def test_s21_s40_a_rank_that_dies_in_rounds(start, folder, tmp_path, policy):
    """It is waited for, left out, or ends the job, within the time that was set."""
    leader = lead(start, tmp_path / "root", folder)
    worker(start, leader, "w")
    settings = {
        "job": "rounds",
        "batch_size": BATCH,
        "epochs": 1,
        "assignment": "rounds",
        "world_size": 3,
        "rank_lost": policy,
        "rank_timeout": "3s",
    }
    ranks = [start(Trainer, [leader.address], rank=rank, **settings) for rank in range(3)]
    together(ranks, 3)
    ranks[2].kill()
    if policy == "wait":
        # The same rank in a new process goes on in the step where the others wait.
        ranks.append(start(Trainer, [leader.address], rank=2, **settings))
    # Nobody hangs: each of them gives up after 90 s without a batch, and says so.
    ends = finished([*ranks[:2], *ranks[3:]])
    if policy == "fail":
        assert all("rank 2" in end.get("error", "") for end in ends), ends
        return
    assert all(end == {"end": True} for end in ends), ends
    with forebay.connect(leader.address) as client:
        check_ledger(client, "rounds", ranks, BATCHES, 1)
    steps = [[told["step"] for told in rank.told] for rank in ranks[:2]]
    assert steps[0] == steps[1] == list(range(len(steps[0]))), "ranks that live make every step together"


def test_s04_s40_a_finished_job_says_so_and_begins_again_when_told(start, folder, tmp_path):
    leader = lead(start, tmp_path / "root", folder)
    worker(start, leader, "w")
    trainer = start(Trainer, [leader.address], job="done", batch_size=BATCH, epochs=1)
    assert trainer.finish() == {"end": True}
    again = start(Trainer, [leader.address], job="done", batch_size=BATCH, epochs=1)
    assert "is finished" in again.finish()["error"]
    with forebay.connect(leader.address) as client:
        check_ledger(client, "done", [trainer], BATCHES, 1)
        with client.loader("points", job="done", batch_size=BATCH, epochs=1, restart=True, timeout=60) as loader:
            assert sum(1 for _ in loader) == BATCHES
