"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable


def cell(text: str) -> str:
    """Text in one line that cannot end its cell."""
    return outside_code(" ".join(text.split()).replace("|", "&#124;"))


def outside_code(text: str) -> str:
    """Plain text of a docstring or of help in Markdown: brackets outside of code and links stay plain."""
    return re.sub(r"(`[^`]*`)|\[([^\]]*)\](?!\()", lambda found: found[1] or f"&#91;{found[2]}&#93;", text)


def code(text: str) -> str:
    """Code in a cell. HTML, because a bar in Markdown's code would end the cell."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<code>{cell(escaped)}</code>"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, with a blank line after it."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
