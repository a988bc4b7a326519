"""The integration tests of kombu and Celery themselves, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

import celery_suites


@pytest.mark.full("downloads two source distributions and runs for some ten minutes; test_celery_*.py cover it")
@pytest.mark.timeout(3600)
def test_suites_of_kombu_and_celery_pass(tmp_path: Path) -> None:
    for outcome in celery_suites.suites(tmp_path, []):
        print(outcome.report())
        assert outcome.passed
        assert not outcome.unexpected
