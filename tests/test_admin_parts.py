"""Jobs, limits, routers and masked bodies over the admin side, with real workers and clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_processes import broker_url, working
from mqcore import Binding, QueueOptions, QueueStatus, admin, errors, sync
from mqcore.jobs import Jobs
from mqcore.throttr import SyncClient
from served import ServedBroker, serving, wait_until
from test_admin_changes import SAVING, Place, fail_all, new_token
from test_cli import mqcore as cli
from test_cli import one

RULES = {
    "all": ("*",),
    "staff": ("*",),
    "viewer": ("inspect",),
    "planner": ("administer:/policies/*",),
    "operator": ("administer:/queues/*", "administer:/limits*", "inspect"),
}
URLS = ("tmqp://127.0.0.1:0", "emqp://127.0.0.1:0", "throttr://127.0.0.1:0?value=uint64")
ADMIN = "http://127.0.0.1:0"
LISTEN = (*(part for url in URLS for part in ("--listen", url)), "--admin", ADMIN)
ROUTERS = '''
"""Routers that look at a header."""

import mqcore
from mqcore.config import AuthorityOptions


class ByCountry(mqcore.Router):
    def route(self, message, publisher):
        assert publisher.protocol == "http"
        return f"orders-{message.headers['Country']}/1"


broker = mqcore.Broker(
    listen=LISTEN,
    admin=ADMIN,
    data_dir=DATA,
    auto_create_channels=True,
    auto_create_queues=True,
    # Throttr has no credentials.
    authority=AuthorityOptions(anonymous=("limit",)),
)
broker.routers["by-country"] = ByCountry()
'''
JOBS = '''
"""Jobs that fail until a file exists."""

import pathlib

from mqcore.jobs import Jobs

jobs = Jobs()


@jobs.task(queue="mail")
def send(path: str, number: int) -> int:
    if not pathlib.Path(path).exists():
        raise ValueError(f"mailbox {number}\\nis full")
    return number
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs."""
    folder = tmp_path_factory.mktemp("parts")
    settings = {"LISTEN": URLS, "ADMIN": ADMIN, "DATA": str(folder / "data")}
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (folder / "shop.py").write_text("".join(lines) + ROUTERS)
    (folder / "mail_jobs.py").write_text(JOBS)
    return folder


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[Place]:
    """A broker with users, routers in Python, and listeners for jobs and limits."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, *rules) for name, rules in RULES.items()}
    with serving("--app", "shop:broker", environment={"PYTHONPATH": str(folder)}) as broker:
        place = Place(broker, tokens)
        with place.connect() as client:
            client.create_router("events", "only-first")
            client.bind("events", Binding("@type:nobody", "nobody", priority=9))
            client.bind("events", Binding("orders-fr/1", "france"))
            client.bind("events", Binding("orders-de/1", "germany"))
        yield place


# --- routers --------------------------------------------------------------------------------------------------


def test_the_route_of_a_message_is_shown_and_nothing_is_sent(place: Place) -> None:
    with place.connect() as client:
        client.declare("orders-fr", 1, QueueOptions(status=QueueStatus.PULL))
        asked = admin.route(place.url, "by-country", headers={"Country": "fr"}, token=place.token)
        assert asked.taken
        assert [(step.binding, step.target, step.takes) for step in asked.steps if step.binding is None] == [
            (None, "orders-fr/1", True)
        ]
        first = admin.route(place.url, "events", "a body", token=place.token)
        assert [(step.binding, step.target, step.takes) for step in first.steps] == [
            ("nobody", "@type:nobody", False),
            ("france", "orders-fr/1", True),
        ]
        assert (first.method, first.skipped) == ("only-first", ("germany",))
        # The client's own test and that of the admin side agree.
        assert client.test_router("events", b"a body") == first
        assert client.queue("orders-fr", 1).information().messages == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"headers": [["A\nB", "x"]]}, "line break"),
        ({"headers": [["", "x"]]}, "not empty"),
        ({"headers": [["A", "x"]] * 101}, "at most 100"),
        ({"headers": [["A"]]}, "the body"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_malformed_message_to_test_is_refused(place: Place, body: dict[str, object], words: str) -> None:
    status, error = place.ask("POST", "/routers/events/test", body)
    assert status == 400
    assert words in error["message"]


def test_a_test_of_a_missing_router_or_without_the_right_is_refused(place: Place) -> None:
    with pytest.raises(errors.NotFound, match="router nope does not exist"):
        admin.route(place.url, "nope", token=place.token)
    with pytest.raises(errors.Unauthorized, match="administer"):
        admin.route(place.url, "events", token=place.tokens["viewer"])


# --- jobs -----------------------------------------------------------------------------------------------------


def job_queue(place: Place, name: str) -> admin.JobQueueState | None:
    """A queue of jobs as the admin side shows it."""
    known = admin.jobs(place.url, matching=name, token=place.token).queues
    return next((queue for queue in known if queue.name == name), None)


@pytest.fixture
def gate(place: Place, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three failed jobs, and a worker with which they succeed once this file exists."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    gate, url = tmp_path / "gate", broker_url(place.broker).replace("://", f"://{place.tokens['staff']}@")
    arguments = ("--queues", "mail", "--concurrency", "1", "--pool", "thread")
    with Jobs(url) as jobs, working(url, *arguments, app="mail_jobs:jobs"):
        for number in range(3):
            jobs.send("mail_jobs.send", [str(gate), number], queue="mail", result=False)
        wait_until(lambda: (found := job_queue(place, "mail")) is not None and found.failed == 3, what="three failures")
        yield gate
    wait_until(lambda: admin.jobs(place.url, token=place.token).workers_total == 0, what="the end of the worker")


def test_failed_jobs_are_listed_with_their_errors_and_run_again(place: Place, gate: Path) -> None:
    found = job_queue(place, "mail")
    assert found is not None
    assert (found.queue, found.failed_queue, found.waiting, found.running) == ("mail/0", "mail/65535", 0, 0)
    assert (found.finished, found.workers) == (3, 1)
    assert found.latency_ms is not None
    (running,) = admin.jobs(place.url, token=place.tokens["viewer"]).workers
    assert (running.user, running.queues) == ("staff", (("mail", 10),))

    listed = one(cli("jobs", "failed", "mail", "--url", place.url, "--json", MQCORE_TOKEN=place.token))["jobs"]
    assert [(job["job"], job["error"], job["attempts"]) for job in listed] == [
        ("mail_jobs.send", f"ValueError: mailbox {number} is full", "1") for number in range(3)
    ]
    gate.touch()
    first = cli("jobs", "retry", "mail", "--id", listed[0]["id"], "--url", place.url, MQCORE_TOKEN=place.token)
    assert first.returncode == 0, first.stderr
    wait_until(lambda: (found := job_queue(place, "mail")) is not None and found.finished == 4, what="one retry")
    rest = one(cli("jobs", "retry", "mail", "--url", place.url, "--json", MQCORE_TOKEN=place.token))
    assert (rest["returned"], rest["rejection"]) == (2, None)
    wait_until(lambda: (found := job_queue(place, "mail")) is not None and found.finished == 6, what="all retries")
    found = job_queue(place, "mail")
    assert found is not None
    assert (found.failed, found.waiting) == (0, 0)
    none = one(cli("jobs", "retry", "mail", "--url", place.url, "--json", MQCORE_TOKEN=place.token))
    assert none["returned"] == 0


def test_failed_jobs_of_an_unused_queue_are_an_error_that_says_where_to_look(place: Place) -> None:
    failed = cli("jobs", "failed", "nowhere", "--url", place.url, MQCORE_TOKEN=place.token)
    assert failed.returncode == 3
    assert b"queue nowhere/0 does not exist" in failed.stderr


def test_retry_leaves_dead_letters_of_other_queues(place: Place) -> None:
    options = QueueOptions(
        status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, put_back_limit=0, dead_letter="grave/1"
    )
    with place.connect() as client:
        client.declare("grave", 1, SAVING)
        for channel in ("left", "right"):
            client.declare(channel, 0, options)
            fail_all(client, f"{channel}/0", [f"{channel}-{number}" for number in range(3)])
        wait_until(lambda: place.contents("grave/1").ready == 6, what="all are dead letters")
        listed = one(cli("jobs", "failed", "left", "--url", place.url, "--json", MQCORE_TOKEN=place.token))["jobs"]
        assert [(job["job"], job["error"]) for job in listed] == [(f"left-{number}", "broken") for number in range(3)]
        done = one(cli("jobs", "retry", "left/0", "--url", place.url, "--json", MQCORE_TOKEN=place.token))
        assert done["returned"] == 3
        assert (place.contents("grave/1").ready, place.contents("left/0").ready) == (3, 3)
        foreign = next(message.id for message in admin.peek(place.url, "grave/1", token=place.token))
        missed = cli("jobs", "retry", "left", "--id", foreign or "", "--url", place.url, MQCORE_TOKEN=place.token)
        assert missed.returncode == 1
        assert place.contents("grave/1").ready == 3


# --- limits ---------------------------------------------------------------------------------------------------


def throttr(place: Place) -> str:
    """URL of the Throttr listener."""
    return f"throttr://{place.broker.ready['listeners']['throttr']}?value=uint64"


@pytest.fixture
def limiter(place: Place) -> Iterator[SyncClient]:
    """A Throttr client of an empty limiter."""
    with SyncClient(throttr(place)) as client:
        for entry in client.list():
            client.purge(entry.key)
        yield client


def test_limits_are_filtered_sorted_paged_changed_and_removed(place: Place, limiter: SyncClient) -> None:
    for number in range(30):
        limiter.insert(f"user:{number:02}", 100 - number, 600)
    limiter.insert("other", 7, 600)
    limiter.set("Note", b"hello", 600)
    page = admin.limits(place.url, matching="USER:", sort="left", limit=3, offset=1, token=place.tokens["operator"])
    assert [(found.key, found.left, found.kind) for found in page.limits] == [
        (b"user:01", 99, "counter"),
        (b"user:02", 98, "counter"),
        (b"user:03", 97, "counter"),
    ]
    assert (page.total, page.matched, page.complete) == (32, 30, True)
    least = admin.limits(place.url, sort="left", reverse=True, matching="user", limit=1, token=place.token).limits[0]
    assert (least.key, least.left) == (b"user:29", 71)
    assert least.expires_in_seconds == pytest.approx(600, abs=60)
    (note,) = admin.limits(place.url, matching="note", token=place.token).limits
    assert (note.kind, note.buffer_bytes) == ("buffer", 5)

    assert admin.set_limit(place.url, "user:00", 12_345, token=place.tokens["operator"]) == 12_345
    assert limiter.query("user:00").quota == 12_345
    admin.remove_limit(place.url, "user:00", token=place.tokens["operator"])
    assert limiter.query("user:00") is None
    with pytest.raises(errors.NotFound, match="user:00"):
        admin.remove_limit(place.url, "user:00", token=place.token)
    with pytest.raises(errors.NotFound):
        admin.set_limit(place.url, "user:00", 1, token=place.token)
    with pytest.raises(errors.Unacceptable, match="buffer"):
        admin.set_limit(place.url, "Note", 1, token=place.token)
    with pytest.raises(errors.Unauthorized):
        admin.limits(place.url, token=place.tokens["viewer"])
    with pytest.raises(errors.BadRequest, match="at most 10000"):
        admin.limits(place.url, offset=10_001, token=place.token)
    with pytest.raises(errors.BadRequest, match="sort is key"):
        admin.limits(place.url, sort="size", token=place.token)
    for change in (admin.remove_limit, lambda *given, **more: admin.set_limit(*given, 1, **more)):
        with pytest.raises(errors.Unauthorized):
            change(place.url, "other", token=place.tokens["viewer"])
    assert limiter.query("other").quota == 7


def test_keys_of_any_bytes_can_be_changed(place: Place, limiter: SyncClient) -> None:
    key = bytes(range(256))[1:]
    limiter.insert(key, 5, 600)
    (found,) = admin.limits(place.url, token=place.token).limits
    assert found.key == key
    assert admin.set_limit(place.url, key, 9, token=place.token) == 9
    admin.remove_limit(place.url, key, token=place.token)
    assert admin.limits(place.url, token=place.token).total == 0
    limiter.insert("a/b c?d", 5, 600)
    assert place.ask("POST", "/limits/a%2Fb%20c%3Fd", {"left": 3}) == (200, {"key": "a/b c?d", "left": 3})
    assert place.ask("DELETE", "/limits/!?base64=1")[0] == 400


# --- masks ----------------------------------------------------------------------------------------------------

MASKS = """
mask_fields = ["*password*", "card"]
mask_bodies = ["payments/*"]
"""


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker that hides parts of messages."""
    config = tmp_path_factory.mktemp("masks") / "mqcore.toml"
    config.write_text(MASKS)
    with serving("--config", str(config), *LISTEN, "--auto-create") as broker:
        yield broker


