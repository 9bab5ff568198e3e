"""Who gets which batch, and what is promised: every assignment and visitation with real consumers."""

import json
import os
import signal
import subprocess
import sys
import threading

import forebay
import pyarrow as pa
import pytest
from conftest import ROWS
from pyarrow import flight

BATCH = 30
BATCHES = 34  # 33 full ones and one of ten rows


def draw(client, world: int, job: str, passes: int = 2, **settings) -> list[list[dict]]:
    """What each rank was told of its batches, with the rows that came."""
    got: list[list[dict]] = [[] for _ in range(world)]
    failed: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            with forebay.connect(client.address) as own:
                loader = own.loader(
                    "points",
                    batch_size=BATCH,
                    epochs=passes,
                    job=job,
                    rank=number,
                    world_size=world,
                    timeout=60,
                    **settings,
                )
                with loader:
                    for _ in range(passes):
                        for batch in loader:
                            got[number].append(loader.meta | {"x": [int(x) for x in batch["x"]]})
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return got


def batches(got: list[list[dict]], number: int) -> list[int]:
    return sorted(meta["batch"] for rank in got for meta in rank if meta["pass"] == number and not meta.get("padding"))


@pytest.mark.parametrize("assignment", ["static", "rounds"])
def test_ranks_get_every_fourth_batch_step_by_step(client, assignment):
    got = draw(client, 4, f"every-{assignment}", assignment=assignment)
    for rank, metas in enumerate(got):
        assert [(m["pass"], m["batch"]) for m in metas] == [(p, 4 * s + rank) for p in range(2) for s in range(8)]
        assert [m["step"] for m in metas] == [*range(8)] * 2
    dropped = client.sql(
        f"SELECT batch FROM system.losses WHERE job = 'every-{assignment}' AND pass = 1 ORDER BY batch"
    )
    assert dropped["batch"].to_pylist() == [32, 33], "the partial last round is dropped, and listed"


def test_the_map_does_not_change_what_is_in_a_batch(client):
    static = draw(client, 4, "same-static", passes=1, assignment="static", steps="any", end="short")
    with client.loader("points", batch_size=BATCH, epochs=1) as loader:
        pairs = [(loader.meta["batch"], [int(x) for x in batch["x"]]) for batch in loader]
    alone = dict(pairs)
    assert {m["batch"]: m["x"] for rank in static for m in rank} == alone
    assert sorted(x for rows in alone.values() for x in rows) == list(range(ROWS))


@pytest.mark.parametrize("assignment", ["static", "rounds", "dynamic"])
def test_padding_repeats_batches_until_all_ranks_have_as_many(client, assignment):
    got = draw(client, 4, f"pad-{assignment}", assignment=assignment, end="pad")
    assert [len(rank) for rank in got] == [18] * 4
    with client.loader("points", batch_size=BATCH, job="len", rank=0, world_size=4, end="pad") as loader:
        assert len(loader) == 9
    for number in range(2):
        assert batches(got, number) == list(range(BATCHES)), "nothing is dropped, and padding is flagged"


def test_equal_steps_of_a_dynamic_job(client):
    got = draw(client, 4, "equal-dynamic")
    assert [len(rank) for rank in got] == [16] * 4
    for number in range(2):
        seen = batches(got, number)
        assert len(seen) == len(set(seen)) == 32


CONSUMER = """
import sys, time
import forebay

with forebay.connect(sys.argv[1]) as client:
    loader = client.loader("points", batch_size=30, epochs=1, job=sys.argv[2], visitation="at_least_once")
    for number, batch in enumerate(loader):
        print(loader.meta["batch"], flush=True)
        if number == 3:
            time.sleep(3600)
"""


def test_s09_at_least_once_gives_a_killed_consumers_batches_to_another(client):
    command = [sys.executable, "-c", CONSUMER, client.address, "again"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    held = [int(first.stdout.readline()) for _ in range(4)]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with client.loader(
        "points", batch_size=BATCH, epochs=1, job="again", visitation="at_least_once", timeout=90
    ) as loader:
        taken = [loader.meta["batch"] for _ in loader]
    # The first three were acknowledged by asking for the next; the fourth was not, nor what was prefetched.
    assert len(taken) == len(set(taken))
    assert set(taken) >= set(range(BATCHES)) - set(held[:3])
    assert set(taken) | set(held[:3]) == set(range(BATCHES))
    assert client.sql("SELECT count(*) AS n FROM system.losses WHERE job = 'again'")["n"].to_pylist() == [0]


def test_a_stream_without_acknowledgements_is_refused_where_more_is_promised(client):
    command = {"dataset": "points", "job": "plain", "consumer": "a", "visitation": "at_least_once"}
    info = client.flight.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))
    with pytest.raises(pa.ArrowInvalid, match="DoExchange"):
        client.flight.do_get(info.endpoints[0].ticket).read_all()


def test_a_missing_rank_holds_a_round_up_no_longer_than_said(client):
    with (
        client.loader(
            "points", batch_size=BATCH, epochs=1, job="alone", rank=0, world_size=2, assignment="rounds", timeout=3
        ) as loader,
        pytest.raises(forebay.Cancelled),
    ):
        for _ in loader:
            pass


def test_s22_the_batches_of_a_round_have_neighbouring_lengths(client):
    """With ``bucket_by`` the ranks of one step pad about as little as if they had sorted the window."""
    lengths = [(i * 37) % 100 for i in range(ROWS)]
    texts = pa.table({"text": ["x" * n for n in lengths], "n": pa.array(lengths, pa.int32())})
    client.write("texts", texts)

    def spread(job: str, **settings) -> tuple[int, list[int]]:
        """The padding over all steps, and the rows."""
        got: list[list[list[int]]] = [[], []]

        def rank(number: int) -> None:
            with forebay.connect(client.address) as own:
                loader = own.loader(
                    "texts",
                    batch_size=25,
                    epochs=1,
                    job=job,
                    rank=number,
                    world_size=2,
                    assignment="rounds",
                    **settings,
                )
                with loader:
                    got[number] += [list(batch["n"]) for batch in loader]

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        steps = [a + b for a, b in zip(*got, strict=True)]
        return sum(max(step) * len(step) - sum(step) for step in steps), sorted(int(n) for step in steps for n in step)

    plain, rows = spread("plain-lengths")
    by_text, same = spread("by-text", bucket_by="text")
    by_value, again = spread("by-value", bucket_by="n", columns=["n"])
    assert rows == same == again == sorted(lengths)
    assert by_text == by_value and by_text * 10 < plain, (plain, by_text, by_value)
    with pytest.raises(forebay.BadInput, match="bucket_by.*x"):
        next(iter(client.loader("points", bucket_by="x")))
    with pytest.raises(forebay.BadInput, match="bucket_by.*lenght"):
        next(iter(client.loader("texts", bucket_by="lenght")))
