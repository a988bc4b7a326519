"""Builds the documentation site: `make docs`.

The site is built from a staging directory, so that the pages of the repository stay readable on a code host. The first
step, in the environment of mqcore, writes the staging directory: the pages of docs/, the reference that is generated
from the code, and `llms.txt`. The second step, in an environment of its own, runs MkDocs on it. MkDocs fails on every
link or anchor that leads nowhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import environment
import llms
import reference
import staging

ROOT = Path(__file__).resolve().parent.parent.parent
STAGE = ROOT / "target" / "docs-stage"
SITE = ROOT / "site"


class Broken(Exception):
    """MkDocs reported errors or warnings: the text."""


def stage(directory: Path) -> None:
    """Write all pages of the site, in Markdown, and the files that they link to."""
    shutil.rmtree(directory, ignore_errors=True)
    staging.copy_pages(ROOT, directory)
    for name, text in reference.pages(ROOT).items():
        page = directory / "reference" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    staging.check_navigation(ROOT, directory)
    llms.write(ROOT, directory)


def render(python: Path, directory: Path, site: Path) -> None:
    """Run MkDocs of the environment of `python` and fail on its warnings.

    MkDocs resolves the directories of its configuration against the place of that file, so that the staging directory
    and the site can be elsewhere in tests.
    """
    config = directory.parent / f"{directory.name}.yml"
    text = staging.configuration(ROOT)
    text = text.replace("[tools/docs/docstrings.py]", f"[{ROOT / 'tools/docs/docstrings.py'}]")
    text = text.replace("paths: [python]", f"paths: [{ROOT / 'python'}]")
    config.write_text(f"{text}\ndocs_dir: {directory}\nsite_dir: {site}\n", encoding="utf-8")
    # MkDocs advertises other generators in color, and exits with an error after warnings.
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # Not `--quiet`: it hides warnings from the strict mode too.
    command = [python, "-m", "mkdocs", "build", "--strict", "--config-file", config]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        raise Broken("\n".join(told))


def add_sources(python: Path, directory: Path, site: Path) -> None:
    """Put the Markdown of each page beside its HTML: `llms.txt` links to it."""
    for page in directory.rglob("*.md"):
        (site / page.relative_to(directory)).write_text(llms.plain(page.read_text(encoding="utf-8")), encoding="utf-8")
    script = Path(__file__).with_name("api_text.py")
    subprocess.run([python, script, directory, site, ROOT / "python"], check=True)


def main() -> int:
    """Build the site. Without a network and without its tools, print the reason and build nothing."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-docs", help="Environment of MkDocs.")
    parser.add_argument("--stage", type=Path, default=STAGE, help="Directory for the pages in Markdown.")
    parser.add_argument("--site", type=Path, default=SITE, help="Directory for the site.")
    parser.add_argument("--require", action="store_true", help="Fail where MkDocs cannot be installed.")
    arguments = parser.parse_args()
    try:
        # A virtual environment is known by the path of its Python: do not resolve links.
        python = environment.prepare(arguments.environment.absolute(), ROOT / "requirements" / "docs.lock")
    except environment.Unavailable as reason:
        print(f"skipped: {reason}")
        return int(arguments.require)
    stage(arguments.stage.resolve())
    try:
        render(python, arguments.stage.resolve(), arguments.site.resolve())
        add_sources(python, arguments.stage.resolve(), arguments.site.resolve())
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments.site}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
