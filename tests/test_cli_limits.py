"""`mqcore limit`: shown fields, remaining times, times to live at the limits of a listener, and missing keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import mqcore
from mqcore.throttr import Rule, SyncClient, Unit
from test_cli import complaint, one
from test_cli import mqcore as run
from test_cli_answers import said


def listening(width: str) -> Iterator[str]:
    """The URL of a listener with values of this width."""
    options = f"?value={width}&protocol=7.3"
    with mqcore.Broker(listen=f"throttr://127.0.0.1:0{options}") as broker:
        yield broker.listeners[0] + options


@pytest.fixture
def url() -> Iterator[str]:
    yield from listening("uint32")


@pytest.fixture
def narrow_url() -> Iterator[str]:
    yield from listening("uint16")


def test_missing_keys_are_named_with_the_next_step(url: str) -> None:
    for arguments, why in (
        (("get", "a"), "key a does not exist; list keys with 'mqcore limit ls'"),
        (("set", "a", "5"), "key a does not exist; create a counter with --ttl, for example --ttl 60s"),
        (("reset", "a", "b"), "key a, b does not exist; list keys with 'mqcore limit ls'"),
    ):
        missing = run("limit", *arguments, url=url)
        assert missing.returncode == 3
        assert complaint(missing) == f"mqcore: {why}"


def test_shown_fields_of_a_counter_and_of_a_buffer(url: str) -> None:
    with SyncClient(url) as client:
        client.insert("counter", 5, 60)
        client.set("buffer", b"\xff", 60)
    uses = {"reads_per_minute", "writes_per_minute", "reads", "writes"}
    counter = one(run("limit", "get", "counter", "--json", url=url))
    assert counter.keys() == {"schema", "key", "left", "expires_in", *uses}
    assert (counter["key"], counter["left"]) == ("counter", 5)
    buffer = one(run("limit", "get", "buffer", "--json", url=url))
    assert buffer.keys() == {"schema", "key", "left", "expires_in", "body_base64", *uses}
    assert buffer["body_base64"] == "/w=="
    code, text, talk = said("limit", "get", "counter", url=url)
    assert (code, talk) == (0, "")
    shown = dict(line.split("\t") for line in text.splitlines())
    assert shown.keys() == {"key", "left", "expires_in", *uses}
    assert (shown["key"], shown["left"]) == ("counter", "5")


def test_remaining_time_has_milliseconds_and_gets_shorter(url: str) -> None:
    with SyncClient(url) as client:
        for number in range(5):
            client.consume(Rule(f"hour {number}", 10, 1, Unit.HOURS))
    times = [row["expires_in"] for row in one(run("limit", "ls", "--json", url=url))["limits"]]
    times.append(one(run("limit", "get", "hour 0", "--json", url=url))["expires_in"])
    assert len(times) == 6
    assert all(3500 < time < 3600 for time in times), times
    assert times == [round(time, 3) for time in times]


def test_unknown_units_count_as_seconds(url: str) -> None:
    with SyncClient(url) as client:
        client.insert("odd", 5, 60, unit=9)
    (row,) = one(run("limit", "ls", "--json", url=url))["limits"]
    assert (row["key"], row["kind"], row["left"]) == ("odd", "counter", 5)
    assert 30 < row["expires_in"] <= 60


def test_time_to_live_has_the_finest_unit_that_the_listener_can_hold(narrow_url: str) -> None:
    assert said("limit", "set", "a", "5", "--ttl", "65535s", url=narrow_url) == (0, "", "a: 5 left\n")
    (row,) = one(run("limit", "ls", "--json", url=narrow_url))["limits"]
    # In minutes, it would be rounded up to 65,580 s.
    assert 65_400 < row["expires_in"] <= 65_535
    wrong = run("limit", "set", "a", "5", "--ttl", "70000h", url=narrow_url)
    assert wrong.returncode == 2
    assert complaint(wrong) == (
        "mqcore: --ttl 252000000.0 s exceeds the listener's largest value, 65535; "
        "use a shorter time or a wider listener (see: mqcore limit set --help)"
    )


def test_watch_prints_changed_counters_as_lines(url: str) -> None:
    with SyncClient(url) as client:
        client.insert("counter", 5, 60)
        client.insert("other", 7, 60)
    watched = said("limit", "watch", "c*", "--count", "1", "--interval", "10ms", url=url)
    assert watched == (0, "counter\tcounter\t5\n", "watching\n")


def test_limits_are_reset_together(url: str) -> None:
    with SyncClient(url) as client:
        client.insert("a", 5, 60)
        client.insert("b", 5, 60)
    assert said("limit", "reset", "a", "missing", "b", url=url) == (0, "", "reset a, b\n")
    assert json.loads(run("limit", "ls", "--json", url=url).stdout)["limits"] == []
