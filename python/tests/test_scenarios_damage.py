"""Damaged roots: whatever is cut, lost, moved or doubled is refused by its name, and the rest can be read."""

import json
import shutil
from pathlib import Path

import forebay
import pyarrow as pa
import pytest

FILES, ROWS = 4, 500


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A root with a dataset of four equally large shards in each of two epochs."""
    folder = tmp_path_factory.mktemp("whole")
    for file in range(FILES):
        numbers = "".join(f"{1000 + n}\n" for n in range(file * ROWS, (file + 1) * ROWS))
        (folder / f"f{file}.csv").write_text(f"n\n{numbers}")
    text = 'name = "numbers"\n[source]\nuri = "*.csv"\nformat = "csv"\n[source.options]\ntask_size = "2600B"\n[[steps]]\nname = "keep"\nsql = "SELECT n FROM input"\n'
    (folder / "numbers.toml").write_text(text + '[epochs]\ncount = 2\n[output]\ncompression = "none"\n')
    with forebay.connect(root=folder / "root") as client:
        client.materialize(folder / "numbers.toml", progress=False)
        assert client.dataset("numbers").info["shards"] == 2 * FILES
    return folder / "root"


@pytest.fixture
def root(whole, tmp_path) -> Path:
    """A copy to be damaged, that nobody owns."""
    shutil.copytree(whole, tmp_path / "root")
    return tmp_path / "root"


def table(root: Path) -> Path:
    return root / "datasets" / "numbers"


def shards(root: Path) -> list[Path]:
    return sorted(table(root).glob("epoch=*/*.parquet"))


def commits(root: Path) -> list[Path]:
    return sorted((table(root) / "_delta_log").glob("*.json"))


# Every way in which a client gets at rows.
WAYS = {
    "stored": lambda client: client.dataset("numbers").to_arrow(),
    "sql": lambda client: client.sql("SELECT sum(n) AS s FROM numbers"),
    "job": lambda client: passes(client.loader("numbers", batch_size=64, epochs=2, timeout=60)),
}


def passes(loader) -> list:
    with loader:
        return [list(loader) for _ in range(2)]


def refused(root: Path, names: list[str], kinds: tuple = (forebay.Corrupt, forebay.NotFound)) -> None:
    """Whoever wants the rows is told which file it is. The server itself lives, and answers others."""
    with forebay.connect(root=root) as client:
        client.write("other", [pa.record_batch({"v": [1, 2, 3]})])
        for way, read in WAYS.items():
            with pytest.raises(forebay.Error) as failed:
                read(client)
            assert isinstance(failed.value, kinds), (way, failed.value)
            assert any(name in str(failed.value) for name in names), (way, failed.value)
            assert client.dataset("other").to_arrow().num_rows == 3


def test_s30_a_shard_that_is_lost(root):
    lost = shards(root)[1]
    lost.unlink()
    refused(root, [lost.name])


@pytest.mark.parametrize("left", [0, 3, 1000])
def test_s30_a_shard_that_is_cut(root, left):
    cut = shards(root)[2]
    cut.write_bytes(cut.read_bytes()[:left])
    refused(root, [cut.name])


def test_s30_a_shard_whose_end_was_overwritten(root):
    noise = shards(root)[3]
    content = noise.read_bytes()
    noise.write_bytes(content[:-300] + b"\xaa" * 300)
    refused(root, [noise.name])


def test_s30_a_shard_in_anothers_place(root):
    """Of the same length and rows: nothing but its own word tells that it is another one."""
    sizes = [(one, other) for one in shards(root) for other in shards(root) if one != other]
    place, another = next((a, b) for a, b in sizes if a.stat().st_size == b.stat().st_size)
    shutil.copy(another, place)
    refused(root, [f"{place.parent.name}/{place.name}"], (forebay.Corrupt,))


def test_s30_shards_that_were_renamed(root):
    first, second = shards(root)[:2]
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    refused(root, [first.name, second.name])


def test_s30_an_epoch_in_anothers_place(root):
    one, other = sorted(table(root).glob("epoch=*"))
    for shard in one.glob("*.parquet"):
        shutil.copy(shard, other / shard.name)
    refused(root, [f"{other.name}/"])


def test_s30_shards_that_nobody_names_are_not_there(root):
    """A copy under a free name, and what is no shard at all, are no rows: the log says what is stored."""
    first = shards(root)[0]
    shutil.copy(first, first.with_name("000099-000-0.parquet"))
    (first.parent / "notes.parquet").write_text("not Parquet")
    with forebay.connect(root=root) as client:
        for way, read in WAYS.items():
            read(client)
        assert client.dataset("numbers").to_arrow().num_rows == 2 * FILES * ROWS, way
        client.action("forebay.datasets", {"op": "vacuum", "name": "numbers", "older_than_s": 0})
    assert len(shards(root)) == 2 * FILES, "a sweep takes them away"


def lines(commit: Path) -> list[dict]:
    return [json.loads(line) for line in commit.read_text().splitlines()]


def rewrite(commit: Path, actions: list[dict]) -> None:
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_s30_a_log_entry_that_is_no_json(root):
    broken = commits(root)[1]
    broken.write_text(broken.read_text()[:-40])
    refused(root, [broken.name])


def test_s30_a_log_entry_that_is_lost(root):
    lost = commits(root)[0]
    lost.unlink()
    refused(root, [lost.name])


def test_s30_a_log_entry_without_an_epoch(root):
    commit = commits(root)[1]
    actions = lines(commit)
    add = next(action["add"] for action in actions if "add" in action)
    add["partitionValues"] = {}
    rewrite(commit, actions)
    refused(root, [add["path"]])


def test_s30_an_entry_that_names_a_file_outside_of_the_table(root):
    commit = commits(root)[1]
    actions = lines(commit)
    add = next(action["add"] for action in actions if "add" in action)
    add["path"] = "../other/epoch=1/000000-000-0.parquet"
    rewrite(commit, actions)
    refused(root, ["../other"])


def test_s30_a_shard_that_is_named_twice_is_read_once(root):
    """The same file in one entry and again in the next, as a writer that repeats itself may leave it."""
    commit = commits(root)[1]
    actions = lines(commit)
    add = next(action for action in actions if "add" in action)
    rewrite(commit, [*actions, add])
    rewrite(commit.with_name(f"{2:020}.json"), [{"commitInfo": {"operation": "WRITE"}}, add])
    with forebay.connect(root=root) as client:
        rows = client.dataset("numbers").to_arrow()["n"].to_pylist()
        assert sorted(rows) == sorted([*range(1000, 1000 + FILES * ROWS)] * 2)
        with client.loader("numbers", batch_size=100, epochs=[1], timeout=60) as loader:
            assert sum(len(batch["n"]) for batch in loader) == FILES * ROWS


def test_s30_a_rows_count_that_is_not_the_files(root):
    commit = commits(root)[1]
    text = commit.read_text()
    assert f"{ROWS}" in text
    commit.write_text(text.replace(f"{ROWS}", f"{ROWS - 1}"))
    refused(root, [shard.name for shard in shards(root)])


def test_s30_a_journal_that_is_damaged_is_refused_before_anything_is_done(root):
    journal = [path for path in (root / "journal").rglob("*") if path.is_file()]
    assert journal
    for path in journal:
        path.write_bytes(b"\xaa" * max(16, path.stat().st_size))
    with pytest.raises(forebay.Error, match="journal"):
        forebay.connect(root=root)
    assert len(shards(root)) == 2 * FILES
