"""What the whole server holds, however slow its consumers are and however much there is to read."""

import json
import os
import pathlib
import subprocess
import time

import forebay
import numpy as np
import pyarrow as pa
from pyarrow import flight

MIB = 1 << 20
ROWS, WIDTH = 768, MIB  # 768 MiB in all
STREAMS = 4
WINDOW = 16


def resident(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def batches():
    rng = np.random.default_rng(0)
    for _ in range(ROWS // 16):
        block = rng.integers(0, 256, (16, WIDTH), dtype=np.uint8)
        yield pa.record_batch({"blob": pa.FixedShapeTensorArray.from_numpy_ndarray(block)})


def test_consumers_that_do_not_read_hold_a_window_or_two_each(tmp_path):
    binary = os.environ.get("FOREBAY_BIN", "forebay")
    server = subprocess.Popen(
        [
            binary,
            "serve",
            "--root",
            str(tmp_path / "root"),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--json",
        ],
        env=os.environ | {"FOREBAY_CACHE_LIMIT": f"{2 * WINDOW}MiB"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = json.loads(server.stdout.readline())["address"]
        with forebay.connect(address) as client:
            client.write("blobs", batches())
            first = next(iter(client.loader("blobs", batch_size=1, window=f"{WINDOW}MiB", columns=["blob"])))
            assert first["blob"].shape == (1, WIDTH)
            before = resident(server.pid)
            streams = []
            for number in range(STREAMS):
                command = {"dataset": "blobs", "job": "slow", "consumer": f"c{number}", "batch_size": 1, "epochs": 1}
                command |= {"window": WINDOW * MIB}
                info = client.flight.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))
                writer, reader = client.flight.do_exchange(
                    flight.FlightDescriptor.for_command(info.endpoints[0].ticket.ticket)
                )
                # Asks for everything at once and reads nothing of it.
                writer.write_metadata(pa.py_buffer(json.dumps({"credits": ROWS}).encode()))
                streams.append((writer, reader))
            most, end = 0, time.monotonic() + 6
            while time.monotonic() < end:
                most = max(most, resident(server.pid) - before)
                time.sleep(0.1)
            # Two windows a stream and what the transport buffers, beside the cache's limit; all of it would be 768 MiB.
            allowed = STREAMS * 3 * WINDOW * MIB + 2 * WINDOW * MIB + 64 * MIB
            assert most < allowed < ROWS * WIDTH // 2, f"{most / MIB:.0f} MiB more"
            for _, reader in streams:
                reader.cancel()
            end = time.monotonic() + 90
            while time.monotonic() < end and client.action("forebay.job.status", {"job": "slow"})[0]["granted"]:
                time.sleep(0.2)
            state = client.action("forebay.job.status", {"job": "slow"})[0]
            assert state["granted"] == 0 and state["pending"] > 0, state
    finally:
        server.terminate()
        server.wait()
