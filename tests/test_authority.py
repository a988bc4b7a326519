"""Users and tokens from the command line, authenticators in Python, and handshakes that must never get in."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mqcore
import programs
from depth import by_depth
from mqcore import errors
from mqcore._core import AuthorityStore, hash_password
from mqcore.authority import Action, Authority, Hello, Identity
from mqcore.client import ClientOptions, without_credentials
from mqcore.config import AuthorityOptions, BrokerConfig, UserOptions
from mqcore.sync import connect
from served import clean_environment, serving, wait_until
from throttr_peer import Cut, ThrottrPeer
from tmqp_peer import ACCEPTED, PREAMBLE, QUEUE, RawFrame, TmqpPeer


def cli(*arguments: str, given: str = "", code: int = 0) -> str:
    """Run the program; what it printed on stdout."""
    ran = programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        input=given,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=50,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout


def address(broker: mqcore.Broker) -> tuple[str, int]:
    host, port = broker.listeners[0].removeprefix("tmqp://").rsplit(":", 1)
    return host, int(port)


def knock(broker: mqcore.Broker, **shown: str) -> int:
    with TmqpPeer(*address(broker)) as peer:
        return peer.hello(**shown).content_type


def test_the_command_line_adds_lists_and_removes_users_and_tokens(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path))
    cli("user", "add", "ann", "--allow", "push:orders/*", "--from", "127.0.0.0/8", *place, given="correct horse\n")
    cli("user", "add", "ann", *place, given="correct horse\n", code=2)
    cli("user", "add", "short", *place, given="2short\n", code=2)
    cli("user", "add", "bad", "--allow", "dance", *place, given="correct horse\n", code=2)
    (user,) = json.loads(cli("user", "ls", "--json", *place))["users"]
    assert (user["name"], user["allow"], user["addresses"]) == ("ann", ["push:orders/*"], ["127.0.0.0/8"])
    token = cli("token", "create", "deploy", "--allow", "*", "--expires", "30d", *place).strip()
    listed = cli("token", "ls", "--json", *place)
    (kept,) = json.loads(listed)["tokens"]
    assert token.split("_")[1] == kept["id"]
    assert token.split("_", 2)[2] not in listed
    file = tmp_path / "authority.json"
    assert file.stat().st_mode & 0o077 == 0
    assert "correct horse" not in file.read_text()
    assert token.split("_", 2)[2] not in file.read_text()
    cli("user", "rm", "ann", *place, code=2)
    cli("user", "rm", "ann", "--yes", *place)
    cli("user", "rm", "ann", "--yes", *place, code=3)
    cli("token", "revoke", kept["id"], *place)
    cli("token", "revoke", kept["id"], *place, code=3)


def test_a_running_broker_takes_up_what_the_command_line_changes(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path))
    first = cli("token", "create", "first", "--allow", "*", *place).strip()
    with mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path)) as broker:
        assert knock(broker) == 401
        assert knock(broker, Client_Token=first) == 202
        cli("user", "add", "ann", "--allow", "*", *place, given="correct horse\n")
        wait_until(lambda: knock(broker, Client_Token="ann:correct horse") == 202, what="the new user")
        with TmqpPeer(*address(broker)) as peer:
            assert peer.hello(Client_Token=first).content_type == 202
            cli("token", "revoke", first.split("_")[1], *place)
            assert peer.is_closed_within(10)
        cli("user", "passwd", "ann", *place, given="another horse\n")
        wait_until(lambda: knock(broker, Client_Token="ann:another horse") == 202, what="the new password")


def test_a_denied_topic_publish_that_asked_for_no_answer_is_in_the_audit_log_and_counted(
    tmp_path: Path,
) -> None:
    store = AuthorityStore.of_data_dir(tmp_path)
    _, token = store.add_token(json.dumps({"name": "t", "allow": ["publish:orders.*"]}))
    _, admin = store.add_token(json.dumps({"name": "a", "allow": ["*"]}))
    with mqcore.Broker(listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0", data_dir=str(tmp_path)) as broker:

        def denied() -> int:
            asked = urllib.request.Request(f"{broker.admin_url}/metrics", headers={"Authorization": f"Bearer {admin}"})
            with urllib.request.urlopen(asked, timeout=5) as page:
                lines = page.read().decode().splitlines()
            (line,) = (line for line in lines if line.startswith("mqcore_actions_denied_total"))
            return int(line.rpartition(" ")[2])

        before = denied()
        with TmqpPeer(*address(broker)) as peer, TmqpPeer(*address(broker)) as listener:
            assert peer.hello(Client_Token=token).content_type == 202
            assert listener.hello(Client_Token=admin).content_type == 202
            for topic in ("invoices.new", "orders.new"):
                assert listener.ask(601, f"@topic:{topic}").content_type == 0
                peer.send(RawFrame(kind=QUEUE, target=f"@topic:{topic}".encode(), payload=topic.encode()))
            # The one that is allowed comes, and nothing else does: not to either of them.
            assert listener.receive().payload == b"orders.new"
            assert denied() == before + 1
            peer.send(RawFrame(kind=QUEUE, id=b"i", target=b"@topic:orders.new", pending_acknowledge=True))
            assert peer.receive().id == b"i"
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        (line,) = (line for line in lines if line["event"] == "action" and line["verdict"] == "denied")
        assert (line["action"], line["resource"], line["protocol"]) == ("publish", "invoices.new", "tmqp")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_broker_alone_reads_users_again_on_sighup_and_takes_an_authority(tmp_path: Path) -> None:
    (tmp_path / "gatekeeper.py").write_text(
        "from mqcore.authority import Authority, Identity\n"
        "class Gatekeeper(Authority):\n"
        "    def authenticate(self, hello):\n"
        "        return Identity('friend') if hello.token == 'friend' else hello.identity\n"
        "gatekeeper = Gatekeeper()\n"
    )
    store = AuthorityStore.of_data_dir(tmp_path)
    listen = ("--listen", "tmqp://127.0.0.1:0")
    with serving(*listen, "--app", "gatekeeper:gatekeeper", "--data-dir", str(tmp_path), cwd=tmp_path) as served:

        def answer(token: str) -> int:
            with TmqpPeer(*served.address) as peer:
                return peer.hello(Client_Token=token).content_type

        assert [answer("friend"), answer("foe")] == [202, 401]
        _, token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: answer(token) == 202, what="the new token")
        (tmp_path / "authority.json").write_text("{")
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("users and tokens" in line for line in served.stderr_lines), what="the complaint")
        assert answer(token) == 202
        assert token not in "".join(served.stderr_lines)


def test_users_of_the_configuration_log_in(tmp_path: Path) -> None:
    hashed = cli("user", "hash", given="correct horse\n").strip()
    file = tmp_path / "mqcore.toml"
    file.write_text(
        f"""
        listen = ["tmqp://127.0.0.1:0"]
        [authority]
        audit = "off"
        anonymous = ["push:public/*"]
        [[user]]
        name = "ann"
        password_hash = "{hashed}"
        allow = ["*"]
        """
    )
    config = BrokerConfig.load(file, environ={})
    assert hashed not in repr(config)
    with mqcore.Broker(config) as broker:
        url = broker.listeners[0]
        with connect(url, user="ann", password="correct horse", name="known") as client, connect(url, name="unknown"):
            authenticated = {known.name: known.is_authenticated for known in client.clients()}
            assert authenticated == {"known": True, "unknown": False}
        with connect(url.replace("tmqp://", "tmqp://ann:correct%20horse@")):
            pass
        with connect(url):
            pass
        with pytest.raises(errors.AuthFailed):
            connect(url, user="ann", password="incorrect horse").close()


@pytest.mark.parametrize(
    "table",
    [
        {"name": "ann", "allow": ["dance"]},
        {"name": "a:b"},
        {"name": "ann", "password_hash": "hunter2"},
        {"name": "ann", "addresses": ["everywhere"]},
        {"name": "ann", "colour": "red"},
        {"allow": ["*"]},
    ],
)
def test_a_user_that_cannot_be_is_refused_with_a_clear_error(table: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        mqcore.Broker(BrokerConfig.load(None, environ={}, user=[table]))
    assert "hunter2" not in str(refused.value)


def test_elsewhere_than_on_loopback_a_broker_without_users_does_not_start() -> None:
    with pytest.raises(errors.ConfigError, match="mqcore user add"):
        mqcore.Broker(listen="tmqp://0.0.0.0:0").start()
    user = UserOptions(name="ann", allow=("*",), password_hash=hash_password("correct horse"))
    with mqcore.Broker(listen="tmqp://0.0.0.0:0", user=[user], authority=AuthorityOptions(audit="off")):
        pass


def test_credentials_are_taken_out_of_urls_and_out_of_sight() -> None:
    urls, options = without_credentials(["tmqp://mqt_1_2@h:1", "tmqp://mqt_1_2@[::1]:2"], ClientOptions())
    assert urls == ["tmqp://h:1", "tmqp://[::1]:2"]
    assert options.token == "mqt_1_2"
    assert "mqt_1_2" not in repr(options)
    shown = ClientOptions(user="ann", password="correct horse")
    assert "horse" not in repr(shown)
    for urls, options in [
        (["tmqp://a@h", "tmqp://b@h"], ClientOptions()),
        (["tmqp://a@h"], ClientOptions(token="b")),
    ]:
        with pytest.raises(errors.ConfigError):
            without_credentials(urls, options)
    for wrong in ({"user": "a"}, {"password": "b"}, {"user": "a", "password": "b", "token": "c"}):
        with pytest.raises(errors.ConfigError):
            ClientOptions(**wrong)  # type: ignore[arg-type]


class Judge(Authority):
    """Says what tokens tell it to say."""

    timeout = 1.5
    cache_seconds = 0

    def __init__(self) -> None:
        self.seen: list[Hello] = []
        self.asked: list[tuple[str, Action, str]] = []
        self.release = threading.Event()

    def authenticate(self, hello: Hello) -> Any:
        self.seen.append(hello)
        match hello.token:
            case "good":
                return Identity("friend", allow=("push", "join", "receive"))
            case "later":
                return self.later()
            case "asleep":
                return asyncio.sleep(60)
            case "blocked":
                self.release.wait(5)
                return Identity("late")
            case "raises":
                raise RuntimeError("no")
            case "raises later":
                return self.raises()
            case "nonsense":
                return "friend"
            case "wrong rules":
                return Identity("friend", allow=("dance",))
            case "true":
                return True
        return None

    async def later(self) -> Identity:
        await asyncio.sleep(0.01)
        return Identity("friend")

    async def raises(self) -> Identity:
        await asyncio.sleep(0)
        raise RuntimeError("no")

    def authorize(self, client: Any, action: Action, resource: str) -> Any:
        self.asked.append((client.id, action, resource))
        if resource.startswith("raises"):
            raise RuntimeError("no")
        if resource.startswith("nonsense"):
            return "yes"
        if resource.startswith("later"):
            return self.maybe(True)
        if resource.startswith("never"):
            return self.maybe(False)
        if resource.startswith("asleep"):
            return asyncio.sleep(60)
        return not resource.startswith("denied")

    async def maybe(self, answer: bool) -> bool:
        await asyncio.sleep(0.01)
        return answer


@pytest.fixture
def judge(caplog: pytest.LogCaptureFixture) -> Judge:
    caplog.set_level(logging.CRITICAL, logger="mqcore.authority")
    return Judge()


@pytest.fixture
def judged(judge: Judge) -> Iterator[mqcore.Broker]:
    broker = mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        authority=AuthorityOptions(audit="off"),
    )
    broker.authority = judge
    with broker:
        yield broker
        judge.release.set()


def test_an_authenticator_says_who_gets_in(judged: mqcore.Broker, judge: Judge) -> None:
    assert knock(judged, Client_Token="good", Client_Name="n", Client_Type="t", Other="x") == 202
    hello = judge.seen[0]
    assert (hello.protocol, hello.name, hello.kind, hello.identity) == ("tmqp", "n", "t", None)
    assert hello.properties == {"Other": "x"}
    assert hello.address is not None
    assert hello.address.startswith("127.0.0.1:")
    assert "good" not in repr(hello)
    assert knock(judged, Client_Token="later") == 202
    assert knock(judged, Client_Token="ann:secret") == 401
    assert (judge.seen[-1].user, judge.seen[-1].password, judge.seen[-1].token) == ("ann", "secret", None)


@pytest.mark.parametrize(
    "token", ["", "bad", "asleep", "raises", "raises later", "nonsense", "wrong rules", "true", "blocked"]
)
def test_failing_authenticator_denies_access(judged: mqcore.Broker, judge: Judge, token: str) -> None:
    started = time.monotonic()
    assert knock(judged, **({"Client_Token": token} if token else {})) == 401
    assert time.monotonic() - started < 5
    judge.release.set()
    # And the next one is not held up by it.
    wait_until(lambda: knock(judged, Client_Token="good") == 202)


@pytest.mark.parametrize(
    ("channel", "allowed"),
    [
        ("fine", True),
        ("later", True),
        ("denied", False),
        ("never", False),
        ("raises", False),
        ("nonsense", False),
        ("asleep", False),
    ],
)
def test_an_authorizer_says_what_is_allowed_and_nothing_else_is(
    judged: mqcore.Broker, judge: Judge, channel: str, allowed: bool
) -> None:
    with TmqpPeer(*address(judged)) as peer:
        assert peer.hello(Client_Token="good", Client_Id="c").content_type == 202
        assert peer.ask(601, channel).content_type == (0 if allowed else 401)
        # Rules hold whatever an authorizer would say, which is not even asked.
        assert peer.ask(631).content_type == 401
    assert ("c", Action.JOIN, channel) in judge.asked
    assert all(action is not Action.ADMINISTER for _, action, _ in judge.asked)


def test_authenticator_receives_the_brokers_identity(tmp_path: Path) -> None:
    class Second(Authority):
        def authenticate(self, hello: Hello) -> Identity | None:
            return hello.identity if hello.id != "unwelcome" else None

    store = AuthorityStore.of_data_dir(tmp_path)
    token_id, token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path))
    broker.authority = Second()
    with broker:
        assert knock(broker, Client_Token="wrong") == 401
        assert knock(broker) == 401
        assert knock(broker, Client_Token=token, Client_Id="unwelcome") == 401
        with TmqpPeer(*address(broker)) as peer:
            assert peer.hello(Client_Token=token).content_type == 202
            store.remove_token(token_id)
            broker.reload_authority()
            assert peer.is_closed_within(10)


def test_an_authority_is_registered_before_the_start_and_is_one() -> None:
    broker = mqcore.Broker()
    with pytest.raises(TypeError):
        broker.authority = "everybody"  # type: ignore[assignment]
    with broker, pytest.raises(RuntimeError):
        broker.authority = Judge()


@pytest.mark.parametrize(
    ("anonymous", "mine", "other"),
    [
        (("push", "publish"), False, False),
        (("limit:mine/*",), True, False),
        (("limit:mine/*", "limit:oth*"), True, True),
        (("limit",), True, True),
    ],
)
def test_throttr_clients_may_use_limits_that_their_rules_cover(
    anonymous: tuple[str, ...], mine: bool, other: bool
) -> None:
    user = UserOptions(name="ann", allow=("*",))
    options = AuthorityOptions(audit="off", anonymous=anonymous)
    with (
        mqcore.Broker(listen="throttr://127.0.0.1:0", user=[user], authority=options) as broker,
        ThrottrPeer(throttr_address(broker)) as peer,
    ):
        for key, allowed in ((b"mine/key", mine), (b"other", other)):
            assert peer.status(peer.insert(key, 5, 60)) == allowed
            assert (peer.query(key) is not None) == allowed


def test_throttr_rejects_clients_without_credentials_if_anonymous_access_is_denied() -> None:
    user = UserOptions(name="ann", allow=("*",))
    with (
        mqcore.Broker(listen="throttr://127.0.0.1:0", user=[user], authority=AuthorityOptions(audit="off")) as broker,
        ThrottrPeer(throttr_address(broker)) as peer,
        pytest.raises((Cut, ConnectionError)),
    ):
        peer.status(peer.insert(b"key", 5, 60))


def throttr_address(broker: mqcore.Broker) -> tuple[str, int]:
    host, port = broker.listeners[0].removeprefix("throttr://").partition("?")[0].rsplit(":", 1)
    return host, int(port)


class Keys(Authority):
    """Accepts all clients, and permits keys that begin with `mine`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def authorize(self, client: Any, action: Action, resource: str) -> bool:
        self.asked.append((action, resource))
        return resource.startswith("mine")


