"""Generate the blocking clients from the asyncio ones: `make generate`, or `--check` to compare only.

Each generated file is its source with the words of asyncio replaced, formatted by ruff. Code that differs in more
than words is in `base.py` and `joining.py` of `mqcore/client` and `mqcore/sync`. Lines of the source between
`# asyncio only` and `# end asyncio only` are left out; behind `# blocking:` stands what replaces them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "mqcore"

WORDS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAwaitable\[bool\]", "bool"),
    (r"\bwait(_batch)?_async\b", r"wait\1_blocking"),
    (r"\bAsync(Client|ThrottrClient)\b", r"Blocking\1"),
)
CLIENT_WORDS = (
    (
        r"\bmqcore\.client\.(base|client|control|joining|messages|publishing|queue|streams|topic)\b",
        r"mqcore.sync.\1",
    ),
    (r"\bmqcore\.connect\b", "mqcore.sync.connect"),
)
THROTTR_WORDS = (
    (r"(?<![.\w`])(Client|Pipeline)\b", r"Sync\1"),
    (r"`(Client|Pipeline)`", r"`Sync\1`"),
    (r"from mqcore\.throttr import Client", "from mqcore.throttr import SyncClient"),
)
ASYNCIO_ONLY = re.compile(r"^ *# asyncio only\n.*?^ *# end asyncio only\n\n?", re.DOTALL | re.MULTILINE)
BLOCKING_ONLY = re.compile(r"^( *)# blocking: ", re.MULTILINE)
LEFT = re.compile(r".*(\basync|\bawait|asyncio|Async|Awaitable).*")
NOTICE = "# Generated from {source} by tools/generate_sync.py: change that, then run `make generate`.\n"

Replacements = tuple[tuple[str, str], ...]


def ruff(text: str, path: Path) -> str:
    """Sort imports, drop the unused ones, and format."""
    program = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for command in (["check", "--quiet", "--select", "I,F401", "--fix"], ["format", "--quiet"]):
        arguments = [program, *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def blocking(text: str, words: Replacements) -> str:
    """Replace the words of asyncio, and leave out what only asyncio has."""
    text = BLOCKING_ONLY.sub(r"\1", ASYNCIO_ONLY.sub("", text))
    for pattern, replacement in (*WORDS, *words):
        text = re.sub(pattern, replacement, text)
    return text


def module(source: Path, target: Path, words: Replacements) -> str:
    """Return what `target` must be. Raises `ValueError` if something of asyncio is left."""
    name = source.relative_to(ROOT).as_posix()
    text = NOTICE.format(source=name) + ruff(blocking(source.read_text(), words), target)
    if (left := LEFT.search(text)) is not None:
        raise ValueError(f"{name}: no blocking twin of {left.group().strip()!r}; mark it `# asyncio only`")
    return text


def stub(path: Path) -> str:
    """Return the stub with the blocking classes that belong to its asyncio ones."""
    text = path.read_text()
    for name in ("Client", "ThrottrClient"):
        (twin,) = re.findall(rf"^@final\nclass Async{name}:\n(?:(?:    .*)?\n)+", text, re.MULTILINE)
        twin = twin.replace(f"Async{name}", f"Blocking{name}").replace("awaitables of their results", "their results")
        twin = re.sub(r"-> Awaitable\[(.*)\](?: \| None)?: \.\.\.", r"-> \1: ...", twin).rstrip() + "\n"
        begin, end = f"# generated: Blocking{name}\n", f"# end generated: Blocking{name}\n"
        head, rest = text.split(begin)
        text = head + begin + "\n" + twin + "\n" + end + rest.split(end)[1]
    return ruff(text, path)


def targets() -> dict[Path, Callable[[], str]]:
    """Every generated file, and what makes it."""
    made: dict[Path, Callable[[], str]] = {}

    def twin(source: Path, target: Path, words: Replacements) -> None:
        made[target] = lambda: module(source, target, words)

    for name in ("messages", "streams", "control", "publishing", "queue", "topic", "client"):
        twin(PACKAGE / "client" / f"{name}.py", PACKAGE / "sync" / f"{name}.py", CLIENT_WORDS)
    twin(PACKAGE / "throttr" / "client.py", PACKAGE / "throttr" / "sync_client.py", THROTTR_WORDS)
    core = PACKAGE / "_core.pyi"
    made[core] = lambda: stub(core)
    return made


def stale() -> list[Path]:
    """Generated files that are not what their sources make."""
    return [path for path, make in targets().items() if not path.exists() or path.read_text() != make()]


def main() -> int:
    """Write the files that are stale; with `--check`, only name them."""
    found = stale()
    for path in found:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            path.write_text(targets()[path]())
    return bool(found) and "--check" in sys.argv[1:]


if __name__ == "__main__":
    sys.exit(main())
