"""`make bench`: what it costs to serve one Python consumer, beside a plain pyarrow.flight server with the same batches in memory.

Two data sets: 8,192 images (uint8[224,224,3] + label) and 200,000 token sequences (int32[2048]). Both servers run at once, the runs are
interleaved and the medians compared, so that a noisy machine is noisy for both. The first two runs of each warm the cache and are not counted.

`shared` is a job with the plan of the jobs before it, as in a sweep: its batches lie in the cache as they are sent. `fresh` is a job with a seed of
its own: its row groups lie in the cache, and each batch is gathered from all over its window.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent
BINARY = os.environ["FOREBAY_BIN"]
TICKS = os.sysconf("SC_CLK_TCK")
RUNS = 5


def images(rows: int) -> tuple[str, int, pa.Table]:
    """Random pixels: what is served is copied, not looked at."""
    rng = np.random.default_rng(0)
    shape = (224, 224, 3)
    pixels = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    labels = pa.array(rng.integers(0, 1000, rows, dtype=np.int64))
    return "images", 64, pa.table({"image": tensors, "label": labels})


def tokens(rows: int) -> tuple[str, int, pa.Table]:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50_257, (rows, 2048), dtype=np.int32)
    return "tokens", 256, pa.table({"tokens": pa.FixedShapeTensorArray.from_numpy_ndarray(ids)})


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def consume(kind: str, address: str, pid: int, *extra: str) -> dict:
    before = cpu_seconds(pid)
    command = [sys.executable, str(HERE / "consumer.py"), kind, "--server", address, *extra]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    result["server_cpu"] = cpu_seconds(pid) - before
    result["server_peak"] = peak_bytes(pid)
    return result


def show(name: str, runs: list[dict]) -> float:
    """Prints the medians of one server's runs; returns GB/s."""
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    speed = statistics.median(run["bytes"] / run["seconds"] for run in runs) / 1e9
    print(
        f"  {name:8} {median['rows'] / median['seconds']:>10,.0f} rows/s {speed:6.2f} GB/s   client {median['client_cpu']:5.2f} CPU s"
        f" {median['client_peak'] / 1e6:6,.0f} MB   server {median['server_cpu']:5.2f} CPU s {median['server_peak'] / 1e6:6,.0f} MB"
        f"   first batch {median['first_batch'] * 1e3:5.0f} ms"
    )
    return speed


def compare(
    folder: Path, name: str, batch_size: int, table: pa.Table, client, forebay_address: str, forebay_pid: int
) -> None:
    ready = folder / f"{name}.arrow"
    with pa.OSFile(str(ready), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_size)
    client.write(name, table)
    rows, size = table.num_rows, table.nbytes
    print(f"{name}: {rows:,} rows, {size / 1e9:.2f} GB, batches of {batch_size}")
    plain = subprocess.Popen(
        [sys.executable, str(HERE / "plain_server.py"), str(ready)], stdout=subprocess.PIPE, text=True
    )
    try:
        plain_address = f"grpc://127.0.0.1:{int(plain.stdout.readline())}"
        runs: dict[str, list[dict]] = {"shared": [], "fresh": [], "plain": []}
        extra = ["--dataset", name, "--batch-size", str(batch_size), "--columns", ",".join(table.column_names)]
        for number in range(-2, RUNS):
            for kind, seed in (("shared", 0), ("fresh", 1000 + number)):
                run = consume("forebay", forebay_address, forebay_pid, *extra, "--seed", str(seed))
                runs[kind].append(run)
            runs["plain"].append(consume("plain", plain_address, plain.pid))
            wrong = [f"{kind} {done[-1]['rows']}" for kind, done in runs.items() if done[-1]["rows"] != rows]
            if wrong:
                raise SystemExit(f"bench: {', '.join(wrong)} rows arrived instead of {rows}")
        # The first run reads the row groups; the second finds that a plan is shared.
        speeds = {kind: show(kind, done[2:]) for kind, done in runs.items()}
        ratios = [f"{kind} {speeds[kind] / speeds['plain']:.2f}" for kind in ("shared", "fresh")]
        print(f"  ratio    {', '.join(ratios)} of the plain server's throughput (median of {RUNS} interleaved runs)")
    finally:
        plain.kill()
        plain.wait()
        ready.unlink(missing_ok=True)


def main() -> None:
    import forebay

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary:
        folder = Path(temporary)
        server = subprocess.Popen(
            [
                BINARY,
                "serve",
                "--root",
                str(folder / "root"),
                "--listen",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--json",
            ],
            env=os.environ | {"FOREBAY_CACHE_LIMIT": "4GiB"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = json.loads(server.stdout.readline())["address"]
            with forebay.connect(address) as client:
                for make, rows in ((images, 8192), (tokens, 200_000)):
                    started = time.perf_counter()
                    name, batch_size, table = make(int(rows * args.scale))
                    compare(folder, name, batch_size, table, client, address, server.pid)
                    print(f"  ({time.perf_counter() - started:.0f} s with data preparation)")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
