"""The documentation site: its navigation, its generated reference, and a strict build."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import mqcore
from browser import MISSING, browsing, find_browser
from mqcore import errors
from mqcore.cli.program import root
from served import ROOT, wait_until

TOOLS = ROOT / "tools" / "docs"


@pytest.fixture(scope="module")
def builder() -> Iterator[ModuleType]:
    """The module that builds the site; the modules beside it have short names, which tests of others may use."""
    before = set(sys.modules)
    sys.path.insert(0, str(TOOLS))
    try:
        import build  # type: ignore[import-not-found]

        yield build
    finally:
        sys.path.remove(str(TOOLS))
        for name in set(sys.modules) - before:
            if str(TOOLS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.fixture(scope="module")
def staged(builder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site in Markdown, with the generated reference."""
    directory = tmp_path_factory.mktemp("site") / "pages"
    builder.stage(directory)
    return directory


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name)
        if not command.hidden:
            yield inner.command_path
            if isinstance(command, click.Group):
                yield from commands(command, inner)


def test_reference_describes_every_command(staged: Path) -> None:
    program = root()
    text = (staged / "reference" / "cli.md").read_text()
    named = list(commands(program, click.Context(program, info_name="mqcore")))
    assert len(named) > 80
    assert not [name for name in named if not re.search(rf"^##+ {re.escape(name)}$", text, re.MULTILINE)]


def test_reference_describes_every_error_with_its_exit_code(staged: Path) -> None:
    text = (staged / "reference" / "errors.md").read_text()
    assert not [name for name in errors.__all__ if f"\n## {name}\n" not in text]
    assert re.search(r"^\| \[NotFound\]\(#notfound\) \| .* \| 3 \| 404: ", text, re.MULTILINE)


def test_reference_lists_every_option_of_a_broker_with_its_default(staged: Path) -> None:
    text = (staged / "reference" / "configuration.md").read_text()
    for name in ("listen", "data_dir", "acknowledge_timeout", "dead_letter", "queue_limit"):
        assert f"| <code>{name}</code> |" in text, name


def test_reference_lists_the_metrics_that_a_broker_exports(staged: Path) -> None:
    text = (staged / "reference" / "metrics.md").read_text()
    assert "| <code>mqcore_messages_total</code> | counter | <code>outcome</code>" in text
    assert text.count("\n| <code>mqcore_") > 90


def test_reference_lists_every_path_of_the_admin_side(staged: Path) -> None:
    import json

    text = (staged / "reference" / "http.md").read_text()
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    for path, methods in paths.items():
        for method in methods:
            assert f"\n## {method.upper()} {path}\n" in text


def test_reference_lists_every_event(staged: Path) -> None:
    text = (staged / "reference" / "events.md").read_text()
    handlers = {name for name in vars(mqcore.EventHandler) if not name.startswith("_")} - {"timeout"}
    assert handlers
    assert not [name for name in handlers if f"<code>{name}(" not in text]
    for kind in ("ClientConnected", "MessageProduced", "put-back", "dead-lettered"):
        assert f"| <code>{kind}</code> |" in text


def test_python_reference_names_everything_that_is_public(staged: Path) -> None:
    text = "".join(page.read_text() for page in (staged / "reference" / "python").glob("*.md"))
    assert not [name for name in mqcore.__all__ if name != "__version__" and f"\n::: mqcore.{name}\n" not in text]
    for module in ("sync", "app", "jobs", "testing", "ratelimit", "admin", "throttr"):
        names = getattr(mqcore, module).__all__
        assert not [name for name in names if f"\n::: mqcore.{module}.{name}\n" not in text], module


def test_index_for_language_models_links_to_every_page(staged: Path, builder: Any) -> None:
    index = (staged / "llms.txt").read_text()
    assert index.startswith("# mqcore\n\n> ")
    linked = re.findall(r"^- \[.+\]\((.+\.md)\)", index, re.MULTILINE)
    pages = {path.relative_to(staged).as_posix() for path in staged.rglob("*.md")}
    assert set(linked) == pages
    assert len(linked) == len(pages)
    full = (staged / "llms-full.txt").read_text()
    assert "\n# Delivery\n" in full
    assert "\n## mqcore serve\n" in full
    assert "<code>" not in full


