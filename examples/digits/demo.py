"""`make demo`: real data becomes epochs, a trainer learns from them over Arrow Flight, SQL answers what it saw.

Prints each command that a user would type, then runs it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
BINARY = os.environ.get("FOREBAY_BIN") or shutil.which("forebay") or "forebay"
ROOT = "data/demo"


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def run(command: str) -> None:
    """Shows and runs one command; `forebay` is the binary just built, `python` this interpreter."""
    print(f"$ {command}", flush=True)
    binary, python = shlex.quote(BINARY), shlex.quote(sys.executable)
    shell = f'set -o pipefail; forebay() {{ {binary} "$@"; }}; python() {{ {python} "$@"; }}; {command}'
    done = subprocess.run(["bash", "-c", shell], check=False, cwd=REPO, env=os.environ | {"FOREBAY_BIN": BINARY})
    if done.returncode:
        raise SystemExit(f"demo: the command above ended with status {done.returncode}")


def main() -> None:
    started = time.monotonic()
    shutil.rmtree(REPO / ROOT, ignore_errors=True)
    say("1,797 handwritten digits (UCI, CC BY 4.0) become three augmented epochs: Parquet shards behind a Delta log.")
    run(f"forebay materialize examples/digits/digits.toml --root {ROOT}")
    say("Running it again reads nothing: the pipeline, its code and its source are what they were.")
    run(f"forebay materialize examples/digits/digits.toml --root {ROOT}")
    run(f"forebay epochs digits --root {ROOT}")
    say("A classifier in numpy draws nine passes over the three epochs from one job over Arrow Flight.")
    run(f"python examples/digits/train.py --root {ROOT} --job digits-train")
    say("What did it see? Labels per split:")
    run(
        f'forebay sql --root {ROOT} "SELECT split, sum(n) AS rows, min(n) AS fewest_of_a_digit, max(n) AS most_of_a_digit FROM'
        ' (SELECT split, label, count(*) AS n FROM digits WHERE epoch = 0 GROUP BY split, label) GROUP BY split ORDER BY split"'
    )
    say("Which rows came from which source file:")
    run(
        f'forebay sql --root {ROOT} "SELECT _source, count(*) AS rows, min(_id) AS first_id, max(_id) AS last_id'
        ' FROM digits WHERE epoch = 0 GROUP BY _source ORDER BY _source"'
    )
    say("What became of the batches, pass by pass:")
    run(
        f'forebay sql --root {ROOT} "SELECT pass, epoch, state, count(*) AS batches, sum(rows) AS rows FROM system.visits'
        " WHERE job = 'digits-train' GROUP BY pass, epoch, state ORDER BY pass, state\""
    )
    say("The first ten rows of step 31 of pass 0, long after they were served:")
    run(f"forebay plan digits --job digits-train --pass 0 --step 31 --root {ROOT} | head -n 16")
    say("The same rows opened with Polars:")
    run(f"forebay datasets show digits --root {ROOT} --json | python examples/digits/look.py")
    print(f"\nDone in {time.monotonic() - started:.0f} s. The root stays in {ROOT}; try more: forebay sql --help")


if __name__ == "__main__":
    main()
