"""Bugs that were repaired have their places in the sources, and random plans find them when they are there again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from promises import planted
from served import ROOT


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.name)
def test_place_of_a_planted_bug_is_in_the_sources(bug: planted.Bug, tmp_path: Path) -> None:
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / bug.file).read_text())
    planted.plant(tmp_path, (bug,))
    text = copy.read_text()
    assert f'"{bug.name}"' in text
    assert planted.CONDITION not in text


@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
def test_crates_of_a_copy_are_not_taken_for_those_of_the_project(tmp_path: Path) -> None:
    """Both use one target directory. Cargo would otherwise serve builds of the copy, with bugs, to the project."""
    command = ["cargo", "pkgid", "--locked", "--offline", "--package", "mqcore-broker"]
    own, copied = (
        subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout.strip()
        for project in (ROOT, planted.copied(tmp_path))
    )
    assert copied.partition("#")[2] == own.partition("#")[2] + "-planted"


@pytest.mark.full("builds the extension module with bugs, which takes minutes, and runs hundreds of plans")
@pytest.mark.timeout(3600)
def test_each_planted_bug_is_found_within_200_plans() -> None:
    assert planted.run([bug.name for bug in planted.BUGS]) == []
