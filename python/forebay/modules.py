"""What goes along with a pipeline: the Python modules that its steps name, and what those import from the same folder.

The same rules as the command line's, so that both give one pipeline one fingerprint: imports are found by reading the text, not by running it.
"""

import re
import tomllib
from pathlib import Path

from .errors import BadInput, NotFound

_NAME = re.compile(r"\w+(\.\w+)*")


def gather(folder: Path, text: str, file: str) -> dict[str, str]:
    """Module name -> text, for everything that the pipeline's Python steps need from ``folder``."""
    try:
        steps = tomllib.loads(text).get("steps", [])
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file}: {error}", "the file has to be TOML") from None
    named = [s["python"].split(":")[0] for s in steps if isinstance(s, dict) and isinstance(s.get("python"), str)]
    for module in named:
        if _NAME.fullmatch(module) and _locate(folder, module) is None:
            raise NotFound(f"{file}: no module `{module}` beside it", f"put {module.split('.')[0]}.py into its folder")
    found: dict[str, str] = {}
    todo = [name for name in named if _NAME.fullmatch(name)]
    while todo:
        module = todo.pop()
        located = None if module in found else _locate(folder, module)
        if located is None:
            continue
        path, package = located
        found[module] = path.read_text(encoding="utf-8")
        parts = module.split(".")
        todo += [".".join(parts[:n]) for n in range(1, len(parts))]
        todo += _imports(found[module], module, package)
    return found


def _locate(folder: Path, module: str) -> tuple[Path, bool] | None:
    path = folder.joinpath(*module.split("."))
    if (path / "__init__.py").is_file():
        return path / "__init__.py", True
    file = path.with_name(path.name + ".py")
    return (file, False) if file.is_file() else None


def _imports(text: str, module: str, package: bool) -> list[str]:
    names = []
    for line in _joined(text):
        line = line.strip()
        if line.startswith("import "):
            names += _items(line.removeprefix("import "))
        elif line.startswith("from ") and " import " in line:
            source, _, what = line.removeprefix("from ").partition(" import ")
            base = _absolute(source.strip(), module, package)
            if base is None:
                continue
            names += [f"{base}.{item}" if base else item for item in _items(what)]
            names += [base] if base else []
    return [name for name in names if _NAME.fullmatch(name)]


def _joined(text: str) -> list[str]:
    """Lines without comments, with those in parentheses or after a backslash put together."""
    lines: list[str] = []
    still_open = False
    for line in text.splitlines():
        line = line.split("#")[0]
        if still_open and lines:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        last = lines[-1]
        is_import = last.lstrip().startswith(("from ", "import "))
        continued = last.endswith("\\")
        if continued:
            lines[-1] = last[:-1]
        still_open = is_import and (continued or ("(" in last and ")" not in last))
    return lines


def _items(text: str) -> list[str]:
    text = text.replace("(", " ").replace(")", " ")
    return [item.split()[0] for item in re.split("[,;]", text) if item.split()]


def _absolute(source: str, module: str, package: bool) -> str | None:
    dots = len(source) - len(source.lstrip("."))
    if dots == 0:
        return source
    base = module.split(".")
    climb = dots - 1 if package else dots
    if climb > len(base):
        return None
    base = base[: len(base) - climb] + [part for part in source[dots:].split(".") if part]
    return ".".join(base)
