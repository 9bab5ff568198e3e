"""The same rows opened with Polars: the stored epochs are plain Parquet behind a Delta log.

forebay datasets show digits --root data/demo --json | python examples/digits/look.py
"""

import json
import sys

import polars as pl


def main() -> None:
    dataset = json.load(sys.stdin)
    table = dataset["table"].removeprefix("file://").rstrip("/")
    # A version's file list, never a glob: files that no version names do not exist.
    files = [f"{table}/{file['path']}" for file in dataset["files"]]
    rows = pl.read_parquet(files, hive_partitioning=True)
    print(f"{len(files)} files of version {dataset['version']}, {rows.height} rows")
    counts = rows.group_by("epoch", "split").agg(pl.len().alias("rows"), pl.col("label").n_unique().alias("digits"))
    print(counts.sort("epoch", "split"))
    first = rows.filter(pl.col("epoch") == 0).sort("_id").head(1)
    pixels = first["image"][0]
    print(f"row {first['_id'][0]} of {first['_source'][0]}, a {first['label'][0]}:")
    for line in range(8):
        print("   " + "".join(" .:-=+*#%@"[min(p * 10 // 256, 9)] for p in pixels[line * 8 : line * 8 + 8]))


if __name__ == "__main__":
    main()
