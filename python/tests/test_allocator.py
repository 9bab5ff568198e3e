"""The C allocator is told to keep memory, once, and only where nobody else decided about it."""

import subprocess
import sys

import pytest

SAY = "from forebay import allocator; print(allocator.keep_freed_memory(), allocator.keep_freed_memory())"
GLIBC = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, check=False).returncode == 0


def said(**environment: str) -> str:
    env = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)} | environment
    return subprocess.run([sys.executable, "-c", SAY], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.skipif(not GLIBC, reason="this system has another allocator")
def test_glibc_takes_the_settings():
    assert said() == "True True\n"


@pytest.mark.parametrize(
    "environment",
    [
        {"FOREBAY_TUNE_MALLOC": "0"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"},
    ],
)
def test_whoever_decided_about_it_is_left_alone(environment):
    assert said(**environment) == "False False\n"
