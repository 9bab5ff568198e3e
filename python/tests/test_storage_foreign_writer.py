"""Other programs write to a table of ours; the binary of `storage/examples/write_sample.rs` must still read every row.

FOREBAY_SAMPLE_BIN is that binary. Each test makes its own table.
"""

import os
import pathlib
import subprocess
import tempfile

import deltalake
import pyarrow

BINARY = os.environ["FOREBAY_SAMPLE_BIN"]


def run(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)


def table(folder):
    made = run(folder)
    assert made.returncode == 0, made.stderr
    return deltalake.DeltaTable(made.stdout.strip())


def reads(folder):
    checked = run(folder, "check")
    assert checked.returncode == 0, checked.stderr
    return checked.stdout


def test_ours_is_read_back():
    with tempfile.TemporaryDirectory() as folder:
        table(folder)
        assert "version 1: 6 files" in reads(folder)


def test_after_optimize():
    with tempfile.TemporaryDirectory() as folder:
        result = table(folder).optimize.compact()
        assert result["numFilesRemoved"] == 6
        assert "version 2: 2 files" in reads(folder)


def test_after_a_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        made = table(folder)
        made.create_checkpoint()
        log = pathlib.Path(folder) / "datasets" / "sample" / "_delta_log"
        for commit in log.glob("*.json"):
            commit.unlink()
        assert "version 1: 6 files" in reads(folder)


def test_after_optimize_a_checkpoint_and_a_vacuum():
    with tempfile.TemporaryDirectory() as folder:
        made = table(folder)
        made.optimize.compact()
        made.create_checkpoint()
        made.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert ": 2 files" in reads(folder)


def test_rows_appended_by_another_program_are_seen():
    with tempfile.TemporaryDirectory() as folder:
        made = table(folder)
        rows = made.to_pyarrow_table(filters=[("epoch", "=", 1), ("_id", "<", 10)])
        deltalake.write_deltalake(made, pyarrow.table(rows), mode="append")
        checked = run(folder, "check")
        assert checked.returncode != 0 and "not every row came once" in checked.stderr


def test_a_feature_that_we_cannot_read_is_named():
    with tempfile.TemporaryDirectory() as folder:
        made = table(folder)
        made.alter.add_feature(deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        checked = run(folder, "check")
        assert checked.returncode != 0 and "deletionVectors" in checked.stderr, checked.stderr


if __name__ == "__main__":
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
