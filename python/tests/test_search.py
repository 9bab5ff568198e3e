"""Full-text search from Python, against the real binary."""

import forebay
import pyarrow as pa
import pytest

CAPTIONS = ["a red car", "a blue car", "red wine", "the old bridge", "cars on a red bridge", None]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    root = tmp_path_factory.mktemp("search")
    with forebay.connect(root=root) as client:
        table = pa.table({"caption": [CAPTIONS[i % 6] for i in range(60)], "label": list(range(60))})
        client.write("notes", table)
        with pytest.raises(forebay.FailedPrecondition, match="forebay index notes"):
            client.search("notes", "red")
        assert client.index("notes", "caption", tokenizer="stemmed(english)")["state"] == "done"
        yield client


def test_search_ranks(notes):
    found = notes.search("notes", "red bridge", limit=4)
    assert found.num_rows == 4 and set(found["caption"].to_pylist()) == {"cars on a red bridge"}
    scores = found["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True) and scores[-1] > 0
    assert notes.search("notes", 'red -bridge "red car"', limit=100).num_rows == 10
    assert notes.search("notes@v1", "it's").num_rows == 0


def test_a_filter_finds_what_evaluating_finds(notes):
    found = notes.sql("SELECT label FROM notes WHERE text_match(caption, 'car OR wine') AND label < 30 ORDER BY label")
    expected = [i for i in range(30) if CAPTIONS[i % 6] and any(w in CAPTIONS[i % 6] for w in ("car", "wine"))]
    assert found["label"].to_pylist() == expected


def test_a_loader_may_filter_by_text(notes):
    loader = notes.loader("notes", batch_size=4, filter="text_match(caption, 'bridge') AND label >= 30")
    labels = sorted(x for batch in loader for x in batch["label"].tolist())
    assert labels == [i for i in range(30, 60) if CAPTIONS[i % 6] and "bridge" in CAPTIONS[i % 6]]
    loader.close()


def test_again_changes_nothing_and_errors_say_where(notes):
    assert notes.index("notes", "caption")["state"] == "already_indexed"
    with pytest.raises(forebay.BadInput, match="character 5"):
        notes.search("notes", "red )")
    with pytest.raises(forebay.BadInput, match="only text can be searched"):
        notes.index("notes", "label")