def test_a_page_without_an_entry_in_the_navigation_is_an_error(builder: Any, tmp_path: Path) -> None:
    (tmp_path / "lost.md").write_text("# Lost\n")
    with pytest.raises(SystemExit, match=r"without an entry in nav: lost\.md"):
        sys.modules["staging"].check_navigation(ROOT, tmp_path)


def test_pictures_of_diagrams_show_their_present_source(builder: Any) -> None:
    import diagrams  # type: ignore[import-not-found]

    assert len(list(diagrams.diagrams())) >= 14
    assert diagrams.stale() == [], "run make diagrams"
    without_title = [d.name for d in diagrams.diagrams() if "accTitle:" not in d.source]
    assert not without_title, "screen readers read the line accTitle"


class Assets(HTMLParser):
    """Addresses that a browser loads when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} and named.get("src"):
            self.addresses.append(str(named["src"]))
        if tag == "link" and named.get("rel") in {"stylesheet", "preload", "icon", "preconnect"}:
            self.addresses.append(str(named["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    directory = tmp_path_factory.mktemp("built")
    command = [sys.executable, str(TOOLS / "build.py"), "--site", str(directory / "site")]
    command += ["--stage", str(directory / "stage")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "site"


@pytest.mark.full("takes half a minute; the tests above check the pages that it is built from")
@pytest.mark.timeout(400)
def test_site_is_built_without_warnings_and_loads_nothing_from_other_servers(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70
    foreign = {}
    for page in pages:
        assets = Assets()
        assets.feed(page.read_text())
        assert assets.addresses
        foreign[page.name] = [address for address in assets.addresses if "//" in address]
        missing = [a for a in assets.addresses if "//" not in a and not (page.parent / a.partition("#")[0]).exists()]
        assert page.name == "404.html" or not missing, page
    assert not {name: addresses for name, addresses in foreign.items() if addresses}


@pytest.mark.full("takes half a minute")
@pytest.mark.timeout(400)
def test_language_models_find_the_text_of_every_page_and_of_the_python_reference(site: Path) -> None:
    linked = re.findall(r"^- \[.+\]\((.+\.md)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert linked
    assert not [page for page in linked if not (site / page).exists()]
    full = (site / "llms-full.txt").read_text()
    assert not re.search(r"^::: ", full, re.MULTILINE)
    assert "\n### publish\n\n```python\npublish(queue: str, body: object, " in full
    assert "\n# Delivery\n" in full


@pytest.mark.full("takes half a minute")
@pytest.mark.timeout(400)
def test_search_works_in_a_browser_without_a_server(site: Path, tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip(MISSING)
    with browsing(tmp_path) as browser:
        seen = browser.show(site / "index.html")
        assert not seen.complaints
        browser.value("document.querySelector('input.md-search__input').focus()")
        browser.call("Input.insertText", text="dead letter")
        browser.value("document.activeElement.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))")
        found = "document.querySelectorAll('.md-search-result__item').length"
        wait_until(lambda: int(browser.value(found)) > 3, limit=30, what="a list of results")
        assert len(browser.requested()) > 5
        assert not [url for url in browser.requested() if not url.startswith(("file:", "data:", "about:"))]


@pytest.mark.full("takes half a minute")
@pytest.mark.timeout(400)
def test_broken_links_fail_the_build(site: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    sys.path.insert(0, str(TOOLS))
    try:
        import build
        import environment  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(TOOLS))
    build.stage(stage)
    page = stage / "delivery.md"
    page.write_text(page.read_text() + "\n[nowhere](operations.md#no-such-heading)\n")
    python = environment.prepare(ROOT / ".venv-docs", ROOT / "requirements" / "docs.lock")
    with pytest.raises(build.Broken, match=r"delivery\.md.*'operations\.md#no-such-heading'"):
        build.render(python, stage, tmp_path / "site")
