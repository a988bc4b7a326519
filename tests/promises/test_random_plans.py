"""Random clients, queues and faults against the real broker: every history keeps the promises."""

from __future__ import annotations

import logging

import pytest

from depth import choices, rounds
from promises.known import KNOWN
from promises.search import failures, smallest

# Connections lost by plan leave peers of bytes in the middle of a handshake, with a socket that the collector closes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

SEEDS = 50
"""Seeds of `make test`: always the same, so that a run of CI fails for what it changed."""
GROUPS = 5
MORE_SEEDS = rounds("PROMISES", quick=0, full=2000)


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    """Connections are lost and handlers raise by plan."""
    caplog.set_level(logging.CRITICAL, "mqcore")


async def _check(seeds: range) -> None:
    found = await failures(seeds)
    if found:
        plan = await smallest(found[0], repeats=2)
        pytest.fail("\n\n".join([found[0].report(plan), *(failure.report() for failure in found[1:])]), pytrace=False)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", range(GROUPS))
async def test_random_plans_break_no_promise(group: int) -> None:
    await _check(range(group, SEEDS, GROUPS))


@pytest.mark.full("thousands of random plans take most of an hour; `make test` runs 50")
@pytest.mark.timeout(60 + 4 * MORE_SEEDS)
async def test_thousands_of_random_plans_break_no_promise() -> None:
    first = choices(__name__).randrange(1 << 30)
    await _check(range(first, first + MORE_SEEDS))


def test_known_findings_have_a_reason() -> None:
    assert all(known.reason and known.seed >= 0 for known in KNOWN)
