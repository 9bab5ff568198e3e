"""The project's own containers on a private network, for one test."""

import json
import os
import pathlib
import secrets
import subprocess
import time
from collections.abc import Callable

from images import CACHE, REPO, base_image, compose, prometheus, run, say, stripped

PYTHONPATH = "/opt/forebay/python:/opt/site-packages"
SERVERS = "grpc://dispatcher:7070,grpc://standby:7070"


def wait(what: str, limit: float, done: Callable):
    """Waits until `done` gives something; fails with `what`."""
    end = time.monotonic() + limit
    while True:
        last = None
        try:
            if found := done():
                return found
        except (RuntimeError, OSError, ValueError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {limit:.0f} s ({last})")
        time.sleep(0.3)


class Stack:
    """Builds the images and starts the stack; `close` leaves nothing behind."""

    def __init__(self, binary: pathlib.Path, endpoint: pathlib.Path, site_packages: pathlib.Path, work: pathlib.Path):
        self.project = f"forebay-test-{os.getpid()}"
        self.image = f"{self.project}:local"
        self.work, self.site_packages = work, site_packages
        # Not guessable, so that they can be looked for in what containers write.
        self.secrets = {"AWS_ACCESS_KEY_ID": "AK" + secrets.token_hex(8).upper()}
        self.secrets |= {name: secrets.token_hex(16) for name in ("AWS_SECRET_ACCESS_KEY", "FOREBAY_TOKEN")}
        stripped(binary, REPO / "docker/bin/forebay")
        self.prometheus = prometheus()
        self._environment = (
            os.environ
            | self.secrets
            | {
                "BASE_IMAGE": base_image(),
                "PYTHON_PACKAGES": "",
                "FOREBAY_IMAGE": self.image,
                "FOREBAY_BUILD_TARGET": "prebuilt",
                "FOREBAY_DATA": str(work / "data"),
                "FOREBAY_LEASE": "15s",
                "FOREBAY_PYTHON_ALLOW": "true",
                "S3_ENDPOINT_BIN": str(stripped(endpoint, CACHE / "s3_endpoint")),
                "PROMETHEUS_BIN": str(self.prometheus or "/bin/true"),
                "SITE_PACKAGES": str(site_packages),
            }
            | {
                name: "0"
                for name in (
                    "FOREBAY_PORT",
                    "FOREBAY_HTTP_PORT",
                    "FOREBAY_STANDBY_PORT",
                    "FOREBAY_STANDBY_HTTP_PORT",
                    "PROMETHEUS_PORT",
                )
            }
        )
        self._compose = [
            *compose(),
            "-p",
            self.project,
            "-f",
            str(REPO / "docker/compose.yaml"),
            "-f",
            str(REPO / "docker/test/compose.yaml"),
        ]
        self.trainers: list[str] = []

    def compose(self, *arguments: str) -> str:
        return run(*self._compose, *arguments, env=self._environment)

    def build(self) -> None:
        # What users start has to be sound as it stands, too.
        run(*compose(), "-f", REPO / "docker/compose.yaml", "config", "-q")
        self.compose("config", "-q")
        self.compose("build", "dispatcher")

    def up(self, workers: int = 3) -> None:
        services = ["store", "dispatcher", "standby", "worker"] + (["prometheus"] if self.prometheus else [])
        self.compose("up", "-d", "--no-build", "--scale", f"worker={workers}", *services)

    def _start(self, name: str, entrypoint: str, *command: str, mounts: dict, **values: str) -> str:
        """Starts a container of nobody's service on the stack's network."""
        container = f"{self.project}-{name}"
        values |= {"FOREBAY_SERVER": SERVERS, "PYTHONPATH": PYTHONPATH}
        mounts = mounts | {self.site_packages: "/opt/site-packages:ro", REPO / "docker/test": "/test:ro"}
        start = ["docker", "run", "-d", "--init", "--name", container, "--network", f"{self.project}_default"]
        start += [part for at, to in mounts.items() for part in ("-v", f"{at}:{to}")]
        start += [part for key, value in values.items() for part in ("-e", f"{key}={value}")]
        run(*start, "-e", "FOREBAY_TOKEN", "--entrypoint", entrypoint, self.image, *command, env=self._environment)
        return container

    def start_client(self) -> None:
        """A container to run commands in: it stays when servers are killed."""
        self._start("client", "sleep", "infinity", mounts={self.work / "data": "/data:ro"})

    def start_trainer(self, name: str, passes: int, pause: float) -> None:
        values = {"CONSUMER": name, "PASSES": str(passes), "PAUSE": str(pause)}
        mounts = {self.work / "trainers": "/told"}
        self.trainers.append(self._start(name, "python3", "/test/trainer.py", mounts=mounts, **values))

    def forebay(self, *arguments: str) -> str:
        """What a command prints, run by a client."""
        return run("docker", "exec", f"{self.project}-client", "forebay", *arguments)

    def sql(self, query: str) -> list[dict]:
        return [
            json.loads(line) for line in self.forebay("sql", query, "--format", "json").splitlines() if line.strip()
        ]

    def fetch(self, url: str) -> str:
        """Gets a page from inside the network."""
        return run("docker", "exec", f"{self.project}-client", "python3", "/test/fetch.py", url).strip()

    def containers(self, service: str) -> list[str]:
        """Names of a service's containers, whether they run or not."""
        filters = [
            "--filter",
            f"label=com.docker.compose.project={self.project}",
            "--filter",
            f"label=com.docker.compose.service={service}",
        ]
        return sorted(run("docker", "ps", "-a", *filters, "--format", "{{.Names}}").split())

    def inspect(self, container: str, template: str) -> str:
        return run("docker", "inspect", "-f", template, container).strip()

    def healthy(self, container: str) -> bool:
        return self.inspect(container, "{{.State.Health.Status}}") == "healthy"

    def worker_of(self, container: str) -> str:
        """How a worker's container is known to the others."""
        return self.inspect(container, "{{.Config.Hostname}}") + ":7070"

    def attached(self) -> set[str]:
        """Addresses of the workers that the leader hears of."""
        rows = self.sql("SELECT address FROM system.workers WHERE address IS NOT NULL")
        return {row["address"].split("://")[-1] for row in rows}

    def leader(self) -> str | None:
        """The dispatcher that leads: only that one is ready."""
        return next((name for name in ("dispatcher", "standby") if self.ready(name) == "ready"), None)

    def ready(self, name: str) -> str:
        """What a dispatcher says of itself; empty where it does not answer."""
        try:
            return self.fetch(f"http://{name}:7071/readyz")
        except RuntimeError:
            return ""

    def all(self) -> list[str]:
        mine = run("docker", "ps", "-a", "--filter", f"name={self.project}", "--format", "{{.Names}}").split()
        return sorted(set(mine))

    def logs(self, container: str) -> str:
        done = subprocess.run(["docker", "logs", container], text=True, capture_output=True, check=False)
        return done.stdout + done.stderr

    def keep_logs(self) -> pathlib.Path:
        """Writes all logs where they can be read after a failure."""
        folder = CACHE / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for container in self.all():
            (folder / f"{container.removeprefix(self.project)}.log").write_text(self.logs(container))
        return folder

    def close(self) -> None:
        """Takes down everything of this test's, whatever state it is in."""
        for container in self.all():
            subprocess.run(["docker", "rm", "-f", "-v", container], capture_output=True, check=False)
        down = [*self._compose, "down", "-v", "--remove-orphans", "-t", "1"]
        subprocess.run(down, capture_output=True, check=False, env=self._environment)
        subprocess.run(
            ["docker", "rmi", "-f", self.image, self._environment["BASE_IMAGE"]], capture_output=True, check=False
        )
        left = self.all() + run("docker", "network", "ls", "--filter", f"name={self.project}", "-q").split()
        left += run("docker", "volume", "ls", "--filter", f"name={self.project}", "-q").split()
        say(f"left behind: {left}" if left else "containers, networks, volumes and the image are removed")
