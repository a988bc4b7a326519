"""Copies the pages of the repository into the staging directory of the site, and adapts their links."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# Pages at the root of the repository, and their names on the site.
PROJECT_PAGES = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "project/readme.md",
    "SECURITY.md": "project/security.md",
}
# Folders of docs/ that are not pages.
NOT_PAGES = {"snippets"}

FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<mark>```+|~~~+).*?^(?P=indent)(?P=mark)[ ]*$\n?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
DIAGRAM = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.DOTALL | re.MULTILINE)


def outside_code(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a page in order, each with whether it is prose and no fenced code."""
    last = 0
    for fence in FENCE.finditer(text):
        yield True, text[last : fence.start()]
        yield False, fence.group()
        last = fence.end()
    yield True, text[last:]


def site_path(root: Path, target: Path) -> str | None:
    """Where a file of the repository is on the site; `None` for a directory, which has no page."""
    name = target.relative_to(root).as_posix()
    if name in PROJECT_PAGES:
        return PROJECT_PAGES[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"source/{name}.txt" if target.is_file() else None


def relative(place: str, page: str) -> str:
    """The link from one page of the site to another."""
    return Path("../" * page.count("/"), place).as_posix() if "/" in page else place


def adapt_links(root: Path, source: Path, page: str, text: str, linked: set[str]) -> str:
    """The text of a page with links that are right on the site. Adds files outside docs/ that it links to."""

    def adapted(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        address, mark, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not address:
            return match.group()
        target = (source.parent / address).resolve()
        if not target.is_relative_to(root) or not target.exists():
            return match.group()  # MkDocs reports it
        if target.is_dir() and (target / "README.md").exists():
            target = target / "README.md"
        place = site_path(root, target)
        if place is None:
            return label
        if place.startswith("source/"):
            linked.add(target.relative_to(root).as_posix())
            mark = anchor = ""
        return f"{image}[{label}]({relative(place, page)}{mark}{anchor})"

    return "".join(LINK.sub(adapted, part) if prose else part for prose, part in outside_code(text))


def for_python_markdown(text: str) -> str:
    """The text with the few forms that code hosts and Python-Markdown read differently in the form of the latter."""

    def table_row(line: str) -> str:
        # Code hosts need `\|` in code inside of tables; Python-Markdown would show the backslash.
        return re.sub(r"`[^`\n]*`", lambda code: code.group().replace("\\|", "|"), line) if line[:1] == "|" else line

    def prose(part: str) -> str:
        lines = [table_row(line) for line in part.split("\n")]
        spaced: list[str] = []
        for line in lines:
            previous = spaced[-1] if spaced else ""
            begins_list = re.match(r"(?:[-*]|\d+\.) ", line)
            if begins_list and previous.strip() and not re.match(r"\s|(?:[-*]|\d+\.) ", previous):
                spaced.append("")
            spaced.append(line)
        return "\n".join(spaced)

    return "".join(prose(part) if is_prose else part for is_prose, part in outside_code(text))


def with_diagrams(source: Path, text: str) -> str:
    """The text with the committed pictures of its diagrams, one for each color scheme.

    `tools/docs/diagrams.py` writes the pictures; on a code host the browser draws the diagrams.
    """
    numbers = iter(range(1, 100))

    def pictures(match: re.Match[str]) -> str:
        name = f"{source.stem}-{next(numbers)}"
        described = re.search(r"^\s*accTitle: (.+)$", match["source"], re.MULTILINE)
        title = described[1] if described else name
        return "\n".join(
            f"![{title}](diagrams/{name}-{scheme}.svg#only-{scheme}){{ .diagram }}" for scheme in ("light", "dark")
        )

    return DIAGRAM.sub(pictures, text)


def copy_pages(root: Path, stage: Path) -> None:
    """Write the handwritten pages, pictures and linked files of the repository into the staging directory."""
    linked: set[str] = set()
    sources = {path: path.relative_to(root / "docs").as_posix() for path in sorted((root / "docs").rglob("*"))}
    sources |= {root / name: page for name, page in PROJECT_PAGES.items()}
    for source, page in sources.items():
        if source.is_dir() or NOT_PAGES & set(Path(page).parts):
            continue
        target = stage / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copyfile(source, target)
            continue
        text = adapt_links(root, source, page, source.read_text(encoding="utf-8"), linked)
        target.write_text(for_python_markdown(with_diagrams(source, text)), encoding="utf-8")
    for name in sorted(linked):
        target = stage / "source" / f"{name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)


def configuration(root: Path) -> str:
    """The text of mkdocs.yml, with a line in the navigation for each decision."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    mark = "      - decisions/README.md\n"
    pages = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    return text.replace(mark, mark + "".join(f"      - decisions/{page.name}\n" for page in pages))


def navigation(root: Path) -> list[tuple[str, str, str]]:
    """Section, title and page of each line of the navigation in mkdocs.yml."""
    lines = configuration(root).partition("\nnav:\n")[2].splitlines()
    found, section = [], ""
    for line in lines:
        if heading := re.fullmatch(r"  - ([^:]+):", line):
            section = heading[1]
        elif entry := re.fullmatch(r" +- (?:([^:]+): )?(\S+\.md)", line):
            found.append((section, entry[1] or "", entry[2]))
    return found


def check_navigation(root: Path, stage: Path) -> None:
    """Fail if a page is missing in the navigation, or in the staging directory."""
    named = {page for _, _, page in navigation(root)}
    there = {path.relative_to(stage).as_posix() for path in stage.rglob("*.md")}
    if named != there:
        missing = ", ".join(sorted(there - named)) or "none"
        absent = ", ".join(sorted(named - there)) or "none"
        raise SystemExit(f"mkdocs.yml: pages without an entry in nav: {missing}; entries without a page: {absent}")