def test_peek_hides_members_headers_and_bodies(masked: ServedBroker) -> None:
    with sync.connect(masked.url) as mq:
        for queue in ("orders", "payments"):
            mq.declare(queue, 1, QueueOptions(status=QueueStatus.PULL))
        content = {"user": "ann", "Password": "secret-1", "pay": [{"card": {"number": "secret-2"}}]}
        mq.publish("orders/1", json.dumps(content), headers={"X-Password": "secret-3", "Country": "fr"})
        mq.publish("orders/1", '{"b":1,  "a":2}')
        mq.publish("orders/1", b"\x00\x01")
        mq.publish("payments/1", "secret-4")
    first, second, third = admin.peek(masked.admin_url, "orders/1")
    assert json.loads(first.body or b"") == {"user": "ann", "Password": "***", "pay": [{"card": "***"}]}
    assert dict(first.headers)["X-Password"] == "***"
    assert dict(first.headers)["Country"] == "fr"
    assert json.loads(second.body or b"") == {"b": 1, "a": 2}
    assert third.body == b"\x00\x01"
    (hidden,) = admin.peek(masked.admin_url, "payments/1")
    assert (hidden.body, hidden.body_bytes) == (b"***", 8)
    shown = place_of(masked).ask("GET", "/queues/orders/1/messages", who=None)[1]["messages"]
    assert [message["masked"] for message in shown] == [True, False, False]
    # A dead letter is as secret as it was before, and so is the error that quotes it.
    with sync.connect(masked.url) as mq:
        options = QueueOptions(
            status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, put_back_limit=0, dead_letter="graves/1"
        )
        mq.declare("graves", 1, QueueOptions(status=QueueStatus.PULL))
        mq.declare("payments", 2, options)
        mq.publish("payments/2", "secret-6")
        with mq.queue("payments", 2).consume(str) as messages:
            next(messages).nack("secret-6 is wrong")
        wait_until(lambda: len(admin.peek(masked.admin_url, "graves/1")) == 1, what="the dead letter")
        (letter,) = admin.peek(masked.admin_url, "graves/1")
        assert letter.body == b"***"
        assert dict(letter.headers)["Dead-Letter-Error"] == "***"
        assert dict(letter.headers)["Dead-Letter-Queue"] == "payments/2"
    # Consumers get everything.
    with sync.connect(masked.url) as mq, mq.join("payments"):
        assert [message.body for message in mq.queue("payments", 1).pull(1, str)] == ["secret-4"]


