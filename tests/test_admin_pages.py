"""Pages of the admin side for people and programs: one queue, its messages, connections, totals, and the stream."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqcore import QueueOptions, QueueStatus, admin, errors, sync
from served import ROOT, ServedBroker, serving, wait_until
from test_cli import mqcore as cli
from test_cli import one

PULL = QueueOptions(status=QueueStatus.PULL, tag="created", retry_delay="2s", publish_limit="100/s")


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """A broker with an admin side."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as served:
        yield served


@pytest.fixture
def mq(broker: ServedBroker) -> Iterator[sync.Client]:
    """A client of it."""
    with sync.connect(broker.url, name="tester", kind="test") as client:
        yield client


def page(broker: ServedBroker, path: str) -> Any:
    """The JSON of a page."""
    with urllib.request.urlopen(broker.admin_url + path, timeout=10) as answer:
        return json.load(answer)


def refusal(broker: ServedBroker, path: str) -> tuple[int, str, str]:
    """Status, code and message of a page's error."""
    with pytest.raises(urllib.error.HTTPError) as raised:
        page(broker, path)
    with raised.value as answer:
        error = json.load(answer)["error"]
        return answer.code, error["code"], error["message"]


def test_a_queue_has_its_options_contents_and_rates(broker: ServedBroker, mq: sync.Client) -> None:
    mq.declare("detail", 1, PULL)
    for number in range(4):
        mq.publish("detail/1", str(number))
    found = page(broker, "/queues/detail/1")
    assert (found["queue"], found["status"], found["ready"], found["consumers"]) == ("detail/1", "pull", 4, 0)
    options = found["options"]
    assert (options["tag"], options["retry_delay"], options["publish_limit"]) == ("created", 2.0, "100/s")
    assert found["messages"]["received"] == 4
    wait_until(lambda: page(broker, "/queues/detail/1")["rates"]["received"] > 0, what="a rate")


def test_the_name_of_a_channel_may_have_a_slash(broker: ServedBroker, mq: sync.Client) -> None:
    mq.declare("logs/eu", 3, PULL)
    assert page(broker, f"/queues/{urllib.parse.quote('logs/eu', safe='')}/3")["queue"] == "logs/eu/3"


def test_messages_are_shown_and_stay(broker: ServedBroker, mq: sync.Client) -> None:
    mq.declare("peek", 1, QueueOptions(status=QueueStatus.PULL))
    bodies = [b"text", "überlang".encode() * 1_000, b"\xfe\xff" * 128]
    for number, body in enumerate(bodies):
        mq.publish("peek/1", body, headers={"Number": str(number)}, id=f"m{number}")
    before = mq.queue_information("peek/1")
    shown = page(broker, "/queues/peek/1/messages?body_bytes=101")["messages"]
    assert [message["id"] for message in shown] == ["m0", "m1", "m2"]
    assert shown[0]["body"] == "text"
    assert ["Number", "0"] in shown[0]["headers"]
    assert shown[1]["body"] == ("überlang" * 1_000).encode()[:101].decode(errors="ignore")
    assert (shown[1]["body_bytes"], shown[2]["body_bytes"]) == (len(bodies[1]), 256)
    assert base64.b64decode(shown[2]["body_base64"]) == bodies[2][:101]
    assert abs(shown[0]["received_ms"] / 1000 - time.time()) < 60
    second = page(broker, "/queues/peek/1/messages?offset=1&limit=1")["messages"]
    assert [message["id"] for message in second] == ["m1"]
    assert mq.queue_information("peek/1") == before
    with mq.join("peek"):
        assert [message.raw for message in mq.queue("peek/1").pull(3)] == bodies, "the order is the same"


