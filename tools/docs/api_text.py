"""Writes the Python reference as Markdown, for programs that read `llms.txt`.

It runs in the environment of MkDocs, where griffe is: mkdocstrings makes the HTML of the same pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe
from docstrings import as_markdown


def signature(item: griffe.Object | griffe.Alias) -> str:
    """The declaration of an item, as Python writes it."""
    if isinstance(item, griffe.Function) or (item.is_alias and item.is_function):
        return str(item.signature(name=item.name))
    if item.is_class:
        return f"class {item.name}({', '.join(str(base) for base in item.bases)})".replace("()", "")
    kind = f": {item.annotation}" if getattr(item, "annotation", None) else ""
    value = f" = {item.value}" if getattr(item, "value", None) else ""
    return f"{item.name}{kind}{value}"


def described(item: griffe.Object | griffe.Alias, level: int) -> Iterator[str]:
    """An item and its documented public members."""
    if item.docstring is None:
        return
    text = re.sub(r"\]\(\.\./\.\./", "](../../", as_markdown(item.docstring.value))
    yield f"{'#' * level} {item.name}\n\n```python\n{signature(item)}\n```\n\n{text}\n"
    if item.is_class:
        for name, member in item.members.items():
            if not name.startswith("_"):
                yield from described(member, level + 1)


def main(stage: Path, site: Path, source: Path) -> None:
    """Write a page for each page of the Python reference, and add all of them to `llms-full.txt`."""
    loaded = griffe.load("mqcore", search_paths=[source], resolve_aliases=True)
    full = [(site / "llms-full.txt").read_text(encoding="utf-8")]
    for page in sorted((stage / "reference" / "python").glob("*.md")):
        parts: list[str] = []
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("::: "):
                parts.extend(described(loaded[line.removeprefix("::: mqcore.")], 2))
            elif line:
                parts.append(f"{line}\n")
        text = "\n".join(parts)
        (site / page.relative_to(stage)).write_text(text, encoding="utf-8")
        full.append(f"\n<!-- {page.relative_to(stage).as_posix()} -->\n\n{text}")
    (site / "llms-full.txt").write_text("".join(full), encoding="utf-8")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
