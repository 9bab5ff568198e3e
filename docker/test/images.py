"""Images without a registry: a base of Debian packages, and what docker/compose.yaml puts on it. Everything that costs time is kept in a cache."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("CACHE", pathlib.Path.home() / ".cache/forebay")) / "docker"
SUITE, PACKAGES = "bookworm", "python3,ca-certificates"
PROMETHEUS = "prometheus"


def say(text: str) -> None:
    print(f"docker-test: {text}", flush=True)


def run(*command: str, **more) -> str:
    """Runs a command that has to succeed; gives its stdout."""
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, check=False, **more)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return done.stdout


def docker_works() -> bool:
    return (
        bool(shutil.which("docker"))
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    )


def compose() -> list[str]:
    """`docker compose` where there is one, else `docker-compose`."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise RuntimeError("neither `docker compose` nor `docker-compose` is installed")


def apt(*arguments: str, **more) -> None:
    root = [] if os.geteuid() == 0 else ["sudo"]
    try:
        run(*root, "apt-get", *arguments, **more)
    except RuntimeError:
        run(*root, "apt-get", "update", "-qq")
        run(*root, "apt-get", *arguments, **more)


def base_image() -> str:
    """A minimal Debian with Python, by debootstrap."""
    recipe = hashlib.sha256(f"{SUITE} {PACKAGES} 1".encode()).hexdigest()[:12]
    tag, kept = f"forebay-test-base:{recipe}", CACHE / f"base-{recipe}.tar"
    if not kept.exists():
        say(f"making the base image of Debian {SUITE}, once")
        if not shutil.which("debootstrap"):
            apt("install", "-y", "-qq", "debootstrap")
        root = CACHE / f"rootfs-{os.getpid()}"
        try:
            mirror = "http://deb.debian.org/debian"
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, mirror)
            leave = [
                "var/cache/apt/archives/*",
                "var/lib/apt/lists/*",
                "usr/share/doc/*",
                "usr/share/man/*",
                "usr/share/locale/*",
            ]
            part = kept.with_suffix(f".{os.getpid()}")
            run("tar", "-C", root, *[f"--exclude=./{name}" for name in leave], "-cf", part, ".")
            part.rename(kept)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    if not run("docker", "images", "-q", tag).strip():
        run("docker", "import", kept, tag)
    return tag


def prometheus() -> pathlib.Path | None:
    """The server of Debian's package, which needs nothing but the C library; None where it can't be had."""
    binary = CACHE / "prometheus"
    if not binary.exists():
        folder = CACHE / f"deb-{os.getpid()}"
        folder.mkdir(parents=True)
        try:
            run("apt-get", "download", PROMETHEUS, cwd=folder)
            run("dpkg", "-x", next(folder.glob("*.deb")), folder / "x")
            shutil.copy(folder / "x/usr/bin/prometheus", binary)
        except (RuntimeError, StopIteration) as error:
            say(f"without Prometheus, its package can't be had: {error}")
            return None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return binary


def stripped(binary: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A copy without debugging information: what goes into an image should be small."""
    if not binary.exists():
        sys.exit(f"docker-test: {binary} is missing: run `make docker-test`")
    to.parent.mkdir(parents=True, exist_ok=True)
    run("strip", "-o", to, binary)
    to.chmod(0o755)
    return to
