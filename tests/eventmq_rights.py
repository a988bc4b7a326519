"""EventMQ in the tests of rights: workers, clients, schedulers, publishers, subscribers and administrators.

The sockets are plain ones, because libzmq does not show the ERROR of a broker to its program.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eventmq_peer import GREETING, EventmqPeer, Message, ready
from personas import ALLOWED, DENIED, MINE, OTHER, TOLD_TO_WAIT, TURNED_AWAY, Place, attempts
from served import wait_until
from tmqp_peer import QUEUE, RawFrame

LIMIT = 40.0
"""Seconds until an attempt must have an answer, an effect or a denial. The test has more time."""
A_CLIENT = "an id that the broker makes"
"""The client id of a peer of EventMQ: no rule can name it."""

PUSH, PUSH_ELSEWHERE = ("push", f"{MINE}/1"), ("push", f"{OTHER}/1")
UNKNOWN = f"{MINE}/77"
"""A queue that does not exist."""
TO_UNKNOWN = (("push", UNKNOWN), ("push", "default"), ("create", "default"))
TO_CREATED = (("push", UNKNOWN), ("create", UNKNOWN))

# Queue and headers of the jobs of clients.
JOBS = {
    "REQUEST": (f"{MINE}/1", ""),
    "REQUEST elsewhere": (f"{OTHER}/1", ""),
    "REQUEST for a result": (f"{MINE}/1", "reply-requested"),
    "REQUEST for a result elsewhere": (f"{OTHER}/1", "reply-requested,guarantee"),
    "REQUEST to an unknown queue": (UNKNOWN, ""),
    "REQUEST to an unknown queue for a result": (UNKNOWN, "reply-requested"),
    "REQUEST to a queue that it creates": (UNKNOWN, "create-queue"),
    "REQUEST to a queue that it creates, for a result": (UNKNOWN, "reply-requested,create-queue"),
    "REQUEST of a scheduler": (f"{MINE}/1", ""),
}

# Queue, headers, and the queue that the schedule has before.
SCHEDULES = {
    "SCHEDULE": (f"{MINE}/1", "nohaste", ""),
    "SCHEDULE elsewhere": (f"{OTHER}/1", "nohaste", ""),
    "SCHEDULE again": (f"{MINE}/1", "nohaste,run_count:7", f"{MINE}/1"),
    "SCHEDULE that moves elsewhere": (f"{OTHER}/1", "nohaste", f"{MINE}/1"),
    "SCHEDULE that moves from elsewhere": (f"{MINE}/1", "nohaste", f"{OTHER}/1"),
    "UNSCHEDULE": (f"{MINE}/1", "", f"{MINE}/1"),
    "UNSCHEDULE elsewhere": (f"{OTHER}/1", "", f"{OTHER}/1"),
    "UNSCHEDULE what is elsewhere": (f"{MINE}/1", "", f"{OTHER}/1"),
}


class Refused(Exception):
    """The broker has sent ERROR."""


class Eventmq:
    """EventMQ: credentials are the property `X-Token` of the handshake."""

    entry: tuple[tuple[str, str], ...] = ()
    attempts = attempts(
        {
            "REQUEST": (PUSH,),
            "REQUEST elsewhere": (PUSH_ELSEWHERE,),
            "REQUEST for a result": (PUSH,),
            "REQUEST for a result elsewhere": (PUSH_ELSEWHERE,),
            "REQUEST to an unknown queue": TO_UNKNOWN,
            "REQUEST to an unknown queue for a result": TO_UNKNOWN,
            "REQUEST to a queue that it creates": TO_CREATED,
            "REQUEST to a queue that it creates, for a result": TO_CREATED,
            "REQUEST of a scheduler": (("administer", "@scheduler"), PUSH),
            "SCHEDULE": (PUSH,),
            "SCHEDULE elsewhere": (PUSH_ELSEWHERE,),
            "SCHEDULE again": (PUSH,),
            "SCHEDULE that moves elsewhere": (PUSH, PUSH_ELSEWHERE),
            "SCHEDULE that moves from elsewhere": (PUSH, PUSH_ELSEWHERE),
            "SCHEDULE that runs at once": (PUSH,),
            "SCHEDULE for a scheduler": (PUSH, ("direct", A_CLIENT)),
            "UNSCHEDULE": (PUSH,),
            "UNSCHEDULE elsewhere": (PUSH_ELSEWHERE,),
            "UNSCHEDULE what is elsewhere": (PUSH, PUSH_ELSEWHERE),
            "INFORM of a scheduler": (("administer", "@scheduler"),),
            "INFORM of a worker": (("receive", f"{MINE}/1"),),
            "INFORM of a worker elsewhere": (("receive", f"{OTHER}/1"),),
            "INFORM of a worker for two queues": (("receive", f"{MINE}/1"), ("receive", f"{OTHER}/1")),
            "INFORM of a worker for an unknown queue": (("receive", UNKNOWN),),
            "READY": (("receive", f"{MINE}/1"),),
            "HEARTBEAT of a worker": (("receive", f"{MINE}/1"),),
            "DISCONNECT of a worker": (("receive", f"{MINE}/1"),),
            "REPLY": (("receive", f"{MINE}/1"), ("direct", A_CLIENT)),
            "REPLY to a guaranteed job": (("receive", f"{MINE}/1"),),
            "REPLY to a result queue": (("receive", f"{MINE}/1"), PUSH_ELSEWHERE),
            "PUBLISH": (("publish", "orders.new"),),
            "PUBLISH elsewhere": (("publish", "invoices.new"),),
            "PUBLISH at the frontend": (("publish", "orders.new"),),
            "PUBLISH elsewhere at the frontend": (("publish", "invoices.new"),),
            "subscribe": (("subscribe", "orders.new*"),),
            "subscribe elsewhere": (("subscribe", "invoices.new*"),),
            "subscribe to everything": (("subscribe", "*"),),
            "STATUS": (("administer", "*"),),
            "ROUTER_SHOW_WORKERS": (("administer", "*"),),
            "ROUTER_SHOW_SCHEDULERS": (("administer", "*"),),
            "HEARTBEAT of a client": (),
            "DISCONNECT of a client": (),
        }
    )

    def can_show(self, name: str) -> bool:
        return True

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        trial = Trial(place, credentials)
        with contextlib.ExitStack() as stack:
            try:
                peer = stack.enter_context(trial.connected(role_of(name)))
            except Refused as refused:
                return TOLD_TO_WAIT if "503 " in str(refused) else TURNED_AWAY
            outcome = self.try_once(trial, peer, name)
        trial.tidy(name)
        return outcome

    def try_once(self, trial: Trial, peer: EventmqPeer, name: str) -> str:
        if name in JOBS:
            return trial.request(peer, name)
        if name in SCHEDULES:
            return trial.change_schedule(peer, name)
        if name.startswith(("INFORM", "READY", "REPLY")) or name.endswith("of a worker"):
            return trial.work(peer, name)
        if name.startswith("PUBLISH"):
            return trial.publish(peer, f"{OTHER if 'elsewhere' in name else MINE}.new")
        if name.startswith("subscribe"):
            topic = "" if "everything" in name else f"{OTHER if 'elsewhere' in name else MINE}.new"
            return trial.subscribe(peer, topic)
        if name.startswith("SCHEDULE that runs at once"):
            unknown = name.endswith("for an unknown queue")
            return trial.run_at_once(peer, *((UNKNOWN, "default/0") if unknown else (f"{MINE}/1", f"{MINE}/1")))
        if name == "SCHEDULE for a scheduler":
            return trial.hand_over(peer)
        peer.say(name.partition(" ")[0], "asked")
        if name.endswith("of a client"):
            # Neither has an answer, nor an effect on the connection, which answers what comes behind it.
            assert peer.until_now() == []
            return ALLOWED
        return trial.answer(peer, b"REPLY")


def role_of(name: str) -> str:
    """The listener for an attempt."""
    if name.startswith(("INFORM of a worker", "READY", "REPLY")) or name.endswith("of a worker"):
        return "backend"
    if name.startswith("PUBLISH") and "frontend" not in name:
        return "publish"
    if name.startswith("subscribe"):
        return "subscribe"
    return "admin" if name.startswith(("STATUS", "ROUTER")) else "frontend"


def connect(place: Place, role: str, token: str, identity: bytes = b"") -> EventmqPeer:
    """A peer that the broker has accepted. Raises `Refused`."""
    (url,) = (url for url in place.broker.listeners if url.startswith("emqp:") and url.endswith(f"?role={role}"))
    kind = b"SUB" if role == "subscribe" else b"DEALER"
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(EventmqPeer(url, shakes=False))
        peer.socket.settimeout(LIMIT)
        peer.send_bytes(GREETING + ready(kind, identity, token))
        assert peer.read(64)[:10] == GREETING[:10]
        answer = peer.heard_or_control()
        if isinstance(answer, tuple) and answer[0] == b"ERROR":
            assert peer.is_cut()
            raise Refused(answer[1][1:].decode())
        assert answer[0] == b"READY"
        stack.pop_all()
        return peer


def call(mark: str) -> str:
    """A job. `mark` makes it, and thus its schedule, another one."""
    fields = {"path": "m", "callable": "f", "args": [mark], "kwargs": {}, "class_args": [], "class_kwargs": {}}
    return json.dumps(["run", fields])


class Trial:
    """One attempt, and what others do for it."""

    def __init__(self, place: Place, credentials: str) -> None:
        self.place, self.credentials = place, credentials
        self.mark = uuid.uuid4().hex
        self.address = ""
        self._audited = place.audit.stat().st_size if place.audit.exists() else 0

    @contextmanager
    def connected(self, role: str) -> Iterator[EventmqPeer]:
        """The peer whose rights are tried."""
        with connect(self.place, role, self.credentials) as peer:
            host, port = peer.socket.getsockname()
            self.address = f'"address":"{host}:{port}"'
            yield peer

    @contextmanager
    def owner(self, role: str) -> Iterator[EventmqPeer]:
        """A peer that may do everything."""
        with connect(self.place, role, self.place.shown["admin token"]) as peer:
            yield peer

    # --- what is seen from outside -------------------------------------------------------------------------------

    def denied(self) -> list[str]:
        """The actions of the peer that were denied, as the audit log has them."""
        if not self.place.audit.exists():
            return []
        with open(self.place.audit) as file:
            file.seek(self._audited)
            lines = [line for line in file if line.endswith("\n") and self.address in line]
        return [found["action"] for found in map(json.loads, lines) if found["verdict"] == "denied"]

    def verdict(self, has_effect: Callable[[], bool]) -> str:
        """Wait for the effect or the denial."""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            if has_effect():
                return ALLOWED
            if self.denied():
                return DENIED
            time.sleep(0.002)
        raise AssertionError("neither an effect nor a denial")

    def answer(self, peer: EventmqPeer, expected: bytes) -> str:
        """The broker answers with this command, or with ERROR."""
        while isinstance(found := peer.heard_or_control(), list):
            if found[2] != b"HEARTBEAT":
                assert found[2] == expected, found
                return ALLOWED
        assert found[0] == b"ERROR", found
        assert re.match(rb".401 .*", found[1], re.DOTALL), found
        return DENIED

    def received(self, queue: str) -> int:
        """Number of messages that a queue has received so far."""
        return sum(known.received for known in self.place.broker.stats().queues if known.address == queue)

    def waiting(self, queue: str) -> int:
        """Number of messages in a queue."""
        return sum(
            known.normal + known.high_priority + known.in_flight
            for known in self.place.broker.stats().queues
            if known.address == queue
        )

    def scheduled(self) -> list[tuple[str, int | None]]:
        """Queue and remaining runs of the schedule of this attempt, if the broker runs it."""
        kept = self.place.broker.schedules().schedules
        return [(each.queue, each.left) for each in kept if self.mark in each.job]

    # --- clients -------------------------------------------------------------------------------------------------

    def request(self, peer: EventmqPeer, name: str) -> str:
        queue, headers = JOBS[name]
        goes_to = "default/0" if "to an unknown queue" in name else queue
        before = self.received(goes_to)
        if name == "REQUEST of a scheduler":
            peer.say("INFORM", "inform", "", "scheduler")
            if self.answer(peer, b"ACK") == DENIED:
                return DENIED
        peer.say("REQUEST", self.mark, queue, headers, call(self.mark))
        if "reply-requested" in headers and self.answer_to_job(peer) == DENIED:
            return DENIED
        return self.verdict(lambda: self.received(goes_to) > before)

    def answer_to_job(self, peer: EventmqPeer) -> str:
        """A notice that the queue has the job, or a result that says why not."""
        frames = peer.receive()
        assert frames[2] == b"REPLY"
        if len(frames) == 5:
            return ALLOWED
        assert frames[5] == self.mark.encode()
        assert json.loads(frames[4])["error"]["type"] == "Denied", frames
        return DENIED

    def change_schedule(self, peer: EventmqPeer, name: str) -> str:
        queue, headers, has = SCHEDULES[name]
        runs = 7 if "run_count" in headers else None
        expected = [(queue, runs)] if name.startswith("SCHEDULE") else []
        before = [(has, None)] if has else []
        if has:
            with self.owner("frontend") as owner:
                owner.say("SCHEDULE", "own", has, "nohaste", "3600", call(self.mark), "")
                wait_until(lambda: self.scheduled() == before, what="the schedule of the owner")
        peer.say(name.partition(" ")[0], "asked", queue, headers, "3600", call(self.mark), "")
        outcome = self.verdict(lambda: self.scheduled() == expected)
        if outcome == DENIED:
            assert self.scheduled() == before, "the denied request has changed the schedule"
        elif "create-queue" in headers:
            outcome = self.verdict(lambda: any(known.address == queue for known in self.place.broker.stats().queues))
        self.end_schedule()
        return outcome

    def end_schedule(self) -> None:
        """The owner ends the schedule of this attempt, wherever it is."""
        with self.owner("frontend") as owner:
            owner.say("UNSCHEDULE", "end", f"{MINE}/1", "", "3600", call(self.mark), "")
            wait_until(lambda: self.scheduled() == [], what="the end of the schedule")

    def run_at_once(self, peer: EventmqPeer, queue: str, goes_to: str) -> str:
        before = self.received(goes_to)
        peer.say("SCHEDULE", "asked", queue, "", "3600", call(self.mark), "")
        outcome = self.verdict(lambda: self.received(goes_to) > before)
        self.end_schedule()
        return outcome

    def hand_over(self, peer: EventmqPeer) -> str:
        """The schedule goes to the scheduler, or stays at the broker, or the broker denies it."""
        with self.owner("frontend") as scheduler:
            scheduler.say("INFORM", "inform", "", "scheduler")
            assert self.answer(scheduler, b"ACK") == ALLOWED
            peer.say("SCHEDULE", "asked", f"{MINE}/1", "nohaste", "3600", call(self.mark), "")
            outcome = self.verdict(lambda: scheduler.has_input() and self.is_handed_over(scheduler))
            if outcome == DENIED and self.denied() == ["direct"]:
                wait_until(lambda: self.scheduled() == [(f"{MINE}/1", None)], what="the schedule at the broker")
            self.end_schedule()
        self.wait_until_all_have_left("ROUTER_SHOW_SCHEDULERS", "connected_schedulers")
        return outcome

    def is_handed_over(self, scheduler: EventmqPeer) -> bool:
        frames = scheduler.heard()
        return frames[2:4] == [b"SCHEDULE", b"asked"] and frames[4] == f"{MINE}/1".encode()

    # --- workers and schedulers ----------------------------------------------------------------------------------

    def work(self, peer: EventmqPeer, name: str) -> str:
        if name == "INFORM of a scheduler":
            peer.say("INFORM", "inform", "", "scheduler")
            return self.answer(peer, b"ACK")
        queue = f"{OTHER}/1" if "elsewhere" in name else UNKNOWN if "unknown" in name else f"{MINE}/1"
        queues = [[10, queue], [5, f"{OTHER}/1"]] if "two queues" in name else [[10, queue]]
        peer.say("INFORM", "inform", json.dumps(queues), "worker")
        if self.answer(peer, b"ACK") == DENIED:
            assert peer.is_cut()
            return DENIED
        if name.startswith("INFORM"):
            return ALLOWED
        with self.owner("frontend") as owner:
            return self.serve(peer, owner, name)

    def serve(self, peer: EventmqPeer, owner: EventmqPeer, name: str) -> str:
        """The owner sends a job, and the worker runs it."""
        headers = {
            "REPLY": "reply-requested",
            "REPLY to a guaranteed job": "guarantee",
            "REPLY to a result queue": f"guarantee,result-queue:{OTHER}/1",
        }.get(name, "")
        if "of a worker" in name:
            peer.say(name.partition(" ")[0], "said")
        if name == "DISCONNECT of a worker":
            peer.say("READY", "late")
            # The broker has read it when it answers.
            assert peer.until_now() == []
        else:
            peer.say("READY", "ready")
        self.place.own[f"{MINE}/1"] += 1
        results, before = self.received(f"{OTHER}/1"), self.received(f"{MINE}/1")
        owner.say("REQUEST", self.mark, f"{MINE}/1", headers, call(self.mark))
        if name == "DISCONNECT of a worker":
            wait_until(lambda: self.received(f"{MINE}/1") > before, what="the job in its queue")
            assert peer.until_now() == []
            assert self.waiting(f"{MINE}/1") == 1
            return ALLOWED
        job = peer.receive()
        assert job[2:5] == [b"REQUEST", self.mark.encode(), f"{MINE}/1".encode()], job
        peer.say("REPLY", "done", "true", self.mark)
        outcome = ALLOWED
        if name == "REPLY":
            outcome = self.verdict(lambda: owner.has_input() and self.is_result(owner.receive()))
        if name == "REPLY to a result queue":
            outcome = self.verdict(lambda: self.received(f"{OTHER}/1") > results)
        # Without `guarantee`, the job was done when it was delivered.
        wait_until(lambda: self.waiting(f"{MINE}/1") == 0, what="the end of the job")
        return outcome

    def is_result(self, frames: Message) -> bool:
        """Whether this is the result of the job; otherwise it is the notice before it."""
        return len(frames) == 6 and frames[4:] == [b"true", self.mark.encode()]

    # --- topics --------------------------------------------------------------------------------------------------

    def publish(self, peer: EventmqPeer, topic: str) -> str:
        peer.say("PUBLISH", "asked", topic, self.mark)

        def arrives() -> bool:
            listener = self.place.listener
            while select.select([listener.socket], [], [], 0)[0]:
                if listener.receive().payload == self.mark.encode():
                    return True
            return False

        return self.verdict(arrives)

    def subscribe(self, peer: EventmqPeer, topic: str) -> str:
        peer.send(b"\x01" + topic.encode())
        body = RawFrame(kind=QUEUE, id=b"p", target=f"@topic:{topic or 'orders.new'}".encode(), payload=b"news")
        # A subscription has no answer: messages of the topic arrive as soon as it holds.
        until = time.monotonic() + LIMIT
        while not select.select([peer.socket], [], [], 0.005)[0]:
            assert time.monotonic() < until, "neither a message nor a denial"
            self.place.peer.send(body)
        found = peer.heard_or_control()
        if isinstance(found, list):
            assert found == [(topic or "orders.new").encode(), b"news"]
            return ALLOWED
        assert found[0] == b"ERROR", found
        assert b"401 " in found[1], found
        return DENIED

    # --- afterwards ----------------------------------------------------------------------------------------------

    def tidy(self, name: str) -> None:
        """Wait until workers and schedulers have left."""
        if "scheduler" in name:
            self.wait_until_all_have_left("ROUTER_SHOW_SCHEDULERS", "connected_schedulers")
        if role_of(name) == "backend":
            self.wait_until_all_have_left("ROUTER_SHOW_WORKERS", "connected_workers")

    def wait_until_all_have_left(self, request: str, field: str) -> None:
        with self.owner("admin") as admin:

            def is_empty() -> bool:
                admin.say(request, "q")
                return json.loads(admin.receive()[4])[field] == {}

            wait_until(is_empty, what="the end of connections")
