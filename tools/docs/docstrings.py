"""An extension of griffe that writes docstrings in the Markdown of the site.

Docstrings are plain text with the marks of doctest and reStructuredText that editors and `help()` show well: examples
that begin with `>>>`, and literal blocks after `::`. Both become fenced code. Links to pages are relative to docs/.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    text = re.sub(r"^\.\. code-block:: \w+\n", "::\n", text, flags=re.MULTILINE)
    lines: list[str] = []
    fenced: str | None = None
    literal_next = False
    for line in text.split("\n"):
        if fenced == "pycon" and not line.strip():
            lines.append("```")
            fenced = None
        elif fenced == "text" and line.strip() and not line.startswith("    "):
            lines += ["```", ""]
            fenced = None
        elif fenced is None and line.startswith(">>> "):
            lines.append("```pycon")
            fenced = "pycon"
        elif fenced is None and literal_next and line.startswith("    "):
            lines.append(
                "```python" if re.match(r"    (\w+ = |@|class |def |async |import |from |with )", line) else "```text"
            )
            fenced, literal_next = "text", False
        if fenced == "text":
            line = line.removeprefix("    ")
        elif fenced is None and line.rstrip().endswith("::"):
            literal_next = True
            line = line.rstrip()[:-1] if line.strip() != "::" else ""
        elif line.strip():
            literal_next = False
        lines.append(line)
    if fenced:
        lines.append("```")
    # Pages of the Python reference are two folders below docs/.
    return re.sub(r"\]\((?=[a-z]+\.md)", "](../../", "\n".join(lines))


class Docstrings(griffe.Extension):
    """Converts each docstring when griffe has read its object."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert the docstring of `obj`."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