def test_peek_shows_messages_on_the_command_line_and_in_python(broker: ServedBroker, mq: sync.Client) -> None:
    mq.declare("logs/peek", 1, QueueOptions(status=QueueStatus.PULL))
    assert b"no message waits" in cli("peek", "logs/peek/1", "--url", broker.admin_url).stderr
    for number, body in enumerate([b"first", b"\xff\x00"]):
        mq.publish("logs/peek/1", body, id=f"m{number}", headers={"Color": "red"})
    before = mq.queue_information("logs/peek/1")
    first, second = admin.peek(broker.admin_url, "logs/peek/1")
    assert (first.id, first.body, first.body_bytes, ("Color", "red") in first.headers) == ("m0", b"first", 5, True)
    assert (second.body, second.attempts, second.saved) == (b"\xff\x00", 0, False)
    assert admin.peek(broker.admin_url, "logs/peek/1", offset=1, limit=1) == (second,)
    shown = one(cli("peek", "logs/peek/1", "--json", "--url", broker.admin_url))["messages"]
    assert [message.get("body", message.get("body_base64")) for message in shown] == ["first", "/wA="]
    text = cli("peek", "logs/peek/1", "--count", "1", "--url", broker.admin_url).stdout.decode()
    assert text.startswith("m0  ")
    assert "    Color: red\n" in text
    assert text.endswith("    first\n")
    assert mq.queue_information("logs/peek/1") == before
    with pytest.raises(errors.NotFound, match="queue nothing/1 does not exist"):
        admin.peek(broker.admin_url, "nothing/1")
    assert cli("peek", "nothing/1", "--url", broker.admin_url).returncode == 3


def test_bodies_that_left_memory_are_read_for_the_page(tmp_path: Path) -> None:
    arguments = ("--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", str(tmp_path / "data"))
    saving = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
    with serving(*arguments) as first, sync.connect(first.url) as mq:
        mq.declare("saved", 1, saving)
        mq.publish("saved/1", b"kept")
    with serving(*arguments) as second:
        (shown,) = page(second, "/queues/saved/1/messages")["messages"]
        assert (shown["body"], shown["saved"]) == ("kept", True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/queues/missing/1", (404, "not-found", "queue missing/1 does not exist")),
        ("/queues/missing/1/messages", (404, "not-found", "queue missing/1 does not exist")),
        ("/queues/detail/1/messages?limit=many", (400, "bad-request", "limit is a number")),
        ("/queues?offset=-1", (400, "bad-request", "offset is a number, such as ?offset=0")),
        ("/queues?reverse=yes", (400, "bad-request", "reverse is 1 or 0")),
        ("/queues?filter=%ff", (400, "bad-request", "filter is not UTF-8")),
        ("/connections?offset=x", (400, "bad-request", "offset is a number, such as ?offset=0")),
        ("/totals?step=1h", (400, "bad-request", "step is 1s")),
        ("/stream?topic=everything", (400, "bad-request", "topic is overview, queues or queue")),
        ("/stream?topic=queue&channel=a", (400, "bad-request", "id is the number of a queue")),
        ("/stream?topic=queues&sort=color", (400, "bad-request", "sort by one of")),
        ("/assets/nothing.js", (404, "not-found", "the dashboard has no file nothing.js")),
    ],
)
def test_a_wrong_request_says_what_is_wrong(path: str, expected: tuple[int, str, str], broker: ServedBroker) -> None:
    status, code, message = refusal(broker, path)
    assert (status, code) == expected[:2]
    assert message.startswith(expected[2])


def test_connections_are_filtered_and_paged(broker: ServedBroker) -> None:
    with (
        sync.connect(broker.url, id="first", name="kiosk", kind="shop"),
        sync.connect(broker.url, id="second", name="desk", kind="shop"),
    ):
        found = page(broker, "/connections?filter=SHOP")
        assert (found["matched"], [each["id"] for each in found["connections"]]) == (2, ["first", "second"])
        assert found["connections"][0] | {"online_seconds": 0, "connection": 0} == {
            "id": "first",
            "name": "kiosk",
            "type": "shop",
            "protocol": "tmqp",
            "user": None,
            "connection": 0,
            "online_seconds": 0,
        }
        last = page(broker, "/connections?filter=shop&offset=1&limit=1")
        assert (last["matched"], [each["id"] for each in last["connections"]]) == (2, ["second"])


