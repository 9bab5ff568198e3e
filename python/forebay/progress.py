"""A progress bar for materialization: one line on standard error, only on a terminal."""

import sys
import time


class Progress:
    """Shows rows, rows per second, bytes per second and what is left."""

    def __init__(self, wanted: bool):
        self._on = wanted and sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown = 0.0

    def show(self, state: dict) -> None:
        now = time.monotonic()
        if not self._on or (now - self._shown < 0.1 and state["state"] == "running"):
            return
        self._shown = now
        seconds = max(now - self._started, 1e-9)
        total, done = state.get("source_bytes") or 0, state.get("source_bytes_done") or 0
        share = min(done / total, 1.0) if total else 0.0
        left = f"{seconds * (1 - share) / share:4.0f} s left" if share > 0 else ""
        bar = ("#" * round(20 * share)).ljust(20, ".")
        text = (
            f"{state['dataset']} [{bar}] {share:4.0%}  {state['rows']:,} rows  {state['rows'] / seconds:,.0f} rows/s"
            f"  {state['bytes'] / seconds / 1e6:,.1f} MB/s  {left}"
        )
        sys.stderr.write("\r" + text[:118].ljust(118))
        sys.stderr.flush()

    def stop(self) -> None:
        if self._on:
            sys.stderr.write("\r" + " " * 118 + "\r")
            sys.stderr.flush()
