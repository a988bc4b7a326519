"""MQKS listeners with invalid bytes and requests, and with peers that do not read."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqcore
import programs
from mqcore import admin, errors
from mqks_peer import ERROR, MqksPeer
from served import clean_environment, serving, wait_until

Connect = Callable[..., MqksPeer]

LIMIT = 1 << 20


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(
        listen=["mqks://127.0.0.1:0", "mqks://127.0.0.1:0?line_bytes_max=1024"], admin="http://127.0.0.1:0", shards=2
    ) as broker:
        yield broker


@pytest.fixture
def connect(broker: mqcore.Broker) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        yield lambda listener=0: stack.enter_context(MqksPeer(broker.listeners[listener]))


@pytest.fixture
def peer(connect: Connect) -> MqksPeer:
    return connect()


@pytest.fixture
def bystander(connect: Connect) -> Iterator[MqksPeer]:
    """Another client, which is served before and after whatever happens to its neighbor."""
    bystander = connect()
    assert bystander.ask("b1 ping before") == b"b1 ok before"
    yield bystander
    assert bystander.ask("b2 ping after") == b"b2 ok after"


# --- lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("listener", "limit"), [(0, LIMIT), (1, 1024)])
def test_a_line_may_be_as_long_as_the_limit(connect: Connect, bystander: MqksPeer, listener: int, limit: int) -> None:
    peer = connect(listener)
    data = "x" * (limit - len("p1 ping "))
    assert peer.ask(f"p1 ping {data}") == f"p1 ok {data}".encode()


@pytest.mark.parametrize(("listener", "limit"), [(0, LIMIT), (1, 1024)])
def test_overlong_line_gets_an_error_and_closes_the_connection(
    broker: mqcore.Broker, connect: Connect, bystander: MqksPeer, listener: int, limit: int
) -> None:
    peer = connect(listener)
    peer.send(f"p1 ping {'x' * (limit - len('p1 ping ') + 1)}")
    (line,) = peer.rest()
    match = ERROR.match(line)
    assert match
    assert match[1] == b"p1"
    failed = broker.errors()[0]
    assert failed.id == match[2].decode()
    assert f"exceeds the limit of {limit}" in failed.why


def test_endless_line_gets_an_error_and_closes_the_connection(broker: mqcore.Broker, bystander: MqksPeer) -> None:
    with MqksPeer(broker.listeners[0]) as peer:
        deadline = time.monotonic() + 10
        cut = False
        while not cut:
            assert time.monotonic() < deadline, "the broker reads on and on"
            try:
                peer.send_bytes(b"x" * 65536)
            except (BrokenPipeError, ConnectionResetError):
                cut = True
    wait_until(lambda: bool(broker.errors()), what="the error")
    assert broker.errors()[0].request == "None"


def test_a_line_beyond_the_limit_does_what_came_before_it(broker: mqcore.Broker, bystander: MqksPeer) -> None:
    bystander.send("c1 consume --confirm q1 e1")
    assert bystander.line() == b"c1 ok "
    with MqksPeer(broker.listeners[1]) as peer:
        peer.send_bytes(b"m1 publish e1 kept\nm2 publish e1 " + b"x" * 2000 + b"\nm3 publish e1 lost\n")
        assert ERROR.match(peer.rest()[0])
    assert bystander.line() == b"c1 ok m1 event=e1 kept"


@pytest.mark.parametrize(
    "head", ["POST / HTTP/1.1\r\n", "POST / HTTP/1.1\n", "OPTIONS * HTTP/1.0\n", "PRI * HTTP/2.0\r\n"]
)
def test_http_request_closes_the_connection_before_its_body_is_read(
    broker: mqcore.Broker, connect: Connect, bystander: MqksPeer, head: str
) -> None:
    """Any web page can make a browser POST lines of its choice to this port."""
    bystander.send("c1 consume --confirm q1 e1")
    assert bystander.line() == b"c1 ok "
    peer = connect()
    peer.send_bytes(head.encode() + b"Host: 127.0.0.1\r\nContent-Type: text/plain\r\n\r\nm1 publish e1 forged\n")
    assert peer.is_cut()
    bystander.send("m2 publish e1 own")
    assert bystander.line() == b"c1 ok m2 event=e1 own", "the body was not executed"


def test_a_browser_cannot_publish_through_the_listener(broker: mqcore.Broker, bystander: MqksPeer) -> None:
    bystander.send("c1 consume --confirm q1 e1")
    assert bystander.line() == b"c1 ok "
    url = f"http://{broker.listeners[0].removeprefix('mqks://')}/"
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(urllib.request.Request(url, data=b"m1 publish e1 forged\n"), timeout=5)
    bystander.send("m2 publish e1 own")
    assert bystander.line() == b"c1 ok m2 event=e1 own"


def test_a_tab_costs_the_connection(peer: MqksPeer, bystander: MqksPeer) -> None:
    peer.send_bytes(b"a ping x\ty\n")
    assert peer.is_cut()


@pytest.mark.parametrize("byte", [*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F, 0x80, 0xFF])
def test_other_control_characters_are_data(peer: MqksPeer, byte: int) -> None:
    peer.send_bytes(b"p1 ping a" + bytes([byte]) + b"z\n")
    assert peer.line() == b"p1 ok a" + bytes([byte]) + b"z"


def test_control_characters_in_ids_are_escaped_in_the_log(broker: mqcore.Broker, peer: MqksPeer) -> None:
    peer.send_bytes(b"\x1b[31m\xff nothing here\n")
    match = ERROR.match(peer.line())
    assert match
    assert match[1] == b"\x1b[31m\xff"
    assert broker.errors()[0].request == "\\x1b[31m\\xff"


@pytest.mark.parametrize("line", ["", " ", "  ", "one", "two words", "two words "])
def test_line_of_fewer_than_three_words_gets_an_error_without_an_id(peer: MqksPeer, line: str) -> None:
    match = ERROR.match(peer.ask(line))
    assert match
    assert match[1] == b"None" or line == "  "
    assert peer.ask("p1 ping alive") == b"p1 ok alive"


def test_names_are_limited_to_255_bytes(peer: MqksPeer) -> None:
    fits, long = "n" * 255, "n" * 256
    assert peer.ask(f"{fits} ping x") == f"{fits} ok x".encode()
    assert ERROR.match(peer.ask(f"{long} ping x"))
    for line in (f"p publish {long} d", f"c consume q {long}", f"c consume {long} e", f"a ack {long} m"):
        assert ERROR.match(peer.ask(line)), line


def test_garbage_gets_errors_and_is_harmless(peer: MqksPeer, bystander: MqksPeer) -> None:
    payload = bytes(byte for byte in range(256) if byte not in (9, 10)) * 20
    peer.send_bytes(b"\n".join(payload[at : at + 77] for at in range(0, len(payload), 77)) + b"\nend ping now\n")
    lines = []
    while (line := peer.line()) != b"end ok now":
        lines.append(line)
    assert len(lines) > 50
    assert all(b" error " in line for line in lines)


# --- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x nosuchaction data", "unknown action `nosuchaction`"),
        ("x PUBLISH e d", "unknown action `PUBLISH`"),
        ("x publish e1", "publish requires an event and a message body"),
        ("x consume q1 --nonsense", "unknown flag `--nonsense` for consume"),
        ("x consume q1 --delete-queue-when-unused=soon", "--delete-queue-when-unused expects"),
        ("x consume q1 --delete-queue-when-unused=-1", "--delete-queue-when-unused expects"),
        ("x consume q1 --delete-queue-when-unused=inf", "--delete-queue-when-unused expects"),
        ("x rebind q1", "rebind requires"),
        ("x rebind q1 --nonsense e1", "unknown flag `--nonsense` for rebind"),
        ("x ack c1", "ack requires a consumer and a message id or --all"),
        ("x ack c1 m1 m2", "unexpected `m2`"),
        ("x reject c1", "reject requires a consumer and a message id or --all"),
        ("x _eval --worker=one len(state.queues)", "--worker expects the number of a worker"),
        ("x consume bad@name e1", "bad@name cannot be a queue"),
        ("x rebind @topic:a e1", "@topic:a cannot be a queue"),
    ],
)
def test_failed_request_gets_a_number_that_the_broker_explains(
    broker: mqcore.Broker, peer: MqksPeer, line: str, why: str
) -> None:
    error = peer.failed(line)
    failed = broker.errors()[0]
    assert (failed.id, failed.request) == (error, "x")
    assert why in failed.why
    assert peer.ask("p1 ping alive") == b"p1 ok alive"


def test_a_consume_that_fails_changes_nothing(peer: MqksPeer) -> None:
    peer.failed("c1 consume q1 e1 --nonsense")
    assert peer.ask("e1 _eval len(state.queues)") == b"e1 ok 0"


def test_a_rebind_of_a_missing_queue_is_kept_for_it(peer: MqksPeer) -> None:
    """As the original: messages are lost until a consumer connects, and the bindings are there then."""
    assert peer.ask("rb1 rebind --confirm q1 e1") == b"rb1 ok "
    assert peer.ask("m1 publish --confirm e1 lost") == b"m1 ok "
    assert peer.ask("c1 consume --confirm q1") == b"c1 ok "
    assert peer.ask("m2 publish e1 kept") == b"c1 ok m2 event=e1 kept"


@pytest.mark.parametrize("line", ["x ack --confirm nobody m1", "x reject --confirm nobody --all"])
def test_settling_for_an_unknown_consumer_is_answered_by_silence(peer: MqksPeer, line: str) -> None:
    peer.send(line)
    assert peer.ask("e1 _eval len(state.queues)") == b"e1 ok 0"
    assert peer.until_now() == []


def test_deleting_what_is_not_there_is_fine(peer: MqksPeer) -> None:
    assert peer.ask("dq1 delete_queue --confirm nothing") == b"dq1 ok "
    assert peer.ask("dq2 delete_queue --confirm no such name") == b"dq2 ok "


# --- connections ---------------------------------------------------------------------------------------------------


def test_a_half_closed_peer_is_answered_to_the_end(peer: MqksPeer) -> None:
    peer.send("c1 consume q1 e1", *(f"m{number} publish --confirm e1 d" for number in range(100)))
    peer.send_bytes(b"p1 ping without an end of its line")
    peer.half_close()
    lines = peer.rest()
    assert {f"m{number} ok ".encode() for number in range(100)} <= set(lines)
    assert b"p1 ok without an end of its line" in lines


def test_silent_peer_receives_nothing(peer: MqksPeer) -> None:
    peer.half_close()
    assert peer.is_cut()


def test_two_brokers_share_nothing(broker: mqcore.Broker, peer: MqksPeer) -> None:
    with mqcore.Broker(listen=["mqks://127.0.0.1:0"]) as second, MqksPeer(second.listeners[0]) as elsewhere:
        assert peer.ask("c1 consume --confirm q1 e1") == b"c1 ok "
        assert elsewhere.ask("m1 publish --confirm e1 d1") == b"m1 ok "
        assert elsewhere.ask("ev _eval len(state.queues)") == b"ev ok 0"
        assert peer.until_now() == []


def test_all_ports_of_a_broker_lead_to_the_same_queues(peer: MqksPeer, connect: Connect) -> None:
    assert peer.ask("c1 consume --confirm q1 e1") == b"c1 ok "
    connect(1).send("m1 publish e1 d1")
    assert peer.line() == b"c1 ok m1 event=e1 d1"


def test_a_broker_that_starts_again_has_forgotten_what_was_in_memory() -> None:
    broker = mqcore.Broker(listen=["mqks://127.0.0.1:0"])
    for _ in range(2):
        with broker, MqksPeer(broker.listeners[0]) as peer:
            assert peer.ask("ev _eval len(state.queues)") == b"ev ok 0"
            assert peer.ask("c1 consume --confirm q1 e1") == b"c1 ok "
            assert peer.ask("m1 publish e1 d1") == b"c1 ok m1 event=e1 d1"


def test_a_consumer_that_does_not_read_is_closed_and_loses_nothing() -> None:
    """Its unacknowledged messages go to another consumer, and no other consumer is delayed."""
    count, body = 1000, "x" * 16_384
    with mqcore.Broker(
        listen=["mqks://127.0.0.1:0"], output_bytes_max=256 * 1024, slow_consumer_timeout=2.0, shards=1
    ) as broker:
        slow = MqksPeer(broker.listeners[0])
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with slow, MqksPeer(broker.listeners[0]) as publisher:
            assert slow.ask("slow consume --confirm q1 e1 --manual-ack") == b"slow ok "
            for number in range(count):
                publisher.send(f"m{number} publish e1 {body}")
            assert publisher.ask("p1 ping alive") == b"p1 ok alive"
            wait_until(lambda: publisher.ask("e1 _eval len(state.consumers)") == b"e1 ok 0", what="the end of the slow")
            publisher.send("quick consume q1")
            seen = {line.split(b" ")[2] for line in publisher.lines(count)}
            assert seen == {f"m{number}".encode() for number in range(count)}


def test_publishes_over_the_rate_limit_get_an_error_with_and_without_confirmation() -> None:
    with (
        mqcore.Broker(listen=["mqks://127.0.0.1:0"], publish_limit="2/1h") as broker,
        MqksPeer(broker.listeners[0]) as peer,
    ):
        assert peer.ask("c1 consume --confirm q1 e1") == b"c1 ok "
        peer.send("m1 publish e1 a", "m2 publish e1 b", "p1 ping read")
        assert sorted(peer.lines(3)) == [b"c1 ok m1 event=e1 a", b"c1 ok m2 event=e1 b", b"p1 ok read"]
        for line in ("m3 publish e1 c", "m4 publish --confirm e1 d"):
            peer.failed(line)
            assert "publish limit reached; retry after" in broker.errors()[0].why


# --- where errors are reported --------------------------------------------------------------------------------------


def test_the_errors_page_tells_the_last_ones(broker: mqcore.Broker, peer: MqksPeer) -> None:
    ids = [peer.failed(f"x{number} nothing here") for number in range(5)]
    with urllib.request.urlopen(f"{broker.admin_url}/errors?limit=3", timeout=10) as page:
        content = json.load(page)
    assert [failed["id"] for failed in content["errors"]] == ids[:1:-1]
    assert content["limit"] == 3
    assert broker.admin_url is not None
    assert admin.errors(broker.admin_url, limit=3) == broker.errors(3)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"{broker.admin_url}/errors?limit=some", timeout=10)


def test_errors_of_an_admin_side_that_is_none_are_typed(broker: mqcore.Broker) -> None:
    with pytest.raises(errors.ConfigError, match="is not a URL of an admin side"):
        admin.errors("mqks://127.0.0.1:1")
    with pytest.raises(errors.ConnectFailed):
        admin.errors("http://127.0.0.1:1", timeout=1)
    port = broker.listeners[0].rpartition(":")[2]
    with pytest.raises((errors.ConnectFailed, errors.BadAnswer)):
        admin.errors(f"http://127.0.0.1:{port}", timeout=1)


def test_only_the_last_thousand_errors_are_kept(broker: mqcore.Broker, peer: MqksPeer) -> None:
    peer.send(*(f"x{number} nothing here" for number in range(1100)))
    peer.lines(1100)
    kept = broker.errors(5000)
    assert (len(kept), kept[0].request, kept[-1].request) == (1000, "x1099", "x100")


def test_a_served_broker_logs_errors_and_the_command_line_lists_them() -> None:
    arguments = ("--listen", "mqks://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving(*arguments, "--log-format", "json") as served:
        with MqksPeer(f"mqks://{served.ready['listeners']['mqks']}") as peer:
            error = peer.failed("x1 nothing here")
        wait_until(lambda: any(error in line for line in served.stderr_lines), what="the log line")
        (logged,) = [json.loads(line) for line in served.stderr_lines if error in line]
        assert "unknown action `nothing`" in json.dumps(logged)

        def command(*more: str) -> subprocess.CompletedProcess[str]:
            line = [sys.executable, "-m", "mqcore", "errors", "--url", served.admin_url, *more]
            return programs.run(line, capture_output=True, text=True, env=clean_environment(), check=False)

        listed = command()
        assert listed.stdout.splitlines()[1].split("\t")[1:3] == [error, "x1"]
        found = json.loads(command(error, "--json").stdout)
        assert found["schema"] == "mqcore.errors/1"
        assert [failed["request"] for failed in found["errors"]] == ["x1"]
        missing = command("20260101000000000000abcd")
        assert missing.returncode != 0
        assert "error 20260101000000000000abcd not found" in missing.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")
def test_a_unix_socket_speaks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mqks.sock"
    with mqcore.Broker(listen=[f"mqks+unix://{path}"]) as broker, MqksPeer(broker.listeners[0]) as peer:
        assert peer.ask("p1 ping here") == b"p1 ok here"
