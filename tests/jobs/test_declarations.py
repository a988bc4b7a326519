"""Schedules, workers and jobs are checked where a program declares them."""

from __future__ import annotations

from typing import Any

import pytest

from mqcore import errors
from mqcore.jobs import Jobs, Worker
from mqcore.jobs.recurrence import _SHORTCUTS


@pytest.fixture
def jobs() -> Jobs:
    made = Jobs("emqp://127.0.0.1:1")

    @made.task(name="shop.tick")
    def tick() -> None:
        return

    return made


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("61 * * * *", '\\* \\* \\* \\*\': "61" is not a valid minute.*0-59'),
        ("* 24 * * *", "hour"),
        ("* * * MOX *", "month.*JAN-DEC"),
        ("* * *", "five fields, or six"),
        ("", "five fields"),
        ("0 0 31 2 *", "31"),
        ("@dayly", "did you mean '@daily'"),
        ("@Weekley", "did you mean '@weekly'"),
        ("@reboot", "use one of @hourly, @daily"),
    ],
)
def test_invalid_cron_expression_is_refused_where_it_is_declared(jobs: Jobs, expression: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        jobs.cron(expression, jobs.tasks["shop.tick"].bind())
    assert isinstance(refused.value, errors.ConfigError)
    assert jobs.schedules == ()


@pytest.mark.parametrize(
    ("zone", "suggested"),
    [
        ("Mars/X", "IANA database, such as 'Europe/Berlin'"),
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("Berlin", "did you mean 'Europe/Berlin'"),
        ("new york", "did you mean 'America/New_York'"),
        ("", "IANA"),
        ("a,b", "IANA"),
    ],
)
def test_unknown_time_zone_is_refused_with_a_suggestion(jobs: Jobs, zone: str, suggested: str) -> None:
    with pytest.raises(ValueError, match=f"unknown time zone {zone!r}; .*{suggested}"):
        jobs.cron("0 3 * * *", jobs.tasks["shop.tick"].bind(), timezone=zone)
    assert jobs.schedules == ()


def test_valid_expressions_and_zones_are_accepted(jobs: Jobs) -> None:
    call = jobs.tasks["shop.tick"].bind()
    for expression in ("0 3 * * *", "*/10 0 3 * * MON-FRI", *_SHORTCUTS, "0 0 29 2 *", "0  0 L * *"):
        assert jobs.cron(expression, call, timezone="Europe/Berlin").timezone == "Europe/Berlin"
    assert len(jobs.schedules) == 4 + len(_SHORTCUTS)


@pytest.mark.parametrize("interval", ["5ms", 0.009, 0, -1, float(101 * 366 * 24 * 3600)])
def test_interval_that_the_broker_refuses_is_refused_where_it_is_declared(jobs: Jobs, interval: Any) -> None:
    with pytest.raises(errors.ConfigError):
        jobs.every(interval, jobs.tasks["shop.tick"].bind())
    assert jobs.schedules == ()


def test_one_queue_can_be_named_without_a_list(jobs: Jobs) -> None:
    assert Worker(jobs, queues="mail", pool="thread").queues == (("mail", 10),)
    assert Worker(jobs, queues=[("mail", 40), "default"], pool="thread").queues == (("mail", 40), ("default", 10))


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        (("mail", 40), r"invalid queue 40; .*\(\"email\", 40\)"),
        ([("mail", "40")], "weight '40' of queue 'mail'"),
        ([("mail", -1)], "weight -1"),
        ([b"mail"], "invalid queue b'mail'"),
        ([""], "invalid queue ''"),
        (["mail", "mail"], "'mail' is listed twice"),
        ([], "at least one queue"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(jobs: Jobs, queues: Any, said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        Worker(jobs, queues=queues, pool="thread")


def test_one_pattern_can_be_given_without_a_list() -> None:
    assert Jobs("emqp://127.0.0.1:1", allow_import="legacy.*").allow_import == ("legacy.*",)


def test_arguments_of_a_job_in_a_string_are_refused(jobs: Jobs) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"use \['ada'\]"):
        jobs.send("shop.mail", "ada")


def test_declared_exceptions_are_a_tuple(jobs: Jobs) -> None:
    with pytest.raises(errors.ConfigError, match=r"raises=\(ValueError,\)"):
        jobs.task(raises=ValueError)(lambda: None)  # type: ignore[call-overload]
