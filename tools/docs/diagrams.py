"""Draws the Mermaid diagrams of the pages as SVG, for the site: `make diagrams`.

Code hosts draw them in the browser. The site has committed pictures instead, one for each color scheme, so that it
loads no program of three megabytes. Each picture names the hash of its source; `--check` and a test compare it.

It needs npm, the package playwright and Chromium.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from staging import DIAGRAM

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "11.17.2"
INTEGRITY = "sha512-V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
SCHEMES = {"light": "neutral", "dark": "dark"}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Text in SVG instead of HTML: pictures in a page do not load the style sheets that HTML would need.
SETTINGS = {
    "startOnLoad": False,
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False, "useMaxWidth": False},
    "sequence": {"useMaxWidth": False},
    "state": {"useMaxWidth": False},
    "fontFamily": "system-ui, sans-serif",
    "themeVariables": {"noteBkgColor": "#fff3bf", "noteTextColor": "#333333", "noteBorderColor": "#c9a100"},
    "deterministicIds": True,
}


@dataclass(frozen=True)
class Diagram:
    """A diagram of a page, in one color scheme."""

    page: Path
    number: int
    source: str
    scheme: str

    @property
    def name(self) -> str:
        """The name of the page and the number on it; also the id of the elements in the picture."""
        return f"{self.page.stem}-{self.number}"

    @property
    def path(self) -> Path:
        """The picture."""
        return self.page.parent / "diagrams" / f"{self.name}-{self.scheme}.svg"

    @property
    def mark(self) -> str:
        """The first line of the picture."""
        digest = hashlib.sha256(self.source.encode()).hexdigest()[:16]
        return f"<!-- drawn by tools/docs/diagrams.py from {self.page.name}, {digest} -->\n"


def diagrams() -> Iterator[Diagram]:
    """All diagrams of all pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, found in enumerate(DIAGRAM.finditer(page.read_text(encoding="utf-8")), 1):
            for scheme in SCHEMES:
                yield Diagram(page, number, found["source"], scheme)


def stale() -> list[Path]:
    """Pictures that are missing, do not belong to a diagram, or show an older source."""
    wanted = {diagram.path: diagram.mark for diagram in diagrams()}
    there = set((ROOT / "docs").rglob("diagrams/*.svg"))
    old = [
        path
        for path, mark in wanted.items()
        if not path.exists() or not path.read_text(encoding="utf-8").startswith(mark)
    ]
    return sorted({*old, *(there - wanted.keys())})


def mermaid() -> str:
    """The source of Mermaid, from npm."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["npm", "pack", "--silent", f"mermaid@{VERSION}"]
        name = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.split()[-1]
        data = (Path(directory) / name).read_bytes()
        found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        if found != INTEGRITY:
            raise SystemExit(f"mermaid {VERSION}: expected {INTEGRITY}, npm has {found}")
        with tarfile.open(Path(directory) / name) as archive:
            member = archive.extractfile("package/dist/mermaid.min.js")
            assert member is not None
            return member.read().decode()


def rounded(svg: str) -> str:
    """The picture with one decimal place in coordinates, which halves its size."""

    def shorter(path: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number.group()):.1f}", path.group())

    return re.sub(r' data-points="[^"]*"', "", re.sub(r' (?:d|transform|points)="[^"]*"', shorter, svg))


def draw(wanted: list[Diagram]) -> None:
    """Draw diagrams in Chromium."""
    from playwright.sync_api import sync_playwright

    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit(f"no browser is installed: none of {', '.join(PROGRAMS)} is on the path")
    script = mermaid()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for diagram in wanted:
            page = browser.new_page()
            page.set_content("<!doctype html><body></body>")
            page.add_script_tag(content=script)
            settings = {**SETTINGS, "theme": SCHEMES[diagram.scheme]}
            svg = page.evaluate(
                "async ([settings, name, source]) => {"
                " mermaid.initialize(settings); return (await mermaid.render(name, source)).svg; }",
                [settings, diagram.name, diagram.source],
            )
            diagram.path.parent.mkdir(exist_ok=True)
            diagram.path.write_text(diagram.mark + rounded(svg) + "\n", encoding="utf-8")
            print(diagram.path.relative_to(ROOT))
            page.close()
        browser.close()


def main() -> int:
    """Draw all diagrams that changed."""
    parser = argparse.ArgumentParser(description="Draw the diagrams of the documentation.")
    parser.add_argument("--check", action="store_true", help="Only name pictures that are stale.")
    parser.add_argument("--all", action="store_true", help="Draw all of them.")
    arguments = parser.parse_args()
    found = stale()
    if arguments.check:
        print("\n".join(str(path.relative_to(ROOT)) for path in found))
        return bool(found)
    wanted = [diagram for diagram in diagrams() if arguments.all or diagram.path in found]
    for path in set(found) - {diagram.path for diagram in diagrams()}:
        path.unlink()
    if wanted:
        draw(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
