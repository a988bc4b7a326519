"""How many cases tests try, and where their random choices begin. The Rust tests read the same variables.

`MQCORE_TEST_DEPTH` is `quick` (`make test`, the default) or `full` (`make test-full`). `MQCORE_SEED` begins every
random choice; the header of a run prints it. `MQCORE_<NAME>_ROUNDS` overrides one test's number of rounds.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

Value = TypeVar("Value")

DEPTHS = ("quick", "full")

DEPTH = os.environ.get("MQCORE_TEST_DEPTH", "quick")
if DEPTH not in DEPTHS:
    raise ValueError(f"MQCORE_TEST_DEPTH is {DEPTH!r}; use one of {', '.join(DEPTHS)}")

FULL = DEPTH == "full"

# The workers of pytest-xdist inherit the variable, so that all of them choose the same tests.
SEED = int(os.environ.setdefault("MQCORE_SEED", str(random.SystemRandom().getrandbits(32))))


def by_depth(quick: Value, full: Value) -> Value:
    """`quick` or `full`, whichever the run asks for."""
    return full if FULL else quick


def rounds(name: str, *, quick: int, full: int) -> int:
    """How many rounds a test plays: `MQCORE_<name>_ROUNDS`, or as many as the depth says."""
    return int(os.environ.get(f"MQCORE_{name}_ROUNDS", by_depth(quick, full)))


def sample(name: str, cases: Iterable[Value], *, kind: Callable[[Value], object] | None = None) -> list[Value]:
    """All cases in the full depth; in the quick depth a random one of each kind, or of all if they are of one kind."""
    cases = list(cases)
    if FULL:
        return cases
    kinds: dict[object, list[int]] = {}
    for at, case in enumerate(cases):
        kinds.setdefault(kind(case) if kind else None, []).append(at)
    chance = choices(f"{name} sample")
    return [cases[at] for at in sorted(chance.choice(places) for places in kinds.values())]


@functools.cache
def in_turn(*modules: str) -> frozenset[str]:
    """Modules that have their turn in the quick depth: a random third of them."""
    return frozenset(choices("modules in turn").sample(sorted(modules), -(-len(modules) // 3)))


def choices(name: str) -> random.Random:
    """Random choices for the test `name`, which repeat with the same `MQCORE_SEED`."""
    return random.Random(f"{SEED} {name}")
