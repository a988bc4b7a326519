"""Writes the programs of docs/snippets into the pages that show them: `make generate`.

A block such as ```` ```python title="shop.py" ```` of docs/tutorial/embed.md shows the file
docs/snippets/tutorial/embed/shop.py.
Tests run these files as the pages say, and type checkers read them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BLOCK = re.compile(r'^(```(?:python|toml) title="([^"]+)"\n)(.*?)(^```$)', re.DOTALL | re.MULTILINE)


def file_of(page: Path, title: str) -> Path:
    """The file that a block of a page shows."""
    return DOCS / "snippets" / page.relative_to(DOCS).with_suffix("") / title


def written(page: Path) -> str:
    """The text of a page with the present contents of its files."""

    def block(found: re.Match[str]) -> str:
        opening, title, _, closing = found.groups()
        return opening + file_of(page, title).read_text(encoding="utf-8") + closing

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def stale() -> list[Path]:
    """Pages that show something else than their files."""
    return [page for page in sorted(DOCS.rglob("*.md")) if page.read_text(encoding="utf-8") != written(page)]


def main() -> int:
    """Write the pages that are stale; with `--check`, only name them."""
    found = stale()
    for page in found:
        print(page.relative_to(DOCS.parent))
        if "--check" not in sys.argv[1:]:
            page.write_text(written(page), encoding="utf-8")
    return bool(found) and "--check" in sys.argv[1:]


if __name__ == "__main__":
    sys.exit(main())
