"""Output of commands about messages, events, routers, clients and channels, for people and as JSON."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
import programs
from mqcore import errors
from served import ServedBroker, clean_environment, serving, wait_until
from test_cli import complaint, lines, one
from test_cli import mqcore as run
from test_cli_answers import said
from tmqp_peer import TmqpPeer


@contextlib.contextmanager
def running(*arguments: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """A program in the background, killed at the end of the block or after 30 s."""
    with programs.Popen(
        [sys.executable, "-m", "mqcore", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | {"MQCORE_URL": url},
    ) as process:
        guard = threading.Timer(30, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            if process.poll() is None:
                process.kill()


def next_line(process: subprocess.Popen[str], stream: str) -> str:
    """The next line on stdout or stderr."""
    return str(getattr(process, stream).readline())


def rest(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code of a program at its end, and the rest of its stdout and stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = process.stdout.read(), process.stderr.read()
    return process.wait(10), stdout, stderr


# --- publish --------------------------------------------------------------------------------------------------


def test_unconfirmed_publish_is_reported_as_not_confirmed(served: ServedBroker) -> None:
    began = time.monotonic()
    code, text, talk = said("publish", "orders/1", "x", "--no-confirm", url=served.url)
    elapsed = time.monotonic() - began
    assert (code, text) == (0, "")
    found = re.fullmatch(r"1 message to orders/1, not confirmed, (\d+\.\d) ms\n", talk)
    assert found, talk
    assert float(found[1]) <= elapsed * 1000
    output = one(run("publish", "orders/1", "x", "--count", "3", "--no-confirm", "--json", url=served.url))
    assert (output["published"], output["confirmed_by"]) == (3, None)
    assert 0 <= output["seconds"] < 30


def test_message_with_an_id_is_confirmed_unless_that_is_not_wanted(served: ServedBroker) -> None:
    for arguments, confirmed_by in (((), "server"), (("--no-confirm",), None)):
        output = one(run("publish", "orders/1", "x", "--id", "first", *arguments, "--json", url=served.url))
        assert (output["published"], output["bytes"], output["confirmed_by"]) == (1, 1, confirmed_by)


def test_rejected_copies_are_counted_and_end_publish_with_1() -> None:
    with serving() as served:
        assert said("queue", "create", "orders/1", "--status", "pull", url=served.url)[0] == 0
        copies = ("--cc", "missing/9", "--cc", "orders/1")
        code, text, talk = said("publish", "orders/1", "x", "--count", "3", *copies, url=served.url)
        assert (code, text) == (1, "")
        first, second = talk.splitlines()
        assert first.startswith("3 messages to orders/1, confirmed by server, ")
        assert second.startswith("3 of 3 copies to missing/9 rejected: ")
        result = run("publish", "orders/1", "x", *copies, "--json", url=served.url)
        assert result.returncode == 1
        (failed,) = json.loads(result.stdout)["failed_copies"]
        assert (failed["queue"], failed["count"]) == ("missing/9", 1)
        assert failed["why"].startswith("rejected: ")


# --- consume and pull -----------------------------------------------------------------------------------------


def test_json_of_messages_is_utf8(served: ServedBroker) -> None:
    run("queue", "create", "orders/1", "--status", "pull", url=served.url)
    run("publish", "orders/1", "héllo ☃", url=served.url)
    pulled = run("pull", "orders/1", "--json", url=served.url)
    assert '"body": "héllo ☃"'.encode() in pulled.stdout


def test_pulled_messages_name_their_queue_and_are_acknowledged(served: ServedBroker) -> None:
    run("queue", "create", "orders/7", "--status", "pull", "--acknowledge", url=served.url)
    run("publish", "orders/7", "x", url=served.url)
    pulled = one(run("pull", "orders/7", "--fail-if-empty", "--json", url=served.url))
    assert (pulled["schema"], pulled["queue"], pulled["body"]) == ("mqcore.message/1", "orders/7", "x")

    def is_acknowledged() -> bool:
        shown = one(run("queue", "show", "orders/7", "--json", url=served.url))
        return (shown["acks"], shown["messages"], shown["in_flight"]) == (1, 0, 0)

    wait_until(is_acknowledged, what="the acknowledgement")


@pytest.mark.parametrize("command", ["consume", "pull"])
def test_bodies_are_written_to_new_files_of_a_new_directory(served: ServedBroker, tmp_path: Path, command: str) -> None:
    status = "roundrobin" if command == "consume" else "pull"
    run("queue", "create", "orders/1", "--status", status, "--acknowledge", url=served.url)
    run("publish", "orders/1", "x", "--id", "../../escaped", url=served.url)
    target = tmp_path / "new" / "directory"
    written = run(command, "orders/1", "--count", "1", "--into", str(target), url=served.url)
    assert (written.returncode, written.stdout) == (0, b"")
    (file,) = target.iterdir()
    assert (len(file.name), file.read_bytes()) == (32, b"x")


def test_messages_of_a_pattern_of_topics_name_their_topic() -> None:
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0") as broker,
        running("consume", "@topic:orders.*", "--count", "2", "--json", url=broker.listeners[0]) as process,
    ):

        def is_published() -> bool:
            with contextlib.suppress(errors.Nacked):
                return broker.sync.publish("@topic:orders.new", b"x").by == "server"
            return False

        wait_until(is_published, limit=20, what="the subscription")
        broker.sync.publish("@topic:orders.old", b"x")
        code, output, _ = rest(process)
    assert code == 0
    assert [json.loads(line)["queue"] for line in output.splitlines()] == ["@topic:orders.new", "@topic:orders.old"]


# --- direct messages ------------------------------------------------------------------------------------------


def test_sent_messages_are_reported(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as peer:
        peer.hello(Client_Name="kiosk")
        assert said("send", "@name:kiosk", "x", url=served.url) == (0, "", "sent to @name:kiosk\n")
        assert one(run("send", "@name:kiosk", "x", "--json", url=served.url)) == {
            "schema": "mqcore.send/1",
            "target": "@name:kiosk",
            "confirmed": False,
        }


def test_received_messages_are_printed_at_once_and_acknowledged(served: ServedBroker) -> None:
    with running("receive", "--name", "desk", "--count", "3", url=served.url) as receiving:
        assert next_line(receiving, "stderr").startswith("receiving as ")
        assert said("send", "@name:desk", "plain", url=served.url) == (0, "", "sent to @name:desk\n")
        assert next_line(receiving, "stdout") == "plain\n"
        assert said("send", "@name:desk", "news", "--confirm", url=served.url) == (
            0,
            "",
            "sent to @name:desk, acknowledged\n",
        )
        assert said("request", "@name:desk", "ping", url=served.url) == (0, "\n", "")
        assert rest(receiving) == (0, "news\nping\n", "")


def test_receiver_rejects_messages_with_its_reason(served: ServedBroker) -> None:
    with running("receive", "--name", "desk", "--count", "2", "--nack", "too-late", url=served.url) as receiving:
        assert next_line(receiving, "stderr").startswith("receiving as ")
        assert said("send", "@name:desk", "plain", url=served.url)[0] == 0
        assert next_line(receiving, "stdout") == "plain\n"
        rejected = run("send", "@name:desk", "news", "--confirm", url=served.url)
        assert rejected.returncode == 1
        assert "too-late" in complaint(rejected)
        assert rest(receiving) == (0, "news\n", "")


# --- events ---------------------------------------------------------------------------------------------------


def test_events_are_lines_with_the_fields_of_their_kind(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as owner:
        owner.hello()
        owner.ask(603, "orders")
        with running("tail", "--events", "--channel", "orders", "--count", "2", url=served.url) as watching:
            assert next_line(watching, "stderr") == "watching\n"
            with TmqpPeer(*served.address) as peer:
                peer.hello(Client_Id="me", Client_Name="kiosk")
                kind, *fields = next_line(watching, "stdout").rstrip("\n").split("\t")
                assert kind == "ClientConnected"
                assert {"client_id=me", "client_name=kiosk"} <= set(fields)
                assert not [field for field in fields if field.endswith("=None")]
                peer.ask(601, "orders")
                kind, *fields = next_line(watching, "stdout").rstrip("\n").split("\t")
                assert kind == "ClientJoined"
                assert {"channel=orders", "client_id=me"} <= set(fields)
            assert rest(watching)[0] == 0


def test_filters_select_events_by_kind_queue_and_field(served: ServedBroker) -> None:
    for queue in ("orders/1", "orders/11", "invoices/1"):
        run("queue", "create", queue, "--status", "pull", url=served.url)
    queues = [part for queue in ("orders/1", "orders/11", "invoices/1") for part in ("--queue", queue)]

    def printed(*filters: str) -> list[dict[str, object]]:
        """The only event of these filters, while four clients publish a message each."""
        arguments = [*queues, *(part for text in filters for part in ("--filter", text)), "--count", "1", "--json"]
        with running("tail", "--events", *arguments, url=served.url) as watching:
            assert next_line(watching, "stderr") == "watching\n"
            for queue in ("orders/1", "invoices/1", "orders/11", "orders/1"):
                run("publish", queue, "x", "--id", f"of-{queue}", url=served.url)
            code, stdout, _ = rest(watching)
            assert code == 0
            return [json.loads(line) for line in stdout.splitlines()]

    for filters, expected in (
        (("invoices/1",), ("MessageProduced", "invoices", 1)),
        (("messageproduced", "orders/11"), ("MessageProduced", "orders", 11)),
        (("message_id=of-orders/11",), ("MessageProduced", "orders", 11)),
    ):
        (event,) = printed(*filters)
        assert (event["kind"], event["channel"], event["queue"]) == expected, filters


def test_event_must_match_all_filters_and_only_printed_ones_count(served: ServedBroker) -> None:
    filters = ("--filter", "ClientConnected", "--filter", "client_name=KIOSK-2", "--count", "2")
    with running("tail", "--events", *filters, url=served.url) as watching:
        assert next_line(watching, "stderr") == "watching\n"
        for number in (1, 2, 3, 21):
            with TmqpPeer(*served.address) as peer:
                peer.hello(Client_Id=f"me-{number}", Client_Name=f"kiosk-{number}")
        code, stdout, _ = rest(watching)
    assert code == 0
    names = [re.findall("client_name=([^\t]*)", line) for line in stdout.splitlines()]
    assert names == [["kiosk-2"], ["kiosk-21"]]


# --- administration -------------------------------------------------------------------------------------------


def test_routers_are_disabled_and_enabled(served: ServedBroker) -> None:
    run("router", "create", "sort", url=served.url)
    for command, done, enabled, cell in (
        ("disable", "disabled sort\n", False, "no"),
        ("enable", "enabled sort\n", True, "yes"),
    ):
        assert said("router", command, "sort", url=served.url) == (0, "", done)
        (router,) = one(run("router", "ls", "--json", url=served.url))["routers"]
        assert router == {"name": "sort", "method": "distribute", "enabled": enabled}
        assert said("router", "ls", url=served.url) == (0, f"name\tmethod\tenabled\nsort\tdistribute\t{cell}\n", "")
        assert one(run("router", command, "sort", "--json", url=served.url)) == {
            "schema": f"mqcore.router.{command}/1",
            "router": "sort",
            "enabled": enabled,
        }


def test_bindings_are_reported_by_their_names(served: ServedBroker) -> None:
    run("queue", "create", "orders/1", url=served.url)
    run("router", "create", "sort", url=served.url)
    bind = ("router", "bind", "sort", "orders/1")
    schema = {"schema": "mqcore.router.bind/1", "router": "sort"}
    assert one(run(*bind, "--json", url=served.url)) == {**schema, "binding": "orders/1"}
    assert one(run(*bind, "--name", "store", "--json", url=served.url)) == {**schema, "binding": "store"}
    assert said(*bind, "--name", "copy", "--priority", "7", url=served.url) == (0, "", "bound sort to orders/1\n")
    code, text, _ = said("router", "show", "sort", url=served.url)
    heading, first, *_ = text.splitlines()
    assert (code, heading) == (0, "name\ttarget\tpriority\tinteraction\tcontent_type\tmethod")
    assert first == "copy\torders/1\t7\tnone\t1\tdistribute"
    assert said("router", "unbind", "sort", "copy", url=served.url) == (0, "", "removed copy from sort\n")
    assert one(run("router", "unbind", "sort", "store", "--json", url=served.url)) == {
        "schema": "mqcore.router.unbind/1",
        "router": "sort",
        "binding": "store",
    }
    (left,) = one(run("router", "show", "sort", "--json", url=served.url))["bindings"]
    assert left["name"] == "orders/1"


def test_clients_are_disconnected_by_id_and_by_name(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as peer:
        peer.hello(Client_Name="kiosk")
        assert said("client", "disconnect", "@name:kiosk", url=served.url) == (0, "", "disconnected @name:kiosk\n")
        assert peer.is_closed_within(10)
    with TmqpPeer(*served.address) as peer:
        peer.hello(Client_Id="me")
        document = one(run("client", "disconnect", "me", "--json", url=served.url))
        assert document == {"schema": "mqcore.client.disconnect/1", "client": "me"}
        assert peer.is_closed_within(10)


def test_changed_option_of_a_channel_takes_effect(served: ServedBroker) -> None:
    run("channel", "create", "orders", "--queue-limit", "7", url=served.url)
    assert said("channel", "set", "orders", "--client-limit", "5", url=served.url)[0] == 0
    shown = one(run("channel", "show", "orders", "--json", url=served.url))
    assert (shown["client_limit"], shown["queue_limit"]) == (5, 7)


def test_removing_a_channel_counts_messages_of_both_priorities(served: ServedBroker) -> None:
    run("publish", "orders/1", "x", "--count", "2", url=served.url)
    run("publish", "orders/1", "x", "--high-priority", url=served.url)
    asked = run("channel", "rm", "orders", url=served.url)
    assert asked.returncode == 2
    assert complaint(asked).startswith("mqcore: removing channel orders loses 3 messages; add --yes to confirm")
    (removed,) = lines(run("channel", "rm", "orders", "--yes", "--json", url=served.url))
    assert removed["messages_lost"] == 3