def test_an_authorizer_in_python_is_asked_about_limits_and_answers_keep_their_order() -> None:
    keys = Keys()
    broker = mqcore.Broker(listen="throttr://127.0.0.1:0", authority=AuthorityOptions(audit="off"))
    broker.authority = keys
    with broker, ThrottrPeer(throttr_address(broker)) as peer:
        requests = [
            peer.insert(b"mine/%d" % number if number % 3 else b"other/%d" % number, 5, 60) for number in range(300)
        ]
        peer.send(b"".join(requests))
        assert list(peer.read(300)) == [int(number % 3 != 0) for number in range(300)]
        assert ("limit", "mine/1") in keys.asked
        assert ("limit", "other/0") in keys.asked
        # The counters of all clients need more rights than a client's own counters.
        assert peer.ask(b"\x07", 9) == b"\x01" + bytes(8)
        assert ("limit", "*") in keys.asked
        rules = [peer.rule(name, 5, 1, 5) for name in (b"mine/x", b"other/x")]
        both = peer.ask(bytes([0xC1, 0, 2]) + b"".join(rules), 2 + 2 * 21)
        assert both[0] == 2, "impossible: one of them is not allowed"
        assert peer.ask(bytes([0xC0, 0]) + rules[0], 21)[0] == 1
        # The broker also answers requests sent before the peer closed its side, even if it must call the guard.
        peer.send(peer.keyed(2, b"mine/new") + peer.keyed(2, b"other/new") + peer.insert(b"mine/late", 1, 60))
        peer.socket.shutdown(1)
        assert peer.read(3) == b"\x00\x00\x01"
        assert peer.is_cut()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[mqcore.Broker, str]]:
    directory = tmp_path_factory.mktemp("closed")
    _, token = AuthorityStore.of_data_dir(directory).add_token(json.dumps({"name": "t", "allow": ["*"]}))
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(directory), auto_create_channels=True)
    with broker:
        yield broker, token


