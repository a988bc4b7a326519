"""The pictures of the dashboard in docs/operations.md: one for each page, small enough to read the documentation."""

from __future__ import annotations

import re
import struct

import pytest

from served import ROOT

MAIN = ROOT / "dashboard" / "src" / "main.tsx"
OPERATIONS = ROOT / "docs" / "operations.md"
DIALOGS_AND_QUEUE = {"queue", "purge", "cluster"}
"""Pictures of what the navigation does not list, or only for a cluster."""
WIDTH = 1200
BYTES_MAX = 150 << 10


def listed_pages() -> set[str]:
    """Titles in the navigation, as names of pictures."""
    table = MAIN.read_text().partition("const PAGES: Page[] = [")[2].partition("];")[0]
    return {title.lower() for title in re.findall(r'title: "([^"]+)"', table)}


def pictures() -> dict[str, str]:
    """Alternative texts of the pictures in the document, by name."""
    found = re.findall(r"!\[([^\]]*)\]\(images/dashboard-([a-z-]+)\.png\)", OPERATIONS.read_text())
    return {name: " ".join(text.split()) for text, name in found}


def test_every_page_of_the_dashboard_has_a_picture() -> None:
    assert listed_pages(), "the table of pages in main.tsx has another form"
    assert pictures().keys() == listed_pages() | DIALOGS_AND_QUEUE, (
        "add the page to tools/screenshots.py, and its picture"
    )


@pytest.mark.parametrize("name", sorted(pictures()))
def test_picture_is_small_and_described(name: str) -> None:
    content = (ROOT / "docs" / "images" / f"dashboard-{name}.png").read_bytes()
    assert len(content) <= BYTES_MAX
    assert content.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">I", content[16:20]) == (WIDTH,)
    assert len(pictures()[name].split()) >= 6, "a reader who does not see the picture knows what it shows"