def test_schedules_hide_arguments(masked: ServedBroker) -> None:
    with Jobs(broker_url(masked)) as jobs:

        @jobs.task(name="shop.charge", queue="accounts")
        def charge(user: str, *, password: str) -> None:
            """Charge a user."""

        jobs.every("90s", charge.bind("ann", password="secret-5"))
        jobs.send_schedules()
        wait_until(lambda: admin.schedules(masked.admin_url).total == 1, what="the schedule")
        (schedule,) = admin.schedules(masked.admin_url).schedules
        assert "secret-5" not in schedule.job
        assert "ann" in schedule.job
        assert '"password":"***"' in schedule.job


def test_a_malformed_rule_is_refused_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "mqcore.toml"
    config.write_text('mask_fields = [""]\n')
    refused = cli("serve", "--config", str(config), *LISTEN)
    assert refused.returncode != 0
    assert b"mask_fields" in refused.stderr
    assert b"must not be empty" in refused.stderr


def place_of(broker: ServedBroker) -> Place:
    """A broker without users."""
    return Place(broker, {"all": ""})


# --- policies -------------------------------------------------------------------------------------------------


def test_policies_change_queues_now_and_later_and_survive_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    tokens = {"all": new_token(data, "all", "*"), "viewer": new_token(data, "viewer", "inspect")}
    arguments = (*LISTEN, "--data-dir", str(data), "--auto-create")
    with serving(*arguments) as broker:
        running = Place(broker, tokens)
        with running.connect() as client:
            for channel in range(8):  # on all shards
                client.declare(f"logs-{channel}", 1, QueueOptions(status=QueueStatus.PULL))
            client.declare("other", 1, QueueOptions(status=QueueStatus.PULL))
            options = QueueOptions(message_limit=3, message_timeout="90s", tag="logs")
            result = admin.set_policy(running.url, "logs", "logs-*", options, priority=5, token=running.token)
            assert (result.changed, result.rejected, result.rejected_total) == (8, {}, 0)
            shown = one(cli("policy", "ls", "--url", running.url, "--json", MQCORE_TOKEN=tokens["viewer"]))
            assert shown["policies"] == [
                {
                    "name": "logs",
                    "pattern": "logs-*",
                    "priority": 5,
                    "options": {"message_limit": 3, "message_timeout": 90.0, "tag": "logs"},
                }
            ]
        broker.process.kill()
    with serving(*arguments) as broker:
        running = Place(broker, tokens)
        assert [policy.name for policy in admin.policies(running.url, token=running.token)] == ["logs"]
        with running.connect() as client:
            for channel in range(16):  # eight of them are new
                client.publish_many(f"logs-{channel}/1", ["a", "b", "c"])
                information = client.queue(f"logs-{channel}", 1).information()
                assert (information.message_limit, information.tag_name) == (3, "logs")
                with pytest.raises(errors.LimitExceeded):
                    client.publish(f"logs-{channel}/1", "d")
            assert client.queue("other", 1).information().message_limit == 0
        admin.remove_policy(running.url, "logs", token=running.token)
        broker.process.kill()
    with serving(*arguments) as broker:
        running = Place(broker, tokens)
        assert admin.policies(running.url, token=running.token) == ()
        with running.connect() as client:
            assert client.queue("logs-15", 1).information().message_limit == 3
            client.publish("logs-16/1", "x")
            assert client.queue("logs-16", 1).information().message_limit == 0