def test_totals_survive_a_restart(tmp_path: Path) -> None:
    arguments = ("--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as first:
        with sync.connect(first.url) as mq:
            mq.declare("a", 1, QueueOptions(status=QueueStatus.PULL))
            mq.publish("a/1", b"counted")
        wait_until(lambda: any(each["received"] for each in page(first, "/totals")["totals"]), what="a rate")
        before = page(first, "/totals")
        assert before["step_ms"] == 1_000
        assert first.terminate() == 0
    with serving(*arguments) as second:
        wait_until(lambda: len(page(second, "/totals")["totals"]) > len(before["totals"]), what="a new total")
        assert page(second, "/totals")["totals"][: len(before["totals"])] == before["totals"]
        assert page(second, "/totals?step=5min")["step_ms"] == 300_000


def events(answer: Any, count: int) -> list[tuple[int, dict[str, Any]]]:
    """The next events of a stream: ids and contents."""
    found: list[tuple[int, dict[str, Any]]] = []
    number = 0
    while len(found) < count:
        line = answer.readline().decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            found.append((number, json.loads(value)))
    return found


def test_the_stream_sends_each_total_once_and_continues_where_it_was_left(broker: ServedBroker) -> None:
    with urllib.request.urlopen(f"{broker.admin_url}/stream?topic=overview", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        seen = events(answer, 3)
    times = [total["at_ms"] for _, content in seen for total in content["totals"]]
    assert times == sorted(set(times))
    assert seen[-1][0] == times[-1]
    assert seen[0][1]["attention"]["status"] in {"healthy", "warning"}
    time.sleep(2.5)
    request = urllib.request.Request(f"{broker.admin_url}/stream", headers={"Last-Event-ID": str(times[-1])})
    with urllib.request.urlopen(request, timeout=10) as answer:
        missed = events(answer, 1)[0][1]["totals"]
    assert missed[0]["at_ms"] > times[-1]
    assert missed[0]["at_ms"] - times[-1] < 2_500, "nothing is left out"


def test_the_stream_follows_a_page_of_queues_or_one_queue(broker: ServedBroker, mq: sync.Client) -> None:
    mq.declare("followed", 1, QueueOptions(status=QueueStatus.PULL))
    query = "/stream?topic=queues&filter=followed"
    with urllib.request.urlopen(broker.admin_url + query, timeout=10) as answer:
        assert [queue["queue"] for queue in events(answer, 1)[0][1]["queues"]["queues"]] == ["followed/1"]
    with urllib.request.urlopen(f"{broker.admin_url}/stream?topic=queue&channel=followed&id=1", timeout=10) as answer:
        assert events(answer, 1)[0][1]["queue"]["ready"] == 0
        mq.publish("followed/1", b"new")
        deadline = time.monotonic() + 10
        while events(answer, 1)[0][1]["queue"]["ready"] == 0:
            assert time.monotonic() < deadline


def test_a_broker_stops_although_a_stream_is_open() -> None:
    with (
        serving("--admin", "http://127.0.0.1:0") as served,
        urllib.request.urlopen(f"{served.admin_url}/stream", timeout=10) as answer,
    ):
        events(answer, 1)
        assert served.terminate() == 0


@pytest.mark.skipif(
    not (ROOT / "python" / "mqcore" / "_dashboard" / "index.html").exists(),
    reason="the dashboard is not built (make dashboard)",
)
def test_the_files_of_the_dashboard_are_served_with_a_strict_policy(broker: ServedBroker) -> None:
    with urllib.request.urlopen(broker.admin_url, timeout=10) as answer:
        index = answer.read().decode()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-cache"
    scripts = [part.split('"')[0] for part in index.split('src="')[1:]]
    assert scripts
    for script in scripts:
        with urllib.request.urlopen(broker.admin_url + script, timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
            assert "immutable" in answer.headers["Cache-Control"]
