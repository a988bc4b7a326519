"""Runs the examples in docstrings of modules that have them."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["mqcore.backoff", "mqcore.jobs.address", "mqcore.ratelimit.limits", "mqcore.ratelimit.local"]
)
def test_examples_in_docstrings_give_the_shown_results(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