def test_definitions_copy_policies_and_queues_that_differ_from_them(tmp_path: Path) -> None:
    file, data = tmp_path / "definitions.json", (tmp_path / "old", tmp_path / "new")
    tokens = []
    for directory in data:
        directory.mkdir(mode=0o700)
        tokens.append({"all": new_token(directory, "all", "*")})
    with (
        serving(*LISTEN, "--data-dir", str(data[0])) as old,
        serving(*LISTEN, "--data-dir", str(data[1])) as new,
        Place(old, tokens[0]).connect() as client,
        Place(new, tokens[1]).connect() as target,
    ):
        client.declare("trash", 1, QueueOptions(status=QueueStatus.PULL))
        for queue in (1, 2):
            client.declare("logs", queue, QueueOptions(status=QueueStatus.PULL))
        options = QueueOptions(message_limit=3, retry_delay="2s", dead_letter="trash/1")
        admin.set_policy(old.admin_url, "logs", "logs/*", options, priority=5, token=tokens[0]["all"])
        client.update_queue("logs/2", QueueOptions(message_limit=8))

        def run(broker: ServedBroker, *arguments: str) -> subprocess.CompletedProcess[bytes]:
            token = tokens[0 if broker is old else 1]["all"]
            return cli("definitions", *arguments, "--url", broker.url, MQCORE_TOKEN=token)

        def differences() -> list[dict[str, Any]]:
            result = run(new, "diff", str(file), "--admin", new.admin_url, "--json")
            changes: list[dict[str, Any]] = json.loads(result.stdout)["changes"]
            assert result.returncode == (1 if changes else 0)
            return changes

        exported = run(old, "export", "--to", str(file), "--admin", old.admin_url)
        assert (exported.returncode, b"1 policies" in exported.stderr) == (0, True), exported.stderr
        assert b"without policies" in run(old, "export").stderr
        blind = run(new, "import", str(file))
        assert (blind.returncode, b"give its URL" in blind.stderr) == (2, True), blind.stderr
        (created,) = [change for change in differences() if change["subject"] == "policy logs"]
        assert created["options"]["queue.retry_delay"] == {"now": None, "wanted": 2.0}
        done = one(run(new, "import", str(file), "--admin", new.admin_url, "--json"))["changes"]
        assert ("create", "policy logs") in [(change["action"], change["subject"]) for change in done]
        assert differences() == []
        copied = admin.policies(new.admin_url, token=tokens[1]["all"])
        assert copied == admin.policies(old.admin_url, token=tokens[0]["all"])
        limits = [target.queue("logs", queue).information().message_limit for queue in (1, 2)]
        assert limits == [3, 8], "a queue keeps the option that differs from its policy"
        changed = QueueOptions(message_limit=4, retry_delay="2s", dead_letter="trash/1")
        admin.set_policy(new.admin_url, "logs", "logs/*", changed, priority=6, token=tokens[1]["all"])
        assert differences()[0] == {
            "action": "change",
            "subject": "policy logs",
            "options": {"priority": {"now": 6, "wanted": 5}, "queue.message_limit": {"now": 4, "wanted": 3}},
        }


