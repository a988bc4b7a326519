"""Values of headers that cannot be, and REPLY in the document's form, from raw peers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import mqcore
from eventmq_original import addresses
from eventmq_peer import EventmqPeer
from mqcore import admin
from served import wait_until

CALL = json.dumps(
    ["run", {"path": "shop", "callable": "f", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}]
)


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", admin="http://127.0.0.1:0", shards=2) as broker:
        yield broker


def reported(broker: mqcore.Broker) -> list[tuple[str | None, str]]:
    """Id and reason of each request error so far."""
    assert broker.admin_url is not None
    return [(error.request, error.why) for error in admin.errors(broker.admin_url)]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("retry-count:-1", "`retry-count:-1`: the value must be a whole number from 0 to 4294967295"),
        ("timeout:abc", "`timeout:abc`: the value must be a number of seconds"),
        ("priority:x", "`priority:x`"),
        ("result-queue:", "`result-queue:`: the name is empty"),
        ("result-queue:a b", "`result-queue:a b`: the name contains ' '"),
    ],
)
def test_job_with_an_impossible_header_value_is_refused_and_reported(
    broker: mqcore.Broker, header: str, said: str
) -> None:
    urls = addresses(broker.listeners)
    with EventmqPeer(urls["backend"]) as worker, EventmqPeer(urls["frontend"], identity=b"client") as client:
        worker.inform("", 2)
        client.say("REQUEST", "bad", "default", f"guarantee,{header}", CALL)
        client.say("REQUEST", "good", "default", "timeout:0.5,priority:1", CALL)
        assert worker.receive()[3] == b"good", "the connection goes on"
        ((request, reason),) = reported(broker)
        assert request == "bad"
        assert said in reason


@pytest.mark.parametrize("header", ["run_count:abc", "retry-count:-1", "timeout:abc", "priority:x"])
def test_schedule_with_an_impossible_header_value_is_refused_and_named(broker: mqcore.Broker, header: str) -> None:
    urls = addresses(broker.listeners)
    with EventmqPeer(urls["frontend"], identity=b"client") as client:
        client.say("SCHEDULE", "s", "mail", f"interval-ms:50,{header}", "1", CALL, "")
        wait_until(lambda: bool(reported(broker)), what="the report")
        ((request, reason),) = reported(broker)
        assert request == "s"
        assert reason.startswith("schedule of shop.f in queue mail: ")
        assert f"`{header}`" in reason
        assert broker.schedules().total == 0


def test_schedule_that_cannot_run_is_reported_with_its_task_and_queue(broker: mqcore.Broker) -> None:
    urls = addresses(broker.listeners)
    with EventmqPeer(urls["frontend"], identity=b"client") as client:
        client.say("SCHEDULE", "s", "mail", "timezone:Mars/X", "-1", CALL, "0 3 * * *")
        wait_until(lambda: bool(reported(broker)), what="the report")
        ((_, reason),) = reported(broker)
        assert reason.startswith("schedule of shop.f in queue mail: ")
        assert "Mars/X" in reason


def test_reply_in_the_documents_form_ends_the_only_running_job(broker: mqcore.Broker) -> None:
    urls = addresses(broker.listeners)
    with EventmqPeer(urls["backend"]) as worker, EventmqPeer(urls["frontend"], identity=b"client") as client:
        worker.inform("", 1)
        client.say("REQUEST", "j", "default", "guarantee,reply-requested", CALL)
        assert worker.receive()[3] == b"j"
        worker.say("REPLY", "an id of its own", '{"value": 1}')
        assert client.receive()[4:] == [b"j"]
        assert client.receive()[4:] == [b'{"value": 1}', b"j"]
        assert reported(broker) == []


def test_reply_in_the_documents_form_names_one_of_several_jobs_by_its_own_id(broker: mqcore.Broker) -> None:
    urls = addresses(broker.listeners)
    with EventmqPeer(urls["backend"]) as worker, EventmqPeer(urls["frontend"], identity=b"client") as client:
        worker.inform("", 2)
        for job in ("i", "j"):
            client.say("REQUEST", job, "default", "guarantee,reply-requested", CALL)
        assert {worker.receive()[3] for _ in range(2)} == {b"i", b"j"}
        worker.say("REPLY", "unknown", '{"value": 0}')
        worker.say("REPLY", "j", '{"value": 1}')
        answers = [client.receive()[4:] for _ in range(3)]
        assert answers[-1] == [b'{"value": 1}', b"j"]
        wait_until(lambda: bool(reported(broker)), what="the report")
        ((_, reason),) = reported(broker)
        assert "the worker has 2 jobs" in reason
        assert "sixth frame" in reason
