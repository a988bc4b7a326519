"""Changes over the admin side: moves of messages, purges, removals, and who may make them."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depth import by_depth, choices
from mqcore import QueueOptions, QueueStatus, admin, errors, sync
from mqcore._core import AuthorityStore
from mqcore.sync import Client
from served import ServedBroker, serving, wait_until
from test_cli import mqcore as cli
from test_cli import one

SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once", request_acknowledge=True)
WORK = QueueOptions(
    status=QueueStatus.ROUND_ROBIN, delivery_handler="at-least-once", request_acknowledge=True, put_back_limit=0
)

DEAD_LETTERS = by_depth(6_000, 100_000)
KILLS = 10


def new_token(data_dir: Path, name: str, *allow: str) -> str:
    """A new token of a data directory."""
    _, token = AuthorityStore.of_data_dir(data_dir).add_token(json.dumps({"name": name, "allow": list(allow)}))
    return token


class Place:
    """A broker with its data directory and tokens."""

    def __init__(self, broker: ServedBroker, tokens: dict[str, str]) -> None:
        self.broker = broker
        self.url = broker.admin_url
        self.tokens = tokens
        self.token = tokens["all"]

    def connect(self) -> Client:
        """A client that may do everything."""
        return sync.connect(self.broker.url, token=self.token)

    def ask(self, method: str, path: str, body: Any = None, *, who: str | None = "all") -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer."""
        text = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, text, method=method)
        if who is not None:
            request.add_header("Authorization", f"Bearer {self.tokens[who]}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)["error"]

    def contents(self, queue: str) -> admin.QueueState:
        """A queue as the admin side shows it, once it exists: the broker creates dead-letter queues on first use."""

        def found() -> list[admin.QueueState]:
            page = admin.queues(self.url, matching=queue, token=self.token)
            return [found for found in page.queues if found.queue == queue]

        wait_until(lambda: bool(found()), what=f"the listing of {queue}")
        return found()[0]


RULES = {
    "all": ("*",),
    "viewer": ("inspect",),
    "metrics": ("inspect:/metrics",),
    "orders": ("administer:/queues/orders/*", "push:orders/*"),
    "client": ("push", "pull", "join"),
    "planner": ("inspect:/access", "administer:/schedules/*"),
}
PARTS = [
    "audit",
    "connections",
    "drain",
    "handlers",
    "jobs",
    "limits",
    "policies",
    "queues",
    "routers",
    "schedules",
    "tokens",
    "user changes",
    "users",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with users."""
    data = tmp_path_factory.mktemp("changes") / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, *rules) for name, rules in RULES.items()}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--auto-create") as broker:
        yield Place(broker, tokens)


def fail_all(client: Client, queue: str, bodies: list[str]) -> None:
    """Publish messages that a consumer rejects for good."""
    channel, _, number = queue.partition("/")
    client.publish_many(queue, bodies)
    with client.queue(channel, int(number)).consume(str) as messages:
        for _, message in zip(bodies, messages, strict=False):
            message.nack("broken")


def bodies_in(client: Client, queue: str, most: int = 1_000) -> list[str]:
    """Bodies of the messages of a pull queue, which they leave."""
    channel, _, number = queue.partition("/")
    with client.join(channel):
        found = client.queue(channel, int(number)).pull(most, str)
        for message in found:
            message.ack()
        return [message.body for message in found]


def test_dead_letters_return_to_the_queues_they_come_from(place: Place) -> None:
    with place.connect() as client:
        for number in (1, 2):
            client.declare("orders", number, WORK)
        fail_all(client, "orders/1", ["a", "b", "c"])
        fail_all(client, "orders/2", ["x"])
        wait_until(lambda: place.contents("orders/65535").ready == 4, what="all are dead letters")
        seen: list[tuple[int, int]] = []
        result = admin.move(
            place.url, "orders/65535", token=place.token, progress=lambda done, total: seen.append((done, total))
        )
        assert (result.moved, result.without_origin, result.left, result.rejection) == (4, 0, 0, None)
        assert seen == [(4, 4)]
        assert (place.contents("orders/1").ready, place.contents("orders/2").ready) == (3, 1)
        assert place.contents("orders/65535").messages["moved"] == 4
        with client.queue("orders", 1).consume(str) as messages:
            for body, message in zip(("a", "b", "c"), messages, strict=False):
                assert (message.body, message.attempt) == (body, 1)
                assert not [name for name in message.headers if name.startswith("Dead-Letter")]
                message.ack()
        wait_until(lambda: place.contents("orders/1").in_flight == 0, what="all are settled")


def test_messages_move_in_their_order_and_only_some_of_them(place: Place) -> None:
    with place.connect() as client:
        for queue in ("stay", "go"):
            client.declare(queue, 1, SAVING)
        for number in range(9):
            client.publish("stay/1", str(number), id=f"m{number}")
        result = admin.move(place.url, "stay/1", "go/1", limit=3, token=place.token)
        assert (result.moved, result.left) == (3, 6)
        result = admin.move(place.url, "stay/1", "go/1", ids=["m7", "m4", "absent"], token=place.token)
        assert (result.moved, result.left) == (2, 4)
        with pytest.raises(errors.ConfigError, match="ids of messages or a limit, not both"):
            admin.move(place.url, "stay/1", "go/1", ids=["m8"], limit=1, token=place.token)
        result = admin.discard(place.url, "stay/1", ids=["m8"], token=place.token)
        assert (result.moved, result.left) == (1, 3)
        assert bodies_in(client, "go/1") == ["0", "1", "2", "4", "7"]
        assert bodies_in(client, "stay/1") == ["3", "5", "6"]


def test_a_full_queue_stops_a_move_and_nothing_is_lost(place: Place) -> None:
    with place.connect() as client:
        client.declare("source", 1, SAVING)
        client.declare("narrow", 1, QueueOptions(status=QueueStatus.PULL, message_limit=2))
        client.publish_many("source/1", [str(number) for number in range(5)])
        result = admin.move(place.url, "source/1", "narrow/1", token=place.token)
        assert (result.moved, result.left) == (2, 3)
        assert result.rejection is not None
        assert "queue narrow/1 is full (2 messages)" in result.rejection
        with pytest.raises(errors.LimitExceeded, match="is full"):
            admin.move(place.url, "source/1", "narrow/1", token=place.token)
        assert bodies_in(client, "source/1") == ["2", "3", "4"]


def test_a_queue_is_paused_purged_and_removed(place: Place) -> None:
    with place.connect() as client:
        client.declare("change", 1, SAVING)
        client.publish_many("change/1", ["1", "2"])
        admin.set_status(place.url, "change/1", "paused", token=place.token)
        assert client.queue_information("change/1").status == "paused"
        admin.clear(place.url, "change/1", token=place.token)
        assert place.contents("change/1").ready == 0
        admin.remove_queue(place.url, "change/1", token=place.token)
        with pytest.raises(errors.NotFound):
            client.queue_information("change/1")
        with pytest.raises(errors.NotFound, match="queue change/1 does not exist"):
            admin.clear(place.url, "change/1", token=place.token)


def test_a_client_is_disconnected(place: Place) -> None:
    with sync.connect(place.broker.url, token=place.token, id="intruder") as client:
        admin.disconnect(place.url, "intruder", token=place.token)
        wait_until(lambda: client.state != "connected", what="it is disconnected")
    with pytest.raises(errors.NotFound):
        admin.disconnect(place.url, "not-connected", token=place.token)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "part"),
    [
        ("POST", "/queues/a/1/move", b"{", 400, "bad-request", "the body: EOF"),
        ("POST", "/queues/a/1/move", {"two": "b/1"}, 400, "bad-request", "unknown field `two`"),
        ("POST", "/queues/a/1/move", {"to": ""}, 400, "bad-request", 'queue ""'),
        ("POST", "/queues/a/1/move", {"max": 0}, 400, "bad-request", "max is 0, but must be from 1 to 10000"),
        ("POST", "/queues/a/1/move", {"max": -1}, 400, "bad-request", "invalid value"),
        ("POST", "/queues/a/1/move", {"ids": ["x"] * 1_001}, 400, "bad-request", "ids has 1001 entries"),
        ("POST", "/queues/a/1/move", [], 400, "bad-request", "the body"),
        ("POST", "/queues/absent/1/move", {"to": "b/1"}, 404, "not-found", "channel absent does not exist"),
        ("POST", "/queues/absent/1/discard", {}, 404, "not-found", "channel absent does not exist"),
        ("POST", "/queues/absent/1/purge", None, 404, "not-found", "channel absent does not exist"),
        ("POST", "/queues/absent/1/purge", {"all": True}, 400, "bad-request", "unknown field `all`"),
        ("POST", "/queues/absent/1/status", {"status": "paused"}, 404, "not-found", "channel absent does not exist"),
        ("POST", "/queues/absent/1/status", {"status": "paws"}, 400, "bad-request", "use one of broadcast, push"),
        ("POST", "/queues/absent/1/status", {}, 400, "bad-request", "missing field `status`"),
        ("DELETE", "/queues/absent/1", None, 404, "not-found", "channel absent does not exist"),
        ("POST", "/drain", {"seconds": -1}, 400, "bad-request", "seconds is -1"),
        ("GET", "/drain", None, 405, "method-not-allowed", "method not allowed"),
        ("PUT", "/queues/a/1", {}, 405, "method-not-allowed", "method not allowed"),
    ],
)
def test_a_wrong_request_is_explained(
    place: Place, method: str, path: str, body: Any, status: int, code: str, part: str
) -> None:
    answered, error = place.ask(method, path, body)
    assert (answered, error["code"]) == (status, code)
    assert part in error["message"]


CHANGES = [
    ("POST", "/queues/orders/9/purge", None),
    ("POST", "/queues/orders/9/move", {"to": "orders/8"}),
    ("POST", "/queues/orders/9/discard", {}),
    ("POST", "/queues/orders/9/status", {"status": "paused"}),
    ("DELETE", "/queues/orders/9", None),
    ("DELETE", "/connections/orders", None),
    ("POST", "/drain", {"seconds": 1}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_only_administrators_change_anything(place: Place, method: str, path: str, body: Any) -> None:
    assert place.ask(method, path, body, who=None)[0] == 401
    for who in ("viewer", "metrics", "client"):
        status, error = place.ask(method, path, body, who=who)
        assert (status, error["code"]) == (403, "forbidden")
    if path.startswith("/queues/orders/"):
        assert place.ask(method, path, body, who="orders")[0] == 404, "it may, but there is no such queue"
    else:
        assert place.ask(method, path, body, who="orders")[0] == 403


def test_moving_to_a_queue_needs_the_permission_to_publish_there(place: Place) -> None:
    with place.connect() as client:
        client.declare("orders", 5, SAVING)
        client.publish("orders/5", "secret")
    status, error = place.ask("POST", "/queues/orders/5/move", {"to": "elsewhere/1"}, who="orders")
    assert (status, error["message"]) == (403, "permission denied: push is not allowed for queue elsewhere/1")
    assert place.ask("POST", "/queues/orders/5/move", {"to": "orders/6"}, who="orders")[0] == 200


def test_a_viewer_sees_everything_but_messages(place: Place) -> None:
    with place.connect() as client:
        client.declare("seen", 1, SAVING)
    for path in (
        *("/queues", "/queues/seen/1", "/connections", "/overview", "/attention", "/schedules", "/totals"),
        "/jobs",
    ):
        assert place.ask("GET", path, who="viewer")[0] == 200, path
    for path in ("/queues/seen/1/messages", "/backup", "/history", "/trace/x"):
        assert place.ask("GET", path, who="viewer")[0] == 403, path
    assert place.ask("GET", "/queues", who="metrics")[0] == 403


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("all", {"administers": PARTS, "messages": True}),
        ("viewer", {"administers": [], "messages": False}),
        ("planner", {"administers": ["schedules"], "messages": False}),
    ],
)
def test_a_page_learns_what_its_user_may_do(place: Place, who: str, expected: dict[str, Any]) -> None:
    always = {"user": who, "open": False, "cluster": False}
    assert place.ask("GET", "/access", who=who) == (200, {**always, **expected})


def test_changes_are_in_the_audit_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    tokens = {"all": new_token(data, "all", "*"), "viewer": new_token(data, "viewer", "inspect")}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data)) as broker:
        place = Place(broker, tokens)
        place.ask("POST", "/queues/a/1/purge", who="viewer")
        place.ask("POST", "/queues/a/1/purge")

        def written() -> list[tuple[str, str]]:
            log = data / "audit.jsonl"
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            shown = place.ask("GET", "/audit?limit=1000")[1]["lines"]
            newest_first = [{name: value for name, value in line.items() if value is not None} for line in shown]
            assert newest_first[::-1][: len(lines)] == lines
            return [(line["who"], line["verdict"]) for line in lines if line.get("resource") == "/queues/a/1/purge"]

        wait_until(lambda: written() == [("viewer", "denied"), ("all", "allowed")], what="both lines")


def test_dead_letter_queues_that_other_queues_name_are_listed(place: Place) -> None:
    with place.connect() as client:
        client.declare("trash", 7, QueueOptions(status=QueueStatus.PULL))
        client.declare("plain", 7, QueueOptions(status=QueueStatus.PULL))
        client.declare("other", 1, replace(WORK, dead_letter="trash/7"))
        fail_all(client, "other/1", ["a"])
        client.publish("plain/7", "no dead letter")
        wait_until(lambda: place.contents("trash/7").ready == 1, what="it is a dead letter")
    for command in (("dead", "ls"), ("report", "dead")):
        listed = one(cli(*command, "--json", "--url", place.url, MQCORE_TOKEN=place.token))["queues"]
        queues = {row["queue"]: row for row in listed}
        assert queues["trash/7"]["ready"] == 1
        assert "plain/7" not in queues
    states = {state.queue: state.dead_letter for state in admin.queues(place.url, token=place.token, limit=1000).queues}
    assert (states["other/1"], states["trash/7"]) == ("trash/7", None)


def test_the_commands_for_dead_letters(place: Place) -> None:
    def run(*arguments: str) -> Any:
        return cli(*arguments, "--url", place.url, MQCORE_TOKEN=place.token)

    with place.connect() as client:
        client.declare("failing", 1, WORK)
        fail_all(client, "failing/1", ["a", "b", "c", "d"])
        wait_until(lambda: place.contents("failing/65535").ready == 4, what="all are dead letters")
        client.publish("failing/65535", "foreign")
    listed = one(run("dead", "ls", "--json"))
    assert listed["schema"] == "mqcore.dead.ls/1"
    (row,) = (row for row in listed["queues"] if row["queue"] == "failing/65535")
    assert (row["ready"], row["oldest"][-1]) == (5, "s"), "it has an age"
    shown = one(run("dead", "show", "failing/65535", "--json"))["messages"]
    assert [(row["origin"], row["reason"], row["attempts"]) for row in shown] == [("failing/1", "limit", "1")] * 4 + [
        (None, None, None)
    ]
    assert all(row["waiting"] for row in shown)
    table = run("dead", "show", "failing/65535", "--count", "1").stdout.decode().splitlines()
    assert table[0].split("\t")[:3] == ["id", "origin", "reason"]
    unconfirmed = run("dead", "discard", "failing/65535", "--id", shown[0]["id"])
    assert (unconfirmed.returncode, b"add --yes to confirm" in unconfirmed.stderr) == (2, True)
    discarded = one(run("dead", "discard", "failing/65535", "--id", shown[0]["id"], "--yes", "--json"))
    assert (discarded["discarded"], discarded["left"]) == (1, 4)
    replayed = run("dead", "replay", "failing/65535", "--count", "2")
    assert replayed.returncode == 0
    assert b"moved 2 messages of failing/65535 to the queues that they come from; 2 are left" in replayed.stderr
    rest = run("dead", "replay", "failing/65535", "--json")
    told = json.loads(rest.stdout)
    assert (rest.returncode, told["moved"], told["without_origin"]) == (1, 1, 1)
    assert b"1 messages do not name the queue that they come from; use --to QUEUE" in rest.stderr
    moved = one(run("queue", "move", "failing/65535", "failing/1", "--json"))
    assert (moved["schema"], moved["moved"], moved["to"]) == ("mqcore.queue.move/1", 1, "failing/1")
    assert place.contents("failing/1").ready == 4
    missing = run("dead", "replay", "absent/65535")
    assert (missing.returncode, b"channel absent does not exist" in missing.stderr) == (3, True)


def test_a_drained_broker_ends_by_itself_and_keeps_its_messages(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    token = new_token(data, "all", "*")
    arguments = ("--admin", "http://127.0.0.1:0", "--data-dir", str(data))
    with serving(*arguments) as broker:
        with sync.connect(broker.url, token=token) as client:
            client.declare("kept", 1, SAVING)
            client.publish("kept/1", "still here")
        refused = cli("drain", "--url", broker.admin_url, MQCORE_TOKEN=token)
        assert (refused.returncode, b"add --yes to confirm" in refused.stderr) == (2, True)
        drained = cli("drain", "--yes", "--within", "5s", "--url", broker.admin_url, MQCORE_TOKEN=token)
        assert drained.returncode == 0, drained.stderr
        assert broker.process.wait(15) == 0
    with serving(*arguments) as broker, sync.connect(broker.url, token=token) as client:
        assert bodies_in(client, "kept/1") == ["still here"]


def test_replayed_dead_letters_are_each_in_one_queue_after_ten_kills(tmp_path: Path) -> None:
    """Of three queues of other channels, so mostly of other shards, whose dead letters go to one queue."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    token = new_token(data, "all", "*")
    arguments = ("--admin", "http://127.0.0.1:0", "--data-dir", str(data))
    random = choices("replay with kills")
    origins = [f"work{number}/1" for number in range(3)]
    names = [f"{origin} {number}" for number in range(DEAD_LETTERS // 3) for origin in origins]
    with serving(*arguments) as broker:
        place = Place(broker, {"all": token})
        with place.connect() as client:
            client.declare("failed", 1, SAVING)
            expiring = QueueOptions(
                status=QueueStatus.PULL, message_timeout="1s", dead_letter="failed/1", delivery_handler="at-least-once"
            )
            for origin in origins:
                client.declare(origin.partition("/")[0], 1, expiring)
                mine = [name for name in names if name.startswith(origin)]
                for first in range(0, len(mine), 1_000):
                    client.publish_many(origin, mine[first : first + 1_000])
            wait_until(lambda: place.contents("failed/1").ready == len(names), limit=120, what="all have expired")
            for origin in origins:
                client.update_queue(origin, QueueOptions(message_timeout="0s"))
    kills = 0
    while True:
        with serving(*arguments) as broker:
            place = Place(broker, {"all": token})
            if kills < KILLS:
                with pytest.raises(errors.MqcoreError):
                    kill_while_moving(place, random.uniform(0, 0.03))
                kills += 1
                continue
            assert 0 < place.contents("failed/1").ready < len(names), "it was killed while it moved messages"
            admin.move(place.url, "failed/1", token=token)
            assert place.contents("failed/1").ready == 0
            with place.connect() as client:
                found = Counter(body for origin in origins for body in bodies_in(client, origin, len(names)))
            break
    assert found == Counter(names)


def kill_while_moving(place: Place, pause: float) -> None:
    """Kill a broker during a move. Raises that the move was interrupted."""
    killer = threading.Timer(pause, place.broker.process.send_signal, (signal.SIGKILL,))
    killer.start()
    try:
        while True:
            admin.move(place.url, "failed/1", limit=DEAD_LETTERS // 300, token=place.token)
    finally:
        killer.join()
        place.broker.process.wait(10)
