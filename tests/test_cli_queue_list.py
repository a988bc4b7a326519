"""`mqcore queue ls`: contents of queues, and the age of their oldest message where the admin side is known."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqcore import QueueOptions, QueueStatus, sync
from served import ServedBroker, serving, wait_until
from test_cli import mqcore as run
from test_cli import one

NOWHERE = "http://127.0.0.1:1"
PULL = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, put_back_limit=0)


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """A broker whose queue shop/1 has messages in all states, and a consumer that has settled none."""
    with serving("--admin", "http://127.0.0.1:0") as served, sync.connect(served.url) as client:
        client.create_queue("shop/1", PULL)
        client.create_queue("shop/2", PULL)
        client.publish("shop/1", "dead")
        (dead,) = client.queue("shop/1").pull(1)
        dead.nack("broken")
        client.publish("shop/1", "delayed", delay=60)
        client.publish_many("shop/1", ["a", "b", "c"])
        held = client.queue("shop/1").pull(1)
        wait_until(lambda: client.queue_information("shop/1").in_flight == 1)
        wait_until(lambda: client.queue_information("shop/1").dead_lettered_messages == 1)
        wait_until(lambda: rows(run("queue", "ls", url=served.url, MQCORE_ADMIN=served.admin_url))["shop/1"][6] != "-")
        yield served
        assert held


def rows(result: subprocess.CompletedProcess[bytes]) -> dict[str, list[str]]:
    """The rows of the table by queue."""
    assert result.returncode == 0, result.stderr
    heading, *lines = [line.split("\t") for line in result.stdout.decode().splitlines()]
    assert heading[:8] == ["queue", "status", "ready", "in_flight", "delayed", "dead_lettered", "oldest", "consumers"]
    return {line[0]: line for line in lines}


def oldest(result: subprocess.CompletedProcess[bytes], queue: str = "shop/1") -> Any:
    """The age of the oldest message in the JSON."""
    return next(row["oldest_seconds"] for row in one(result)["queues"] if row["queue"] == queue)


def test_contents_come_from_the_listener(broker: ServedBroker) -> None:
    listed = rows(run("queue", "ls", url=broker.url))
    assert listed["shop/1"][:7] == ["shop/1", "pull", "2", "1", "1", "1", "-"]
    assert listed["shop/2"][:7] == ["shop/2", "pull", "0", "0", "0", "0", "-"]
    assert listed["shop/65535"][2] == "1", "the dead letter"


def test_ages_come_from_the_admin_side(broker: ServedBroker) -> None:
    for arguments, environment in (
        (("queue", "ls", "--admin", broker.admin_url), {}),
        (("--admin", broker.admin_url, "queue", "ls"), {}),
        (("queue", "ls"), {"MQCORE_ADMIN": broker.admin_url}),
    ):
        listed = run(*arguments, "--json", url=broker.url, **environment)
        assert 0 < oldest(listed) < 120
        assert oldest(listed, "shop/2") is None
        assert {row["queue"]: row["ready"] for row in one(listed)["queues"]}["shop/1"] == 2
        assert rows(run(*arguments, url=broker.url, **environment))["shop/1"][6].endswith((" s", " min"))


def test_unreachable_admin_side_costs_only_the_ages(broker: ServedBroker) -> None:
    result = run("queue", "ls", "--admin", NOWHERE, "--json", url=broker.url)
    assert oldest(result) is None
    assert result.stderr.decode().startswith(f"no ages of messages: {NOWHERE} does not answer")


def test_admin_side_of_the_environment_does_not_belong_to_a_url_of_the_command_line(broker: ServedBroker) -> None:
    for arguments in (("queue", "ls", "--url", broker.url), ("--url", broker.url, "queue", "ls")):
        result = run(*arguments, "--json", MQCORE_ADMIN=NOWHERE)
        assert (oldest(result), result.stderr) == (None, b"")
    # With port 0 the variable configures `mqcore serve`, and names no broker.
    result = run("queue", "ls", "--json", url=broker.url, MQCORE_ADMIN="http://127.0.0.1:0")
    assert (oldest(result), result.stderr) == (None, b"")


def test_admin_side_of_a_context_is_used(broker: ServedBroker, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    added = run("context", "add", "shop", "--url", broker.url, "--admin", broker.admin_url, "--use", **home)
    assert added.returncode == 0
    assert oldest(run("queue", "ls", "--json", **home)) > 0
