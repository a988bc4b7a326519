"""Writes `llms.txt`, an index of the site for language models, and `llms-full.txt`, all of its pages in one file."""

from __future__ import annotations

import html
import re
from pathlib import Path

import staging

SUMMARY = "A message broker with a Rust core and typed Python hooks that decide how each message is delivered."
# Sections that language models need only on request: they describe why and how mqcore was built.
OPTIONAL = {"Decisions", "Project"}


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph of a page."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph[:1].isalpha() or paragraph[:1] in "`*[":
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0]
    return ""


def title(text: str, page: str) -> str:
    """The heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else page


def plain(text: str) -> str:
    """A page without the HTML that tables of the reference need, and without pictures."""
    text = re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)
    return html.unescape(re.sub(r"</?code>", "`", text))


def write(root: Path, stage: Path) -> None:
    """Write both files into the staging directory."""
    index = ["# mqcore", "", f"> {SUMMARY}", ""]
    full = [f"# mqcore\n\n> {SUMMARY}\n"]
    sections: dict[str, list[str]] = {}
    for section, _, page in staging.navigation(root):
        text = (stage / page).read_text(encoding="utf-8")
        entry = f"- [{title(text, page)}]({page}): {first_sentence(text)}".removesuffix(": ")
        sections.setdefault("Optional" if section in OPTIONAL else section or "Start", []).append(entry)
        # The Python reference is added when griffe has read it: api_text.py.
        if section not in OPTIONAL and not page.startswith("reference/python/"):
            full.append(f"\n<!-- {page} -->\n\n{plain(text)}")
    for section in sorted(sections, key=lambda name: name == "Optional"):
        index += [f"## {section}", "", *sections[section], ""]
    (stage / "llms.txt").write_text("\n".join(index), encoding="utf-8")
    (stage / "llms-full.txt").write_text("".join(full), encoding="utf-8")
