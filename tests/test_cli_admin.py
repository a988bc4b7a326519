"""`mqcore errors`, `trace`, `jobs schedules`, `jobs unschedule` and `node ls`: what they print and where they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import mqcore
from job_processes import broker_url
from mqcore import QueueOptions, QueueStatus, admin, sync
from mqcore._core import AuthorityStore
from mqcore.jobs import Jobs
from mqks_peer import MqksPeer
from served import serving, wait_until
from test_cli import complaint, one
from test_cli import mqcore as run
from test_cli_answers import said

PULL = QueueOptions(status=QueueStatus.PULL)


# --- request errors -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failures() -> Iterator[str]:
    """The URL of the admin side of a broker that has recorded three request errors."""
    with (
        mqcore.Broker(listen="mqks://127.0.0.1:0", admin="http://127.0.0.1:0") as broker,
        MqksPeer(broker.listeners[0]) as peer,
    ):
        for number in range(3):
            peer.failed(f"x{number} nothing here")
        assert broker.admin_url is not None
        yield broker.admin_url


def test_request_errors_are_listed_newest_first(failures: str) -> None:
    expected = admin.errors(failures)
    assert len(expected) == 3
    times = [failed.at.isoformat(timespec="milliseconds") for failed in expected]
    code, text, talk = said("errors", "--url", failures)
    assert (code, talk) == (0, "")
    assert [line.split("\t") for line in text.splitlines()] == [
        ["at", "id", "request", "client", "protocol", "why"],
        *(
            [time, failed.id, failed.request, failed.client, failed.protocol, failed.why]
            for time, failed in zip(times, expected, strict=True)
        ),
    ]
    listed = one(run("errors", "--url", failures, "--json"))
    assert listed["schema"] == "mqcore.errors/1"
    assert [(row["at"], row["id"], row["why"]) for row in listed["errors"]] == [
        (time, failed.id, failed.why) for time, failed in zip(times, expected, strict=True)
    ]


def test_limit_of_request_errors_applies_to_the_list_and_not_to_one_id(failures: str) -> None:
    newest, _, oldest = admin.errors(failures)
    listed = one(run("errors", "--url", failures, "--limit", "1", "--json"))["errors"]
    assert [row["id"] for row in listed] == [newest.id]
    listed = one(run("errors", oldest.id, "--url", failures, "--limit", "1", "--json"))["errors"]
    assert [row["id"] for row in listed] == [oldest.id]


def test_unknown_request_error_is_not_found(failures: str) -> None:
    missing = run("errors", "nothing", "--url", failures)
    assert missing.returncode == 3
    assert complaint(missing) == (
        "mqcore: error nothing not found; the broker keeps the last 1,000 errors since its start"
    )


def test_admin_url_is_taken_from_the_command_the_program_or_the_environment(failures: str) -> None:
    nowhere = "http://127.0.0.1:1"
    for arguments, url in (
        (("errors", "--url", failures), nowhere),
        (("--url", failures, "errors"), nowhere),
        (("--url", nowhere, "errors", "--url", failures), None),
        (("errors",), failures),
    ):
        assert len(one(run(*arguments, "--json", url=url))["errors"]) == 3
    wrong = run("--url", "tmqp://127.0.0.1:1", "errors")
    assert wrong.returncode == 2
    assert complaint(wrong) == (
        "mqcore: --url tmqp://127.0.0.1:1 is not a URL of the admin API; use --url http://HOST:PORT "
        "(see: mqcore errors --help)"
    )
    # In the environment, it may be the URL of a listener for messages.
    assert b"is not a URL of the admin API" not in run("errors", url="tmqp://127.0.0.1:1").stderr


# --- traces ---------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqcore.Broker]:
    """A broker that records the history."""
    with mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        admin="http://127.0.0.1:0",
        data_dir=str(tmp_path / "data"),
        history=True,
        shards=1,
    ) as running:
        yield running


def traced(broker: mqcore.Broker, message_id: str) -> tuple[list[list[str]], str]:
    """The rows of `mqcore trace` below the heading, and what it prints on stderr."""
    code, text, talk = said("trace", message_id, "--url", str(broker.admin_url))
    assert code == 0, talk
    heading, *rows = [line.split("\t") for line in text.splitlines()]
    assert heading == ["at", "queue", "step", "attempt", "who", "why"]
    return rows, talk


def test_trace_shows_producer_consumer_and_outcome_of_a_message(broker: mqcore.Broker) -> None:
    url = broker.listeners[0]
    with sync.connect(url, name="shop") as shop, sync.connect(url, name="store") as store:
        options = QueueOptions(
            status=QueueStatus.PULL, request_acknowledge=True, acknowledge_timeout=60, delivery_handler="at-least-once"
        )
        shop.create_queue("orders/1", options)
        shop.publish("orders/1", "x", id="first")
        rows, talk = traced(broker, "first")
        assert talk == "first: waiting\n"
        assert rows[-1] == ["now", "orders/1", "waiting", "0", "shop (tmqp)", "-"]
        at, queue, step, _, who, why = rows[0]
        assert (queue, step, who, why) == ("orders/1", "produced", "shop (tmqp)", "-")
        assert abs((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()) < 60
        (message,) = store.queue("orders/1").pull(1)
        rows, talk = traced(broker, "first")
        assert talk == "first: delivered\n"
        assert rows[-1] == ["now", "orders/1", "delivered", "1", "store (tmqp)", "-"]
        assert message.ack()
        wait_until(lambda: store.queue("orders/1").information().acks == 1, what="the acknowledgement")
    rows, talk = traced(broker, "first")
    assert talk == "first: done\n"
    assert [(row[2], row[4], row[5]) for row in rows if row[2] in {"delivered", "acked"}] == [
        ("delivered", "store (tmqp)", "-"),
        ("acked", "store (tmqp)", "-"),
    ]
    document = one(run("trace", "first", "--url", str(broker.admin_url), "--json"))
    assert (document["schema"], document["id"], document["outcome"]) == ("mqcore.trace/1", "first", "done")
    assert (document["history"], document["truncated"], document["now"]) == (True, False, [])
    assert [step["kind"] for step in document["steps"]] == [row[2] for row in rows]


def test_trace_shows_where_a_dead_letter_went(broker: mqcore.Broker) -> None:
    with sync.connect(broker.listeners[0], name="shop") as shop:
        shop.create_queue("dead/1", QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
        options = QueueOptions(
            status=QueueStatus.PULL,
            request_acknowledge=True,
            delivery_handler="at-least-once",
            put_back_limit=0,
            dead_letter="dead/1",
        )
        shop.create_queue("orders/1", options)
        shop.publish("orders/1", "x", id="first")
        (message,) = shop.queue("orders/1").pull(1)
        assert message.nack("broken")
        wait_until(lambda: shop.queue("dead/1").information().messages == 1, what="the dead letter")
    rows, talk = traced(broker, "first")
    assert talk == "first: waiting\n"
    assert [(row[1], row[2], row[5]) for row in rows if row[2] in {"nacked", "dead-lettered"}] == [
        ("orders/1", "nacked", "broken"),
        ("orders/1", "dead-lettered", "limit: to dead/1"),
    ]
    assert rows[-1][:3] == ["now", "dead/1", "waiting"]


def test_trace_shows_the_end_of_a_delay(broker: mqcore.Broker) -> None:
    with sync.connect(broker.listeners[0], name="shop") as shop:
        shop.create_queue("orders/1", PULL)
        shop.publish("orders/1", "x", id="later", delay="1h")
    rows, talk = traced(broker, "later")
    assert talk == "later: delayed\n"
    assert rows[-1][:5] == ["now", "orders/1", "delayed", "0", "shop (tmqp)"]
    word, _, end = rows[-1][5].partition(" ")
    assert word == "until"
    assert 3500 < (datetime.fromisoformat(end) - datetime.now(UTC)).total_seconds() <= 3600


def test_trace_without_a_history_reports_that_past_events_are_unknown() -> None:
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0") as broker,
        sync.connect(broker.listeners[0], name="shop") as shop,
    ):
        shop.create_queue("orders/1", PULL)
        shop.publish("orders/1", "x", id="first")
        rows, talk = traced(broker, "first")
    assert rows == [["now", "orders/1", "waiting", "0", "shop (tmqp)", "-"]]
    assert talk == (
        "first: waiting\nthis broker records no history, so past events are unknown; start it with --history\n"
    )


def test_broker_records_the_history_with_its_option(tmp_path: Path) -> None:
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(tmp_path), "--history", "--auto-create") as served:
        assert said("publish", "orders/1", "x", "--id", "first", url=served.url)[0] == 0
        document = one(run("trace", "first", "--url", served.admin_url, "--json"))
    assert (document["history"], document["steps"][0]["kind"]) == (True, "produced")


# --- schedules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "milliseconds"), [("30d", 2_592_000_000), (1_000_001, 1_000_001_000), (123_456.789, 123_456_789)]
)
def test_a_long_interval_is_exact(tmp_path: Path, interval: str | float, milliseconds: int) -> None:
    _, token = AuthorityStore.of_data_dir(tmp_path).add_token(json.dumps({"name": "all", "allow": ["*"]}))
    listen = ("--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0", "--data-dir", str(tmp_path))
    with serving(*listen) as served, Jobs(broker_url(served), token=token) as jobs:

        @jobs.task(name="shop.count")
        def count() -> None:
            """Count the stock."""

        jobs.every(interval, count)
        jobs.send_schedules()
        wait_until(lambda: admin.schedules(served.admin_url, token=token).total == 1, what="the schedule")
        (schedule,) = admin.schedules(served.admin_url, token=token).schedules
        assert schedule.interval_ms == milliseconds


def test_schedules_are_listed_by_their_next_run_and_removed(tmp_path: Path) -> None:
    _, token = AuthorityStore.of_data_dir(tmp_path).add_token(json.dumps({"name": "all", "allow": ["*"]}))
    listen = ("--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0", "--data-dir", str(tmp_path))
    with serving(*listen) as served, Jobs(broker_url(served), token=token) as jobs:

        @jobs.task(name="shop.count")
        def count() -> None:
            """Count the stock."""

        @jobs.task(name="shop.report", queue="reports")
        def report() -> None:
            """Write the report."""

        jobs.every("90s", count, nohaste=True)
        jobs.cron("30 2 1 1 *", report, timezone="Europe/Berlin")
        jobs.send_schedules()
        url = served.admin_url
        wait_until(lambda: admin.schedules(url, token=token).total == 2, what="both schedules")
        often, yearly = admin.schedules(url, token=token).schedules
        listed = run("jobs", "schedules", "--url", url, MQCORE_TOKEN=token)
        assert (listed.returncode, listed.stderr) == (0, b"")
        heading, *rows = [line.split("\t") for line in listed.stdout.decode().splitlines()]
        assert heading == ["due", "when", "timezone", "catch_up", "queue", "runs", "left", "id", "job"]
        assert [dict(zip(heading, row, strict=True)) for row in rows] == [
            {
                "due": schedule.due.isoformat(timespec="milliseconds"),
                "when": when,
                "timezone": zone,
                "catch_up": schedule.catch_up,
                "queue": queue,
                "runs": "0",
                "left": "-",
                "id": schedule.id,
                "job": schedule.job,
            }
            for schedule, when, zone, queue in (
                (often, "every 90s", "-", "default"),
                (yearly, "30 2 1 1 *", "Europe/Berlin", "reports"),
            )
        ]
        first = one(run("jobs", "schedules", "--limit", "1", "--url", url, "--json", MQCORE_TOKEN=token))
        assert first["schema"] == "mqcore.jobs.schedules/1"
        assert [(row["id"], row["when"]) for row in first["schedules"]] == [(often.id, "every 90s")]
        removed = run("jobs", "unschedule", often.id, "--url", url, MQCORE_TOKEN=token)
        assert (removed.returncode, removed.stdout, removed.stderr.decode()) == (0, b"", f"removed {often.id}\n")
        assert [schedule.id for schedule in admin.schedules(url, token=token).schedules] == [yearly.id]
        document = one(run("jobs", "unschedule", yearly.id, "--url", url, "--json", MQCORE_TOKEN=token))
        assert document == {"schema": "mqcore.jobs.unschedule/1", "id": yearly.id}
        missing = run("jobs", "unschedule", often.id, "--url", url, MQCORE_TOKEN=token)
        assert (missing.returncode, missing.stdout) == (3, b"")


def test_malformed_id_of_a_schedule_is_wrong_usage() -> None:
    wrong = run("jobs", "unschedule", "first", "--url", "http://127.0.0.1:1")
    assert wrong.returncode == 2
    assert complaint(wrong) == (
        "mqcore: Invalid value for ID: 'first': the id of a schedule has 40 hexadecimal digits "
        "(see: mqcore jobs unschedule --help)"
    )


# --- nodes ----------------------------------------------------------------------------------------------------


def test_node_ls_shows_upstream_and_downstream_brokers() -> None:
    with (
        serving("--node-name", "top") as top,
        serving("--node-name", "low", "--upstream", top.url) as low,
        sync.connect(low.url) as lower,
        sync.connect(top.url) as upper,
    ):
        wait_until(lambda: any(node.name == "top" and node.connected for node in lower.nodes()), what="the upstream")
        wait_until(lambda: any(node.name == "low" for node in upper.nodes()), what="the downstream")
        for url, name, downstream in ((low.url, "top", False), (top.url, "low", True)):
            document = one(run("node", "ls", "--json", url=url))
            assert document["schema"] == "mqcore.node.ls/1"
            assert [(node["name"], node["downstream"], node["connected"]) for node in document["nodes"]] == [
                (name, downstream, True)
            ]
            code, text, talk = said("node", "ls", url=url)
            assert (code, talk) == (0, "")
            heading, row = [line.split("\t") for line in text.splitlines()]
            assert heading == ["id", "name", "host", "downstream", "connected", "lifetime"]
            assert (row[1], row[3], row[4]) == (name, "yes" if downstream else "no", "yes")
