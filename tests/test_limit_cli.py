"""`mqcore limit`, run as users run it, against a real listener."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import mqcore
import programs
from mqcore.throttr import Rule, SyncClient, Unit
from served import clean_environment, wait_until

WIDTH = "?value=uint32&protocol=7.3"


@pytest.fixture
def url() -> Iterator[str]:
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{WIDTH}",)) as broker:
        yield broker.listeners[0] + WIDTH


def limit(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "mqcore", "limit", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=clean_environment() | {"MQCORE_LIMIT_URL": url, "MQCORE_URL": "tmqp://127.0.0.1:1"},
    )


def test_counters_are_made_looked_at_changed_and_forgotten(url: str) -> None:
    assert limit("set", "user:7", "5", url=url).returncode == 3, "there is none yet, and no --ttl"
    assert limit("set", "user:7", "5", "--ttl", "1h", url=url).returncode == 0
    assert limit("set", "user:7", "9", url=url).returncode == 0
    with SyncClient(url) as client:
        client.set("page", b"text", 60)
    shown = json.loads(limit("get", "user:7", "--json", url=url).stdout)
    assert (shown["schema"], shown["left"]) == ("mqcore.limit.get/1", 9)
    assert 3500 < shown["expires_in"] <= 3600
    assert json.loads(limit("get", "page", "--json", url=url).stdout)["body"] == "text"
    listed = json.loads(limit("ls", "--json", url=url).stdout)["limits"]
    assert [(row["key"], row["kind"], row["left"]) for row in listed] == [
        ("user:7", "counter", 9),
        ("page", "buffer", None),
    ]
    assert [row["key"] for row in json.loads(limit("ls", "user:*", "--json", url=url).stdout)["limits"]] == ["user:7"]
    assert limit("ls", url=url).stdout.splitlines()[0] == "key\tkind\tleft\texpires_in"
    assert json.loads(limit("reset", "user:7", "nobody", "--json", url=url).stdout)["keys"] == ["user:7"]
    gone = limit("reset", "user:7", url=url)
    assert gone.returncode == 3
    assert "key user:7 does not exist" in gone.stderr


def test_remaining_time_is_exact_for_a_limit_in_hours(url: str) -> None:
    with SyncClient(url) as client:
        client.consume(Rule("window", 10, 1, Unit.HOURS))
        client.insert("rest", 5, 2, unit=Unit.MINUTES)
    rows = {row["key"]: row for row in json.loads(limit("ls", "--json", url=url).stdout)["limits"]}
    for key, most in (("window", 3600), ("rest", 120)):
        assert most - 30 < rows[key]["expires_in"] <= most
        assert most - 30 < json.loads(limit("get", key, "--json", url=url).stdout)["expires_in"] <= most


def test_watching_prints_what_changes(url: str) -> None:
    command = [sys.executable, "-m", "mqcore", "limit", "watch", "k*", "--interval", "20ms", "--count", "3", "--json"]
    with SyncClient(url) as client:
        client.insert("k", 3, 60)
        client.insert("other", 3, 60)
        watching = programs.Popen(
            [*command, "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        with watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["left"] == 3
            client.decrease("k", 2)
            assert json.loads(watching.stdout.readline())["left"] == 1
            client.purge("k")
            assert json.loads(watching.stdout.readline())["kind"] == "gone"
            wait_until(lambda: watching.poll() is not None, what="leaving after three lines")
        assert watching.returncode == 0


def test_a_listener_that_is_not_there_is_one_line(url: str) -> None:
    failed = limit("ls", "--url", "throttr://127.0.0.1:1", url=url)
    assert failed.returncode == 5
    assert failed.stderr.startswith("mqcore: cannot connect to throttr://127.0.0.1:1")
    assert len(failed.stderr.splitlines()) == 1
