"""Bugs that were repaired have their places in the sources, and the simulator finds them when they are there again."""

from __future__ import annotations

from pathlib import Path

import pytest

from promises.planted import CONDITION, Bug, plant
from served import ROOT
from simulator import planted


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.name)
def test_place_of_a_bug_for_the_simulator_is_in_the_sources(bug: Bug, tmp_path: Path) -> None:
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / bug.file).read_text())
    plant(tmp_path, (bug,))
    text = copy.read_text()
    assert f'"{bug.name}"' in text
    assert CONDITION not in text


@pytest.mark.full("builds the simulator with bugs, which takes a minute, and runs thousands of seeds")
@pytest.mark.timeout(1800)
def test_the_simulator_finds_each_planted_bug() -> None:
    assert planted.run() == []