def test_malformed_policies_are_refused(place: Place) -> None:
    for pattern, options, words in (
        ("a*b", QueueOptions(message_limit=1), "last character"),
        ("", QueueOptions(message_limit=1), "1 to 255"),
        ("*", QueueOptions(), "no options"),
        ("*", QueueOptions(delivery_handler="nonsense"), "known keys"),
    ):
        with pytest.raises(errors.BadRequest, match=words):
            admin.set_policy(place.url, "wrong", pattern, options, token=place.token)
    for body, words in (
        ({"pattern": "*", "options": {"status": "fast"}}, "roundrobin"),
        ({"pattern": "*", "options": {"message_timeout": -1}}, "message_timeout"),
        ({"pattern": "*", "options": {"message_timeout": 1e300}}, "message_timeout"),
        ({"pattern": "*", "options": {"message_timeout": 1e18}}, "too long"),
        ({"pattern": "*", "options": {"nonsense": 1}}, "nonsense"),
        ({"pattern": "*", "options": {"publish_limit": "fast"}}, "publish_limit"),
        ({"options": {"message_limit": 1}}, "pattern"),
        ({"pattern": "*", "options": {"status": "stopped"}}, "erases messages"),
    ):
        status, error = place.ask("POST", "/policies/wrong", body)
        assert status == 400, body
        assert words in error["message"]
    assert place.ask("POST", "/policies/a%0Ab", {"pattern": "*", "options": {"message_limit": 1}})[0] == 400
    with pytest.raises(errors.NotFound, match="wrong"):
        admin.remove_policy(place.url, "wrong", token=place.token)
    with pytest.raises(errors.Unauthorized):
        admin.set_policy(place.url, "wrong", "*", QueueOptions(message_limit=1), token=place.tokens["viewer"])
    assert admin.policies(place.url, token=place.token) == ()


def test_a_queue_that_cannot_have_the_options_is_named(place: Place) -> None:
    with place.connect() as client:
        client.declare("graves", 7, QueueOptions(status=QueueStatus.PULL))
        client.declare("graves", 8, QueueOptions(status=QueueStatus.PULL))
    done = cli(
        *("policy", "set", "buried", "graves/*", "--dead-letter", "graves/7", "--url", place.url),
        MQCORE_TOKEN=place.token,
    )
    assert done.returncode == 1
    assert b"1 queues changed" in done.stderr
    assert b"graves/7 cannot have these options: queue graves/7 cannot be its own dead-letter queue" in done.stderr
    # Their messages would go to a queue to which this token may not publish.
    options = QueueOptions(dead_letter="graves/8")
    with pytest.raises(errors.Unauthorized, match="push is not allowed for queue graves/8"):
        admin.set_policy(place.url, "stolen", "*", options, token=place.tokens["planner"])
    removed = cli("policy", "rm", "buried", "--url", place.url, MQCORE_TOKEN=place.token)
    assert removed.returncode == 0
