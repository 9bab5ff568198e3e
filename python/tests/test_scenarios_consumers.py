"""One cluster whose workers become more, and consumers in every number: the same rows, fair shares, steps that everybody makes."""

import itertools
import threading
from collections import Counter

import forebay
import numpy as np
import pyarrow as pa
import pytest
from forebay import loader as loader_module
from roles import Trainer as TrainerProcess
from roles import check_ledger, finished, lead, needs_binary, started, together, worker, workers_there

pytestmark = needs_binary

ROWS, BATCH = 600, 10
BATCHES = ROWS // BATCH


class Cluster:
    """Workers are added and never taken away: the tests of this file run in the order in which they stand."""

    def __init__(self, start, root):
        self.start, self.leader, self.workers = start, lead(start, root), 0
        self.client = forebay.connect(self.leader.address)

    def grow(self, count: int) -> None:
        for number in range(self.workers, count):
            worker(self.start, self.leader, f"w{number}")
        self.workers = max(self.workers, count)
        workers_there(self.client, self.workers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started() as start:
        cluster = Cluster(start, tmp_path_factory.mktemp("cluster") / "root")
        cluster.grow(1)
        lengths = [(n * 37) % 100 for n in range(ROWS)]
        rows = {"x": pa.array(range(ROWS), pa.int64()), "length": pa.array(lengths, pa.int32())}
        cluster.client.write("points", pa.table(rows))
        cluster.client.write("one", pa.table({"x": pa.array([7], pa.int64())}))
        yield cluster
        cluster.client.close()


def all_at_once(count: int, work) -> list:
    """What ``work(number)`` gave in as many threads; its first failure is raised here."""
    got, failed = [None] * count, []

    def run(number: int) -> None:
        try:
            got[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return got


class Told:
    """What one consumer took, as ``check_ledger`` wants it."""

    def __init__(self, told: list[dict]):
        self.told = told


def drawn(cluster: Cluster, job: str, world: int, **settings) -> list[Told]:
    """All that each of ``world`` ranks gets, with nobody ahead of anybody who has not joined."""
    joined = threading.Barrier(world)

    def rank(number: int) -> Told:
        told = []
        ranked = {"rank": number, "world_size": world} if settings.get("assignment") else {}
        try:
            with (
                forebay.connect(cluster.leader.address) as own,
                own.loader(
                    "points", job=job, batch_size=BATCH, timeout=60, **{"epochs": 1} | ranked | settings
                ) as loader,
            ):
                for place, batch in enumerate(loader):
                    if place == 0:
                        joined.wait(90)
                    meta = dict(loader.meta) | {"consumer": loader._settings["consumer"]}
                    meta |= {"padding": meta.get("padding", False), "values": batch["x"].tolist()}
                    told.append(meta | {"lengths": batch["length"].tolist()})
        except BaseException:
            joined.abort()
            raise
        return Told(told)

    return all_at_once(world, rank)


@pytest.fixture(scope="module")
def alone(cluster) -> list[dict]:
    """A pass with seed 3, as a consumer of one worker sees it."""
    return drawn(cluster, "alone", 1, seed=3, assignment="static", window="1KiB")[0].told


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_s35_s40_the_same_seed_is_the_same_order_whoever_serves_it(cluster, alone, workers):
    cluster.grow(workers)
    content = [(told["batch"], told["digest"], told["values"]) for told in alone]
    assert [batch for batch, _, _ in content] == list(range(BATCHES)) and content[0][2] != list(range(BATCH))
    ranked = drawn(cluster, f"ranked-{workers}", 1, seed=3, assignment="static", window="1KiB")
    assert [(told["batch"], told["digest"], told["values"]) for told in ranked[0].told] == content
    shared = drawn(cluster, f"shared-{workers}", 3, seed=3, window="1KiB")
    got = sorted((told["batch"], told["digest"], told["values"]) for each in shared for told in each.told)
    assert got == content, "three consumers between them"
    assert check_ledger(cluster.client, f"shared-{workers}", shared, BATCHES, 1) == {"acknowledged": BATCHES}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_s21_s22_s40_every_step_is_of_one_bucket_and_everybodys(cluster, workers, world):
    """Ranks make the same steps, and the batches of a step hold rows of neighbouring lengths."""
    cluster.grow(workers)
    job = f"rounds-{workers}-{world}"
    ranks = drawn(cluster, job, world, assignment="rounds", bucket_by="length", end="drop", steps="equal")
    steps = BATCHES // world
    assert [[told["step"] for told in each.told] for each in ranks] == [list(range(steps))] * world
    taken = Counter(x for each in ranks for told in each.told for x in told["values"])
    assert set(taken.values()) == {1} and len(taken) == steps * world * BATCH
    spread = []
    for step in range(steps):
        lengths = [length for each in ranks for length in each.told[step]["lengths"]]
        spread.append(max(lengths) - min(lengths))
    # 600 rows of 100 lengths in rounds of world * 10 rows: neighbours differ by about 100 * 10 * world / 600, and random rows by nearly 100.
    assert np.median(spread) <= 2 * world, spread
    states = check_ledger(cluster.client, job, ranks, BATCHES, 1)
    assert states["acknowledged"] == steps * world and states["dropped"] == BATCHES - steps * world


def test_s21_s40_workers_that_die_come_back_and_join_in_rounds(cluster, tmp_path):
    """Ranks stay in step whichever worker serves them."""
    with started() as start:
        leader = lead(start, tmp_path / "root")
        first, second = [worker(start, leader, name) for name in ("a", "b")]
        with forebay.connect(leader.address) as client:
            client.write("points", pa.table({"x": pa.array(range(ROWS), pa.int64())}))
            settings = {"job": "rounds", "batch_size": BATCH, "epochs": 1, "assignment": "rounds", "world_size": 2}
            settings |= {"visitation": "exactly_once", "window": "1KiB"}
            ranks = [start(TrainerProcess, [leader.address], rank=rank, **settings) for rank in range(2)]
            together(ranks, 3)
            first.kill()
            together(ranks, 3)
            worker(start, leader, "c")
            first.start()
            together(ranks, 3)
            second.kill()
            assert finished(ranks) == [{"end": True}] * 2
            assert [[told["step"] for told in rank.told] for rank in ranks] == [list(range(BATCHES // 2))] * 2
            assert Counter(x for rank in ranks for told in rank.told for x in told["values"]) == Counter(range(ROWS))
            assert check_ledger(client, "rounds", ranks, BATCHES, 1) == {"acknowledged": BATCHES}


def test_s36_s40_one_row_and_five_workers(cluster):
    cluster.grow(5)
    got = all_at_once(5, lambda number: one_row(cluster, number))
    assert sorted(got) == [[], [], [], [], [7]], "one of five gets it, and nobody waits for another"


def one_row(cluster: Cluster, number: int) -> list[int]:
    with (
        forebay.connect(cluster.leader.address) as own,
        own.loader("one", job="one-row", epochs=1, consumer=f"c{number}", timeout=90) as loader,
    ):
        try:
            return [int(x) for batch in loader for x in batch["x"]]
        except forebay.FailedPrecondition as error:
            # Whoever comes when it is over is told so.
            assert "finished" in str(error)
            return []


@pytest.mark.parametrize("dataset", ["one", "points"])
def test_s36_an_endless_job_goes_on_and_starves_nobody(cluster, dataset):
    """``epochs = "forever"`` with five consumers on five workers, until each has had a batch and twelve passes have begun."""
    cluster.grow(5)
    rows, size = (1, 1) if dataset == "one" else (ROWS, 60)
    enough, had, passes = threading.Event(), [0] * 5, set()

    def consume(number: int) -> list[tuple[int, int, int]]:
        got = []
        with (
            forebay.connect(cluster.leader.address) as own,
            own.loader(dataset, job=f"forever-{dataset}", batch_size=size, epochs="forever", timeout=90) as loader,
        ):
            while not enough.is_set():
                for batch in loader:
                    got.append((loader.meta["pass"], loader.meta["batch"], len(batch["x"])))
                    had[number] += 1
                    passes.add(loader.meta["pass"])
                    if enough.is_set() or (all(had) and len(passes) >= 12):
                        enough.set()
                        break
        return got

    got = list(itertools.chain(*all_at_once(5, consume)))
    assert len(got) == len({(number, batch) for number, batch, _ in got}), "no batch of a pass came twice"
    assert max(passes) + 1 >= len(passes) >= 12
    lost = {
        (row["pass"], row["batch"])
        for row in cluster.client.sql(
            f"SELECT pass, batch FROM system.losses WHERE job = 'forever-{dataset}'"
        ).to_pylist()
    }
    taken = {(number, batch) for number, batch, _ in got}
    over = [number for number in range(max(passes) - 1)]
    missing = {(number, batch) for number in over for batch in range(-(-rows // size))} - taken - lost
    assert not missing, "every batch of a pass that is over was taken, or is named as lost"
    cluster.client.action("forebay.job.stop", {"job": f"forever-{dataset}"})


def test_s23_the_same_consumer_twice_shares_its_batches(cluster):
    """At most once: two loaders under one name are one consumer with two streams."""
    settings = {"batch_size": BATCH, "epochs": 1, "job": "twins", "consumer": "same", "timeout": 90}
    both = threading.Barrier(2)

    def twin(_: int) -> list[int]:
        got = []
        with forebay.connect(cluster.leader.address) as own, own.loader("points", **settings) as loader:
            for _ in loader:
                got.append(loader.meta["batch"])
                if len(got) == 1:
                    both.wait(90)
        return got

    first, second = all_at_once(2, twin)
    assert first and second and sorted(first + second) == list(range(BATCHES))


def test_s23_the_same_trainer_started_again_takes_the_first_ones_place(cluster):
    """Exactly once: the older process is told, and what it had not committed comes again to the newer."""
    settings = {"batch_size": BATCH, "epochs": 1, "job": "replaced", "consumer": "same", "visitation": "exactly_once"}
    with cluster.client.loader("points", timeout=90, **settings) as old:
        batches = iter(old)
        for _ in range(3):
            next(batches)
        with cluster.client.loader("points", timeout=90, **settings) as new:
            assert sorted(new.meta["batch"] for _ in new) == list(range(BATCHES))
            with pytest.raises(forebay.FailedPrecondition, match="another process took its place|is finished"):
                for _ in range(BATCHES):
                    next(batches)


def test_s23_a_rank_that_is_taken_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(loader_module, "_RANK_SECONDS", 0.0)
    settings = {"batch_size": BATCH, "epochs": 1, "job": "taken", "assignment": "static", "rank": 0, "world_size": 2}
    with cluster.client.loader("points", consumer="first", timeout=90, **settings) as first:
        next(iter(first))
        with pytest.raises(forebay.AlreadyExists, match="rank 0 of job `taken` is consumer `first`"):
            next(iter(cluster.client.loader("points", consumer="second", timeout=90, **settings)))
