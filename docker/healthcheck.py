#!/usr/bin/env python3
"""Asks this container's own HTTP port whether the process is alive."""

import os
import sys
import urllib.request

port = os.environ.get("FOREBAY_HTTP", "0.0.0.0:7071").rsplit(":", 1)[1]
path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
try:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as answer:
        print(answer.read().decode().strip())
except OSError as error:
    sys.exit(f"{path}: {error}")