def frame(kind: int, flags: int, hops: int, content_type: int, texts: tuple[bytes, ...], body: bytes) -> bytes:
    sizes = (len(text) for text in texts)
    head = struct.pack("<BBBBBHB", kind | flags, hops, *sizes, content_type, len(body))
    return head + b"".join(texts) + body


FRAMES = st.builds(
    frame,
    kind=st.integers(0, 63),
    flags=st.sampled_from([0, 64, 128, 192]),
    hops=st.sampled_from([0x10, 0x50, 0x90, 0x00, 0x30, 0x1F]),
    content_type=st.sampled_from([0, 1, 101, 101, 101, 202, 601, 603, 610, 631, 65535]),
    texts=st.tuples(st.binary(max_size=8), st.binary(max_size=8), st.sampled_from([b"", b"secret", b"orders", b"*"])),
    body=st.one_of(
        st.binary(max_size=60),
        st.sampled_from([b"CONNECT /\r\nClient-Id: x\r\n", b"CONNECT /\r\nClient-Token: mqt_\r\n", b"NONE /\r\n"]),
    ),
)


@settings(max_examples=by_depth(40, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.sampled_from([PREAMBLE, PREAMBLE, PREAMBLE, b"", PREAMBLE[:5]]), frames=st.lists(FRAMES, max_size=6))
def test_no_handshake_without_good_credentials_ever_gets_in(
    closed: tuple[mqcore.Broker, str], start: bytes, frames: list[bytes]
) -> None:
    broker, _ = closed
    with socket.create_connection(address(broker), timeout=5) as stream:
        try:
            stream.sendall(start + b"".join(frames))
            stream.shutdown(socket.SHUT_WR)
            answer = b""
            while part := stream.recv(65536):
                answer += part
        except ConnectionError:
            answer = b""
    # A Hello that is accepted is answered by content type 202; nothing else of what a stranger gets has it.
    assert answer[13:15] != struct.pack("<H", 202)
    stats = broker.stats()
    assert not stats.clients
    assert not stats.channels


def test_beside_all_that_a_good_handshake_gets_in(closed: tuple[mqcore.Broker, str]) -> None:
    broker, token = closed
    assert knock(broker, Client_Token=token) == 202


def test_an_unknown_user_is_checked_as_long_as_a_known_one(closed: tuple[mqcore.Broker, str], tmp_path: Path) -> None:
    AuthorityStore.of_data_dir(tmp_path).add_user(json.dumps({"name": "ann", "allow": []}), "correct horse")
    with mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path)) as broker:

        def took(name: str) -> float:
            started = time.perf_counter()
            assert knock(broker, Client_Token=f"{name}:incorrect horse") == 401
            return time.perf_counter() - started

        times = [(took("ann"), took("bob")) for _ in range(4)]
        known, unknown = (min(column) for column in zip(*times, strict=True))
        # The hash is nearly all of it; a quick no for strangers would be a hundredth of it.
        assert unknown > known / 3
        assert known > unknown / 3


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_token_expires_when_the_system_clock_passes_its_time(tmp_path: Path) -> None:
    """A suspended machine, or a clock set forward, ends tokens of connections and of new logins."""
    shim, offset, data = tmp_path / "clock.so", tmp_path / "offset", tmp_path / "data"
    offset.write_text("0")
    source = Path(__file__).with_name("system_clock.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    token = cli("token", "create", "deploy", "--allow", "*", "--expires", "30d", "--data-dir", str(data)).strip()
    environment = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(offset)}
    with serving("--data-dir", str(data), "--auto-create", environment=environment) as broker:
        with TmqpPeer(*broker.address) as early:
            assert early.hello(Client_Token=token).content_type == ACCEPTED
            offset.write_text(str(31 * 24 * 3600))
            assert early.is_closed_within(10), "the open connection ends"
        with TmqpPeer(*broker.address) as late:
            assert late.hello(Client_Token=token).content_type != ACCEPTED
        offset.write_text("0")
        with TmqpPeer(*broker.address) as again:
            assert again.hello(Client_Token=token).content_type == ACCEPTED, "the test moved the clock and nothing else"
