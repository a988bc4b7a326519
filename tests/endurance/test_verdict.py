"""The verdict of a soak: each limit that is broken fails it, and outages count for no latency."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from endurance.probe import bucket, percentile
from endurance.verdict import Measurements, Sample, judge, sample

MIB = 1 << 20


def life(rss: tuple[int, int] = (50, 50), descriptors: tuple[int, int] = (40, 40), threads: int = 12) -> list[Sample]:
    """A hundred seconds, with values that grow evenly from the first to the second."""

    def at(pair: tuple[int, int], second: int) -> int:
        return pair[0] + (pair[1] - pair[0]) * second // 99

    return [Sample(second, at(rss, second) * MIB, at(descriptors, second), threads) for second in range(100)]


def measured(*lives: list[Sample], latency: float = 0.002) -> Measurements:
    """A soak of a hundred seconds without anything remarkable."""
    seconds = {second: Counter({bucket(latency): 1000}) for second in range(100)}
    return Measurements({"main": list(lives or [life()])}, [], seconds, dict(seconds), dict(seconds), probe_missing=0)


def broken(found: Measurements) -> list[str]:
    """Limits that do not hold."""
    return [check.name for check in judge(found) if not check.is_held]


def test_flat_soak_passes() -> None:
    assert broken(measured(life(), life(rss=(55, 58)), life(descriptors=(41, 39)))) == []


def test_growth_in_a_life_fails() -> None:
    steady = "main: steady growth of resident memory in a life"
    assert broken(measured(life(rss=(50, 90)))) == [steady]
    assert broken(measured(life(rss=(50, 250)))) == ["main: growth of resident memory in a life", steady]
    assert broken(measured(life(descriptors=(40, 80)))) == ["main: growth of descriptors in a life"]


def test_memory_that_grows_in_a_few_steps_passes_up_to_the_limit() -> None:
    stepped = life()
    stepped[60:] = [Sample(one.at, one.rss + 45 * MIB, one.descriptors, one.threads) for one in stepped[60:]]
    assert broken(measured(stepped)) == []
    stepped[80:] = [Sample(one.at, one.rss + 45 * MIB, one.descriptors, one.threads) for one in stepped[80:]]
    assert broken(measured(stepped)) == ["main: growth of resident memory in a life"]


def test_growth_from_life_to_life_fails() -> None:
    def lives(*last: list[Sample]) -> Measurements:
        return measured(life(), life(), life(), *last)

    assert broken(lives(life(), life())) == []
    assert broken(lives(life(rss=(150, 150)), life(rss=(150, 150)))) == [
        "main: growth of resident memory from life to life"
    ]
    assert broken(lives(life(threads=20), life(threads=20))) == ["main: growth of threads from life to life"]
    assert broken(measured(life(rss=(5, 5)), life(rss=(90, 90)))) == [], "the first life begins with nothing"


def test_growth_while_caches_fill_passes() -> None:
    warm = life()
    warm[:20] = [Sample(one.at, MIB, 3, 1) for one in warm[:20]]
    assert broken(measured(warm)) == []


def test_soak_without_a_long_life_fails() -> None:
    assert len(broken(measured(life()[:5]))) == 1


def test_slow_messages_fail_unless_the_broker_was_away() -> None:
    slow = measured()
    for second in (40, 41, 42):
        slow.confirms[second] = Counter({bucket(0.5): 1000})
    assert broken(slow) == ["p99 of a confirmation"]
    slow.outages = [(40.2, 40.9)]
    assert broken(slow) == []
    slow.confirms[45] = Counter({bucket(0.5): 1000})
    assert broken(slow) == ["p99 of a confirmation"]
    slow.began = 46.0
    assert broken(slow) == []


def test_soak_without_probe_fails() -> None:
    found = measured()
    found.confirms = {}
    found.probe_missing = None
    assert broken(found) == ["p99 of a confirmation", "confirmed messages of the probe that never came"]


def test_lost_messages_and_findings_fail() -> None:
    found = measured()
    found.probe_missing = 1
    found.findings = ["work/1: 1 confirmed messages are lost: [7]"]
    assert broken(found) == ["broken promises", "confirmed messages of the probe that never came"]


@pytest.mark.parametrize("latency", [0.0, 1e-5, 0.001, 0.0199, 0.35, 60.0])
def test_percentile_is_at_most_one_bucket_above_the_latency(latency: float) -> None:
    found = percentile(Counter({bucket(latency): 7}), 0.99)
    assert latency <= found <= max(latency, 1e-5) * 1.05


def test_percentile_counts_from_the_quickest() -> None:
    histogram = Counter({bucket(0.001): 990, bucket(1.0): 10})
    assert percentile(histogram, 0.99) < 0.0011
    assert percentile(histogram, 0.995) > 0.9
    assert percentile(Counter(), 0.99) == 0.0


def test_sample_is_that_of_this_process() -> None:
    own = sample(os.getpid(), 1.0)
    assert own.rss > MIB
    assert own.descriptors >= 3
    assert own.threads >= 1
    with pytest.raises(OSError):
        sample(2**22 + 1, 0.0)
