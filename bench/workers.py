"""How much shorter a materialization gets with more workers: tasks that sleep half a second, 20 of them for each worker.

The work needs no processor, so that what is measured on a small machine is handing out, staging and publishing. A first run of each cluster, which
starts the workers' Python processes, is not counted. The clock runs from the first task's start to the last one's end, and to the end of the
command.
"""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

BINARY = os.environ["FOREBAY_BIN"]
SLEEP = 0.5
TASKS = 20

PIPELINE = """
name = "{name}"

[source]
uri = "rows/*.csv"
format = "csv"
options = {{ task_size = 1 }}

[[steps]]
name = "wait"
python = "nap:nap"
options = {{ log = "{log}", seconds = {seconds} }}
"""

STEP = """
import time


def nap(batch, log, seconds):
    if not batch.num_rows:
        # It is asked for its columns only.
        return batch.select(["x"])
    started = time.time()
    time.sleep(seconds)
    with open(log, "a") as file:
        file.write(f"{started} {time.time()}\\n")
    return batch.select(["x"])
"""


class Role:
    """A role of the real binary, in a process of its own."""

    def __init__(self, *args: str):
        command = [BINARY, *args, "--http", "127.0.0.1:0", "--json"]
        allowed = os.environ | {"FOREBAY_PYTHON_ALLOW": "true", "FOREBAY_SOURCES_ALLOW": "/"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=allowed
        )
        self.address = json.loads(self.process.stdout.readline())["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()


def materialize(folder: Path, server: str, name: str, seconds: float) -> tuple[list[tuple[float, float]], float]:
    """When each task slept, and how long the command took."""
    log = folder / f"{name}.log"
    (folder / f"{name}.toml").write_text(PIPELINE.format(name=name, log=log, seconds=seconds))
    began = time.time()
    command = [BINARY, "materialize", str(folder / f"{name}.toml"), "--server", server]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.time() - began
    return [tuple(map(float, line.split())) for line in log.read_text().splitlines()], took


def measure(workers: int) -> float:
    """Seconds from the first task's start to the last one's end."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        (folder / "rows").mkdir()
        (folder / "nap.py").write_text(STEP)
        for number in range(TASKS * workers):
            (folder / "rows" / f"{number:04}.csv").write_text(f"x\n{number}\n")
        root, listen = str(folder / "root"), ("--listen", "127.0.0.1:0")
        dispatcher = stack.enter_context(Role("dispatcher", "--root", root, *listen))
        started: list[Role] = []
        threads = [
            threading.Thread(
                target=lambda: started.append(
                    Role("worker", "--dispatcher", dispatcher.address, "--slots", "1", *listen)
                )
            )
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in started:
            stack.enter_context(worker)
        materialize(folder, dispatcher.address, "warm", SLEEP / 5)
        naps, command = materialize(folder, dispatcher.address, "measured", SLEEP)
        if len(naps) != TASKS * workers:
            raise SystemExit(f"bench: {len(naps)} tasks ran instead of {TASKS * workers}")
        took = max(end for _, end in naps) - min(start for start, _ in naps)
        print(
            f"  {workers} workers: {len(naps)} tasks of {SLEEP} s in {took:5.2f} s, {TASKS * SLEEP / took:4.0%} of the ideal"
            f" {TASKS * SLEEP:.0f} s; the whole command {command:5.2f} s",
            flush=True,
        )
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    args = parser.parse_args()
    took = {workers: measure(workers) for workers in args.workers}
    few, many = min(took), max(took)
    print(
        f"  from {few} to {many} workers, each with as much to do: {took[few] / took[many]:.0%} of the speed was kept"
    )


if __name__ == "__main__":
    main()
