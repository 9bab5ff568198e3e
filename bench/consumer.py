"""One consumer in a process of its own: draws every batch, touches it as numpy, prints what it cost as JSON."""

import argparse
import json
import time
from pathlib import Path


def as_arrays(batch) -> int:
    """Wraps every column as numpy without a copy; returns the bytes of the batch."""
    import numpy as np

    total = 0
    for column in batch.columns:
        storage = getattr(column, "storage", column)
        values = storage.values if hasattr(storage, "values") else storage
        buffer = values.buffers()[-1]
        array = np.frombuffer(buffer, dtype=values.type.to_pandas_dtype(), count=len(values), offset=values.offset)
        total += array.nbytes
    return total


def plain(args) -> tuple[int, int, float]:
    from pyarrow import flight

    client = flight.connect(args.server)
    started = time.perf_counter()
    first, rows, size = 0.0, 0, 0
    for chunk in client.do_get(flight.Ticket(b"all")):
        first = first or time.perf_counter() - started
        rows += chunk.data.num_rows
        size += as_arrays(chunk.data)
    return rows, size, first


def forebay_loader(args) -> tuple[int, int, float]:
    import forebay

    with forebay.connect(args.server) as client:
        started = time.perf_counter()
        first, rows, size = 0.0, 0, 0
        with client.loader(
            args.dataset, columns=args.columns.split(","), batch_size=args.batch_size, epochs=1, seed=args.seed
        ) as loader:
            for batch in loader:
                first = first or time.perf_counter() - started
                rows += len(next(iter(batch.values())))
                size += sum(array.nbytes for array in batch.values())
    return rows, size, first


def peak_bytes() -> int:
    """Of this process alone: what getrusage says includes the parent's from before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["plain", "forebay"])
    parser.add_argument("--server", required=True)
    parser.add_argument("--dataset")
    parser.add_argument("--columns", help="those that the plain server sends")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = plain if args.kind == "plain" else forebay_loader
    begun, used = time.perf_counter(), time.process_time()
    rows, size, first = draw(args)
    print(
        json.dumps(
            {
                "rows": rows,
                "bytes": size,
                "seconds": time.perf_counter() - begun,
                "first_batch": first,
                "client_cpu": time.process_time() - used,
                "client_peak": peak_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
