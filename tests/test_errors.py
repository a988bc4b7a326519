"""Exceptions as programs make and read them: their text, members and defaults."""

from __future__ import annotations

import pytest

from mqcore import errors


@pytest.mark.parametrize("kind", [errors.JobFailed, errors.JobTimeout, errors.JobLost, errors.JobRefused])
def test_job_error_has_its_text_and_the_id_of_its_job(kind: type[errors.JobError]) -> None:
    error = kind("the reason", "7")
    assert (str(error), error.job_id) == ("the reason", "7")
    assert (str(kind()), kind().job_id) == ("", "")


def test_failed_job_has_the_type_and_the_traceback_of_its_exception() -> None:
    error = errors.JobFailed("the reason", "7", "shop.OutOfStock", "Traceback")
    assert (str(error), error.job_id) == ("the reason", "7")
    assert (error.remote_type, error.remote_traceback) == ("shop.OutOfStock", "Traceback")
    assert (errors.JobFailed().remote_type, errors.JobFailed().remote_traceback) == ("", "")


def test_used_up_limit_says_when_and_how_much() -> None:
    error = errors.RateLimited("too many", 1.5, 10)
    assert (str(error), error.retry_after, error.limit) == ("too many", 1.5, 10)
    assert (str(errors.RateLimited()), errors.RateLimited().retry_after, errors.RateLimited().limit) == ("", 0.0, 0)
