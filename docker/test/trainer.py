"""A trainer in a container: takes every batch that it gets, slowly, and says which and with which rows. Its own account of what it was given.

Environment: CONSUMER, PASSES, PAUSE (seconds a batch); it hurries as soon as /told/hurry exists.
"""

import json
import os
import pathlib
import sys
import time

import forebay

HURRY = pathlib.Path("/told/hurry")


def main() -> None:
    out = open(f"/told/{os.environ['CONSUMER']}.jsonl", "w", buffering=1)  # noqa: SIM115 - open to the end
    pause = float(os.environ["PAUSE"])
    with forebay.connect() as client:
        loader = client.loader(
            "numbers",
            job="train",
            consumer=os.environ["CONSUMER"],
            epochs=int(os.environ["PASSES"]),
            batch_size=12,
            window="32KiB",
            seed=7,
            prefetch_batches=2,
        )
        for number in range(int(os.environ["PASSES"])):
            for batch in loader:
                taken = {"pass": loader.meta["pass"], "batch": loader.meta["batch"], "n": batch["n"].tolist()}
                out.write(json.dumps(taken) + "\n")
                if not HURRY.exists():
                    time.sleep(pause)
            print(f"pass {number} ended", file=sys.stderr, flush=True)
    out.write(json.dumps({"done": True}) + "\n")


if __name__ == "__main__":
    main()
