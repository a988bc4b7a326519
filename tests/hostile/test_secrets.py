"""Secrets: credentials and payloads are in no log line, admin page, metric, error, file or process argument."""

from __future__ import annotations

import base64
import contextlib
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqcore
import programs
from damaged_files import SAVING
from eventmq_peer import GREETING, EventmqPeer, ready
from hostile.attacks import LISTENERS, address
from mm2_peer import MM2Peer
from mqcore import errors
from mqks_peer import MqksPeer
from served import ServedBroker, clean_environment, serving
from test_unfinished_input import url
from throttr_peer import ThrottrPeer
from tmqp_peer import PeerClosed, TmqpPeer

PASSWORD = "canary-password-of-ann"
WRONG = "canary-of-a-wrong-password"
NODE = "canary-token-of-nodes"
UPSTREAM = "canary-token-for-an-upstream-broker"
PAYLOAD = "canary-payload"
PAGES = (
    "/livez",
    "/readyz",
    "/metrics?queues=1",
    "/overview",
    "/attention",
    "/queues",
    "/connections",
    "/totals",
    "/errors",
    "/schedules",
    "/trace/m-1",
    "/nowhere",
)
CONFIG = f"""
[node]
name = "top"
token = "{NODE}"
[[upstream]]
url = "tmqp://127.0.0.1:1"
token = "{UPSTREAM}"
"""


def mq(*arguments: str, given: str = "") -> str:
    """Run the program; everything that it prints."""
    done = programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        input=given, capture_output=True, text=True, timeout=60, check=False, env=clean_environment(),
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[ServedBroker, str]]:
    """A broker with a user, a token and nodes, and the token."""
    data = tmp_path / "data"
    mq("user", "add", "ann", "--allow", "*", "--data-dir", str(data), given=f"{PASSWORD}\n")
    token = mq("token", "create", "deploy", "--allow", "*", "--data-dir", str(data)).split()[0]
    assert token.startswith("mqt_"), token
    config = tmp_path / "mqcore.toml"
    config.write_text(CONFIG, encoding="utf-8")
    listen = [argument for each in LISTENERS if "tmqps" not in each for argument in ("--listen", each)]
    more = ("--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--config", str(config))
    with serving(*listen, *more, "--auto-create") as running:
        yield running, token


def tmqp(broker: ServedBroker, secret: str) -> None:
    basic = base64.b64encode(f"ann:{secret}".encode()).decode()
    for shown in (f"Basic {basic}", f"Bearer {secret}"):
        with contextlib.suppress(PeerClosed), TmqpPeer(*address(broker, "tmqp")) as peer:
            peer.hello(Client_Token=shown)
    # In front of a frame that cannot be.
    with contextlib.suppress(PeerClosed), TmqpPeer(*address(broker, "tmqp")) as peer:
        peer.socket.sendall(b"TMQP/2.0" + secret.encode() * 3)
        peer.is_closed_within(10)
    with contextlib.suppress(PeerClosed), TmqpPeer(*address(broker, "tmqp")) as peer:
        peer.hello(Mqcore_Node="1", Client_Type="server", Client_Id="south", Client_Token=secret)


def mqks(broker: ServedBroker, secret: str) -> None:
    for line in (f"a auth {secret}", f"a auth ann {secret}"):
        with MqksPeer(url(broker, "mqks")) as peer:
            peer.send(line, "b ping x")
            peer.half_close()
            peer.rest()


def mm2(broker: ServedBroker, secret: str) -> None:
    with MM2Peer(url(broker, "mm2")) as peer, contextlib.suppress(AssertionError):
        peer.open("pub-sub", f"x-mqcore:token={secret}")
        peer.leave()


def throttr(broker: ServedBroker, secret: str) -> None:
    with ThrottrPeer(address(broker, "throttr"), width=4) as peer:
        peer.send(peer.keyed(2, secret.encode()))
        peer.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            peer.socket.recv(100)


