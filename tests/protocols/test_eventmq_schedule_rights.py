"""Rights on schedules: who may change, end, run and receive them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mqcore
from eventmq_peer import GREETING, EventmqPeer, ready
from mqcore import admin
from mqcore._core import AuthorityStore
from served import ServedBroker, serving, wait_until

CALL = json.dumps(
    [
        "run",
        {"path": "m", "callable": "f", "args": ["secret"], "kwargs": {}, "class_args": [], "class_kwargs": {}},
    ]
)

USERS = {
    "owner": ["push:reports", "create:reports", "direct"],
    "rogue": ["push:mail", "create:mail", "direct"],
    "scheduler": ["administer:@scheduler", "push:*"],
    "scraper": ["administer:/metrics", "administer:orders/*"],
    "operator": ["administer"],
}


class Served:
    """A broker with users, and their tokens."""

    def __init__(self, broker: ServedBroker, tokens: dict[str, str]) -> None:
        self.broker, self.tokens = broker, tokens

    def peer(self, user: str, listener: str = "emqp-frontend") -> EventmqPeer:
        return EventmqPeer(f"emqp://{self.broker.ready['listeners'][listener]}", token=self.tokens[user])

    def schedules(self) -> list[tuple[str, int | None, int]]:
        """Queue, interval and runs of all schedules."""
        listed = admin.schedules(self.broker.admin_url, token=self.tokens["operator"]).schedules
        return [(kept.queue, kept.interval_ms, kept.runs) for kept in listed]

    def errors(self) -> list[str]:
        return [line for line in self.broker.stderr_lines if "schedule" in line]

    def denials(self, directory: Path) -> list[dict[str, str]]:
        audit = directory / "audit.jsonl"
        # The broker creates it with its first line.
        lines = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
        return [line for line in lines if line.get("verdict") == "denied"]


@contextmanager
def served(directory: Path, tokens: dict[str, str]) -> Iterator[Served]:
    store = AuthorityStore.of_data_dir(directory)
    for name, rules in USERS.items():
        if name not in tokens:
            _, tokens[name] = store.add_token(json.dumps({"name": name, "allow": rules}))
    listen = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0")
    arguments = (*listen, "--admin", "http://127.0.0.1:0", "--data-dir", str(directory))
    with serving(*arguments, environment={"MQCORE_DELIVERY_HANDLER": "at-least-once"}) as broker:
        yield Served(broker, tokens)


def expect_denials(directory: Path, here: Served, number: int) -> None:
    """Wait until the audit log has so many denials."""
    wait_until(lambda: len(here.denials(directory)) >= number, what=f"{number} denials")


def denied(directory: Path, served_broker: Served, what: tuple[str, str, str]) -> bool:
    """Whether the audit log has this denial: who, action, resource."""
    return any((line["who"], line["action"], line["resource"]) == what for line in served_broker.denials(directory))


def test_rogue_cannot_end_move_or_read_a_schedule_even_after_a_restart(tmp_path: Path) -> None:
    tokens: dict[str, str] = {}
    expected = [("reports", 3_600_000, 0)]
    with served(tmp_path, tokens) as here:
        with here.peer("owner") as owner:
            owner.say("SCHEDULE", "s", "reports", "nohaste,create-queue", "3600", CALL, "")
            wait_until(lambda: here.schedules() == expected, what="the schedule")
        here.broker.process.kill()
        here.broker.process.wait()
    for start in range(2):
        with served(tmp_path, tokens) as here:
            with here.peer("rogue") as rogue:
                rogue.say("UNSCHEDULE", "u", "mail", "", "3600", CALL, "")
                rogue.say("SCHEDULE", "s", "mail", "nohaste,create-queue", "7200", CALL, "")
                rogue.say("SCHEDULE", "s", "mail", "nohaste,create-queue,timezone:UTC", "-1", CALL, "* * * * *")
                rogue.say("UNSCHEDULE", "u", "reports", "", "3600", CALL, "")
                # Each start denies these four, and the request to be a scheduler.
                expect_denials(tmp_path, here, 5 * start + 4)
                assert denied(tmp_path, here, ("rogue", "push", "reports/0"))
                assert here.schedules() == expected
                assert rogue.until_now() == []
            with here.peer("rogue") as rogue:
                rogue.say("INFORM", "i", "", "scheduler")
                assert rogue.is_cut()
            expect_denials(tmp_path, here, 5 * start + 5)
            assert denied(tmp_path, here, ("rogue", "administer", "@scheduler"))
            # As workers do at each start.
            with here.peer("owner") as owner:
                owner.say("SCHEDULE", "s", "reports", "nohaste,create-queue", "3600", CALL, "")
                owner.until_now()
            assert here.schedules() == expected
            assert any("not allowed to push on reports/0" in line for line in here.errors()), here.errors()
            here.broker.process.kill()
            here.broker.process.wait()


def test_refused_scheduler_receives_an_error_and_the_end_of_its_connection(tmp_path: Path) -> None:
    with served(tmp_path, {}) as here, here.peer("rogue") as rogue:
        rogue.say("INFORM", "i", "", "scheduler")
        answer = b""
        while part := rogue.socket.recv(1 << 16):
            answer += part
        assert re.search(rb"ERROR.*401 .*administer on @scheduler", answer, re.DOTALL), answer


def test_peer_with_the_right_takes_schedules_over_and_gives_them_back(tmp_path: Path) -> None:
    with served(tmp_path, {}) as here, here.peer("owner") as owner, here.peer("scheduler") as scheduler:
        owner.say("SCHEDULE", "s", "reports", "nohaste,create-queue", "3600", CALL, "")
        wait_until(lambda: here.schedules() == [("reports", 3_600_000, 0)], what="the schedule")
        scheduler.say("INFORM", "i", "", "scheduler")
        assert scheduler.receive()[2] == b"ACK"
        owner.say("SCHEDULE", "s", "reports", "nohaste,unless-ended:1", "3600", CALL, "")
        assert scheduler.receive()[2:5] == [b"SCHEDULE", b"s", b"reports"]
        wait_until(lambda: here.schedules() == [], what="the hand-over")
        with here.peer("rogue") as rogue:
            rogue.say("UNSCHEDULE", "u", "mail", "", "3600", CALL, "")
            rogue.say("SCHEDULE", "s", "mail", "nohaste", "1", CALL, "")
            expect_denials(tmp_path, here, 2)
        assert scheduler.until_now() == []
        scheduler.close()

        def comes_back() -> bool:
            # The broker has noticed that the scheduler left once it keeps the schedule.
            owner.say("SCHEDULE", "s", "reports", "nohaste,unless-ended:1", "3600", CALL, "")
            return here.schedules() == [("reports", 3_600_000, 0)]

        wait_until(comes_back, what="the schedule at the broker")


def test_schedule_of_a_client_that_may_not_send_to_the_scheduler_stays_at_the_broker(tmp_path: Path) -> None:
    users = {"quiet": ["push:reports", "create:reports"]}
    tokens: dict[str, str] = {}
    store = AuthorityStore.of_data_dir(tmp_path)
    for name, rules in users.items():
        _, tokens[name] = store.add_token(json.dumps({"name": name, "allow": rules}))
    with served(tmp_path, tokens) as here, here.peer("quiet") as quiet, here.peer("scheduler") as scheduler:
        scheduler.say("INFORM", "i", "", "scheduler")
        assert scheduler.receive()[2] == b"ACK"
        quiet.say("SCHEDULE", "s", "reports", "nohaste,create-queue", "3600", CALL, "")
        wait_until(lambda: here.schedules() == [("reports", 3_600_000, 0)], what="the schedule at the broker")
        assert scheduler.until_now() == []


def test_client_that_closes_at_once_still_hands_its_schedule_over() -> None:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", shards=4) as broker:
        (url,) = (url for url in broker.listeners if url.endswith("role=frontend"))
        with EventmqPeer(url) as scheduler:
            scheduler.say("INFORM", "i", "", "scheduler")
            assert scheduler.receive()[2] == b"ACK"
            for number in range(20):
                with EventmqPeer(url) as client:
                    client.say("SCHEDULE", f"s{number}", f"queue{number}", "nohaste", "3600", f"job {number}", "")
                assert scheduler.receive()[2:5] == [b"SCHEDULE", b"s%d" % number, b"queue%d" % number]
            assert broker.schedules().total == 0


def test_right_on_one_object_does_not_make_an_administrator(tmp_path: Path) -> None:
    with served(tmp_path, {}) as here:
        for user in ("scraper", "scheduler"):
            for request in ("STATUS", "ROUTER_SHOW_WORKERS", "ROUTER_SHOW_SCHEDULERS", "DISCONNECT"):
                with here.peer(user, "emqp-admin") as peer:
                    peer.say(request, "r")
                    _, reason = peer._command()
                    assert b"401" in reason, reason
        assert here.broker.process.poll() is None
        with here.peer("operator", "emqp-admin") as peer:
            peer.say("STATUS", "r")
            assert peer.receive()[2] == b"REPLY"


def test_unknown_credentials_are_refused_before_any_schedule(tmp_path: Path) -> None:
    with served(tmp_path, {}) as here:
        url = f"emqp://{here.broker.ready['listeners']['emqp-frontend']}"
        with EventmqPeer(url, shakes=False) as stranger:
            stranger.send_bytes(GREETING + ready(b"DEALER"))
            stranger.say("INFORM", "i", "", "scheduler")
            stranger.say("SCHEDULE", "s", "reports", "", "3600", CALL, "")
            assert stranger.is_cut()
        assert here.schedules() == []
