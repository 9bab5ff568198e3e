"""The compose stack under faults: `make docker-test`.

Builds the project's image without a registry, starts docker/compose.yaml's servers on a private network, materializes and trains, and meanwhile cuts a
worker off, kills one, kills the leader, and restarts every server in turn. In the end the trainers' own accounts have to agree with the ledger:
nothing delivered twice, and nothing missing that no recorded fault explains.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

from images import REPO, docker_works, run, say
from stack import Stack, wait

FILES, ROWS, PASSES, TRAINERS = 24, 600, 3, 3
BATCH = 12
STEP = """
import time


def nap(batch):
    time.sleep(0.3)
    return batch.select(["n", "h"])
"""
PIPELINE = """
name = "numbers"
[source]
uri = "raw/*.csv"
format = "csv"
[source.options]
task_size = "1KB"
[[steps]]
name = "hash"
sql = "SELECT n, encode(sha256(CAST(n AS VARCHAR)), 'hex') AS h FROM input"
[[steps]]
name = "nap"
python = "nap:nap"
[epochs]
count = 1
seed = 1
"""


def write_data(work: pathlib.Path) -> None:
    raw = work / "data/raw"
    raw.mkdir(parents=True)
    for file in range(FILES):
        rows = range(file * ROWS, (file + 1) * ROWS)
        (raw / f"f{file:02}.csv").write_text("n\n" + "".join(f"{n}\n" for n in rows))
    (work / "data/p.toml").write_text(PIPELINE)
    (work / "data/nap.py").write_text(STEP)
    (work / "trainers").mkdir()
    # Containers run as a user of their own.
    for path in [work, *work.rglob("*")]:
        path.chmod(0o777 if path.name == "trainers" else 0o755 if path.is_dir() else 0o644)


def taken(work: pathlib.Path) -> list[dict]:
    """What all trainers said so far."""
    lines = [
        line
        for file in sorted((work / "trainers").glob("*.jsonl"))
        for line in file.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def progress(stack: Stack, batches: int) -> None:
    """Waits until the trainers took so many more."""
    before = len(taken(stack.work))
    wait(f"{batches} more batches", 90, lambda: len(taken(stack.work)) >= before + batches)


def start(stack: Stack) -> None:
    stack.up()
    stack.start_client()
    servers = [c for service in ("store", "dispatcher", "standby", "worker") for c in stack.containers(service)]
    assert len(servers) == 6, servers
    wait("every container is healthy", 60, lambda: all(stack.healthy(c) for c in servers))
    wait("three workers register", 60, lambda: len(stack.attached()) == 3)
    for container in servers:
        if container not in stack.containers("store"):
            assert run("docker", "exec", container, "id", "-u").strip() == "10001", f"{container} runs as root"
        assert stack.inspect(container, "{{.HostConfig.RestartPolicy.Name}}") == "unless-stopped", container
    leads = wait("somebody leads", 60, stack.leader)
    say(f"{len(servers)} servers are healthy, none of Forebay's as root; {leads} leads")


def materialize(stack: Stack) -> None:
    stack.forebay("materialize", "/data/p.toml")
    rows = stack.sql("SELECT count(*) AS n, count(DISTINCT _id) AS ids, count(DISTINCT n) AS ns FROM numbers")[0]
    assert rows == {"n": FILES * ROWS, "ids": FILES * ROWS, "ns": FILES * ROWS}, rows
    # Which worker made a task is forgotten with the published run: their own counters tell.
    made = {}
    for container in stack.containers("worker"):
        page = stack.fetch(f"http://{stack.inspect(container, '{{.Config.Hostname}}')}:7071/metrics")
        made[container] = int(
            next(line for line in page.splitlines() if line.startswith("forebay_tasks_finished_total")).split()[1]
        )
    assert all(made.values()), f"every worker works: {made}"
    say(f"materialized {rows['n']} rows in {sum(made.values())} tasks: {sorted(made.values())} by worker")


def partition(stack: Stack) -> None:
    """A worker that is cut off is given up, and comes back."""
    cut = serving(stack)
    network, name = f"{stack.project}_default", stack.worker_of(cut)
    run("docker", "network", "disconnect", network, cut)
    say(f"cut off {cut}")
    wait("the cut-off worker is given up", 60, lambda: name not in stack.attached())
    progress(stack, 30)
    run("docker", "network", "connect", "--alias", name.split(":")[0], "--alias", "worker", network, cut)
    wait("the worker is back", 60, lambda: name in stack.attached())
    say("it was given up, the others went on, and it is back")


def serving(stack: Stack) -> str:
    """A worker that has streams open."""

    def found():
        busy = {
            row["address"].split("://")[-1] for row in stack.sql("SELECT address FROM system.workers WHERE streams > 0")
        }
        return next((c for c in stack.containers("worker") if stack.worker_of(c) in busy), None)

    return wait("a worker serves", 60, found)


def kill(stack: Stack) -> None:
    """One worker is killed by its host and started by somebody; the process of another crashes and Docker starts it."""
    killed = serving(stack)
    run("docker", "kill", killed)
    say(f"killed {killed} in the middle of a pass")
    progress(stack, 30)
    run("docker", "start", killed)
    wait("the killed worker is back", 60, lambda: stack.worker_of(killed) in stack.attached())
    crashing = serving(stack)
    crash = "import os, signal, pathlib; [os.kill(int(p.name), 9) for p in pathlib.Path('/proc').iterdir() if p.name.isdigit() and p.name != '1' and (p / 'comm').read_text().strip() == 'forebay']"
    run("docker", "exec", "--user", "0", crashing, "python3", "-c", crash)
    wait(
        "its restart policy starts the crashed worker",
        60,
        lambda: int(stack.inspect(crashing, "{{.RestartCount}}")) >= 1,
    )
    wait("the crashed worker is back", 60, lambda: stack.worker_of(crashing) in stack.attached())
    say("both are back, the crashed one by its restart policy")


def take_over(stack: Stack) -> None:
    leads = wait("somebody leads", 60, stack.leader)
    other = {"dispatcher": "standby", "standby": "dispatcher"}[leads]
    container = stack.containers(leads)[0]
    run("docker", "kill", container)
    began = time.monotonic()
    wait("the standby leads", 60, lambda: stack.leader() == other)
    say(f"killed the leader; the standby led {time.monotonic() - began:.1f} s later")
    progress(stack, 20)
    run("docker", "start", container)
    wait("the old leader stands by", 60, lambda: "standby" in stack.ready(leads))
    wait("all workers found the new leader", 60, lambda: len(stack.attached()) == 3)


def rolling_restart(stack: Stack) -> None:
    began = time.monotonic()
    for container in [*stack.containers("worker"), *stack.containers("standby"), *stack.containers("dispatcher")]:
        run("docker", "restart", "-t", "10", container)
        wait(f"{container} is healthy again", 60, lambda c=container: stack.healthy(c))
        wait("somebody leads", 60, stack.leader)
        wait("three workers are there", 60, lambda: len(stack.attached()) == 3)
        progress(stack, 10)
    say(f"restarted every server under load in {time.monotonic() - began:.0f} s")


def account(stack: Stack) -> None:
    """The trainers' accounts against the ledger's."""
    for trainer in stack.trainers:
        wait(f"{trainer} ends", 120, lambda t=trainer: stack.inspect(t, "{{.State.Status}}") == "exited")
        assert stack.inspect(trainer, "{{.State.ExitCode}}") == "0", f"{trainer} failed:\n{stack.logs(trainer)[-3000:]}"
    lines = taken(stack.work)
    assert sum("done" in line for line in lines) == TRAINERS
    batches = [line for line in lines if "batch" in line]
    got = {(b["pass"], b["batch"]): b["n"] for b in batches}
    duplicates = len(batches) - len(got)
    ids = [(b["pass"], n) for b in batches for n in b["n"]]
    assert duplicates == 0 and len(ids) == len(set(ids)), f"{duplicates} batches came twice"

    def states() -> dict:
        return {
            (v["pass"], v["batch"]): v["state"]
            for v in stack.sql("SELECT pass, batch, state FROM system.visits WHERE job = 'train'")
        }

    expected = {(p, b) for p in range(PASSES) for b in range(FILES * ROWS // BATCH)}

    def settled():
        found = states()
        return found if set(found) == expected and set(found.values()) <= {"acknowledged", "lost"} else None

    visits = wait("the ledger knows the end of every batch", 90, settled)
    lost = {
        (v["pass"], v["batch"]): v["reason"]
        for v in stack.sql("SELECT pass, batch, reason FROM system.losses WHERE job = 'train'")
    }
    assert set(lost) == {batch for batch, state in visits.items() if state == "lost"}
    unexplained = expected - set(got) - set(lost)
    assert not unexplained, f"missing without an explanation: {sorted(unexplained)[:20]}"
    unseen = [batch for batch, state in visits.items() if state == "acknowledged" and batch not in got]
    assert not unseen, f"acknowledged, but no trainer took them: {unseen[:20]}"
    missing = expected - set(got)
    assert all(lost[batch] for batch in lost), "every loss has a reason"
    # Whole passes, row by row: what came, and what the lost batches held.
    rows = {p: sum(len(n) for (q, _), n in got.items() if q == p) for p in range(PASSES)}
    assert all(count + BATCH * sum(q == p for q, _ in missing) == FILES * ROWS for p, count in rows.items()), rows
    say(
        f"{len(expected)} batches: {len(got)} taken, duplicates 0, missing {len(missing)} and all of them in system.losses, unexplained missing 0"
    )
    say(
        f"of {len(lost)} lost ones {len(set(lost) & set(got))} had arrived unacknowledged; reasons: {sorted(set(lost.values()))}"
    )


def dashboard(stack: Stack) -> None:
    """Every expression of the dashboard has an answer here."""
    if not stack.prometheus:
        return say("the dashboard's expressions are not checked: no Prometheus")
    import urllib.parse

    def ask(expression: str) -> list:
        query = urllib.parse.urlencode({"query": expression.replace("$__rate_interval", "1m")})
        return json.loads(stack.fetch(f"http://prometheus:9090/api/v1/query?{query}"))["data"]["result"]

    panels = json.loads((REPO / "docker/grafana/dashboards/forebay.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        wait(f"an answer to {expression}", 30, lambda e=expression: ask(e))
    up = wait(
        "all targets are up",
        30,
        lambda: [r for r in ask("sum(up)") if r["value"][1] == str(2 + len(stack.containers("worker")))],
    )
    leaders = ask('sum(forebay_leading{job="dispatcher"})')[0]["value"][1]
    assert leaders == "1", leaders
    say(f"Prometheus scrapes {up[0]['value'][1]} processes and answers the dashboard's {len(expressions)} expressions")


def no_secrets(stack: Stack) -> None:
    size = 0
    for container in stack.all():
        logs = stack.logs(container)
        size += len(logs)
        for name, secret in stack.secrets.items():
            assert secret not in logs, f"{container} logged {name}"
    say(f"no secret in {size} bytes of `docker logs`")


def scale(stack: Stack) -> None:
    before = {c: stack.inspect(c, "{{.Id}}") for c in stack.containers("worker")}
    stack.up(workers=4)
    wait("a fourth worker registers", 60, lambda: len(stack.attached()) == 4)
    kept = {c: stack.inspect(c, "{{.Id}}") for c in before}
    assert kept == before, "scaling leaves the others alone"
    say("--scale worker=4 adds one and leaves the others alone")


def scenario(stack: Stack) -> None:
    stack.build()
    start(stack)
    materialize(stack)
    for n in range(TRAINERS):
        stack.start_trainer(f"trainer-{n}", PASSES, 0.1)
    wait("every trainer trains", 60, lambda: len(list((stack.work / "trainers").glob("*.jsonl"))) == TRAINERS)
    progress(stack, 30)
    partition(stack)
    kill(stack)
    take_over(stack)
    rolling_restart(stack)
    (stack.work / "trainers/hurry").touch()
    account(stack)
    scale(stack)
    dashboard(stack)
    no_secrets(stack)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True, help="the forebay binary")
    parser.add_argument("--endpoint", type=pathlib.Path, required=True, help="the tests' S3 endpoint")
    parser.add_argument(
        "--site-packages", type=pathlib.Path, required=True, help="pyarrow and numpy for the base's Python"
    )
    args = parser.parse_args()
    if not docker_works():
        return say("left out: Docker does not run here")
    say(
        "without a registry: no SeaweedFS (the tests' S3 endpoint instead), no Grafana, no image from source (the target `prebuilt`)"
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-docker-") as folder:
        work = pathlib.Path(folder)
        write_data(work)
        stack = Stack(args.binary, args.endpoint, args.site_packages, work)
        try:
            scenario(stack)
        except BaseException:
            say(f"failed after {time.monotonic() - began:.0f} s; all logs are in {stack.keep_logs()}")
            raise
        finally:
            stack.close()
    say(f"passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