def emqp(broker: ServedBroker, secret: str) -> None:
    for shown in (secret, f"ann:{secret}"):
        with EventmqPeer(url(broker, "emqp-frontend"), shakes=False) as peer:
            peer.send_bytes(GREETING + ready(b"DEALER", token=shown))
            peer.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while peer.socket.recv(1 << 16):
                    pass


def http(broker: ServedBroker, secret: str) -> list[str]:
    """Admin pages as this credential sees them."""
    pages = PAGES if secret.startswith("mqt_") and WRONG not in secret else ("/overview",)
    basic = base64.b64encode(f"ann:{secret}".encode()).decode()
    seen = []
    for shown in (f"Bearer {secret}",) if secret.startswith("mqt_") else (f"Basic {basic}",):
        for page in (*pages, f"/overview?token={secret}"):
            request = urllib.request.Request(broker.admin_url + page, headers={"Authorization": shown})
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    seen.append(answer.read().decode())
            except urllib.error.HTTPError as error:
                seen.append(error.read().decode())
    # The answer names the unknown page, but the log must not.
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(f"{broker.admin_url}/{secret}", timeout=10).close()
    return seen


PEERS: tuple[Callable[[ServedBroker, str], None], ...] = (tmqp, mqks, mm2, throttr, emqp)


async def test_no_secret_is_shown_or_stored(broker: tuple[ServedBroker, str], tmp_path: Path) -> None:
    running, token = broker
    secret = token.split("_", 2)[2]
    seen = []
    for shown in (token, PASSWORD, WRONG, f"mqt_0123456789ab_{WRONG}"):
        for peer in PEERS:
            peer(running, shown)
        seen += http(running, shown)
    async with mqcore.connect(running.url, token=token) as client:
        await client.declare("work", 1, SAVING)
        await client.publish("work/1", PAYLOAD, id="m-1", headers={"Key": PAYLOAD})
        seen.append(repr(client))
        seen += [repr(one) for one in await client.clients()]
    for wrong in (f"ann:{WRONG}", f"mqt_0123456789ab_{WRONG}"):
        with pytest.raises(errors.MqcoreError) as failure:
            async with mqcore.connect(running.url, token=wrong):
                pass
        seen += [str(failure.value), repr(failure.value)]
    seen += http(running, token)
    pages = "".join(seen)
    assert '"queue":"work/1"' in pages, "the token may read the pages"
    arguments = command_line(running)
    assert running.terminate() == 0
    log = "".join(running.stderr_lines)
    assert "ready" in log or "listen" in log or "closed" in log
    shown_to_all = {"page or error": pages, "log": log, "process argument": arguments}
    for place, text in shown_to_all.items():
        for canary in (secret, PASSWORD, WRONG, NODE, UPSTREAM):
            assert canary not in text, (place, canary, line_of(text, canary))
            assert base64.b64encode(f"ann:{canary}".encode()).decode() not in text, (place, canary)
    assert PAYLOAD not in log, line_of(log, PAYLOAD)
    assert PAYLOAD not in pages, line_of(pages, PAYLOAD)
    check_files(tmp_path / "data", (secret, PASSWORD, WRONG, NODE, UPSTREAM))
    assert secret not in mq("token", "ls", "--data-dir", str(tmp_path / "data"))


def command_line(broker: ServedBroker) -> str:
    """Arguments of the process, which every user of the machine can read."""
    return Path(f"/proc/{broker.process.pid}/cmdline").read_bytes().decode()


def check_files(directory: Path, secrets: tuple[str, ...]) -> None:
    """No file of the data directory has one of the secrets."""
    for path in directory.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in secrets:
            assert secret.encode() not in content, (path, secret)


def line_of(text: str, part: str) -> str:
    """Text around it, for the message of a failure."""
    at = text.find(part)
    return text[max(at - 200, 0) : at + 200]


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="limits of a process are read from /proc")
def test_broker_keeps_the_limit_that_prevents_core_dumps() -> None:
    """It raises its limit of open files, and no other one."""
    with serving(under=("sh", "-c", 'ulimit -c 0; exec "$@"', "sh")) as broker:
        limits = Path(f"/proc/{broker.process.pid}/limits").read_text(encoding="ascii")
    (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]
