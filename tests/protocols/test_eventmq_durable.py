"""Jobs in queues that save: their tries, their times and their results through restarts; and where each of them is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import mqcore
import programs
from eventmq_original import addresses
from eventmq_peer import GREETING, EventmqPeer, ready
from mqcore import QueueOptions, QueueStatus, admin, errors
from served import DISK_MIB, clean_environment, serving, wait_until
from small_disks import occupy

JOB = b'["run", {"path": "p", "callable": "c"}]'
FAILED = '{"value": "boom", "error": {"type": "ValueError"}}'


@dataclass
class Place:
    """A broker on a data directory, and where its sockets are."""

    broker: mqcore.Broker
    urls: dict[str, str]

    def client(self) -> EventmqPeer:
        return EventmqPeer(self.urls["frontend"], identity=b"client")

    def worker(self, slots: int = 1, queues: str = "", name: bytes = b"worker") -> EventmqPeer:
        peer = EventmqPeer(self.urls["backend"], identity=name)
        peer.inform(queues, slots)
        return peer

    def trace(self, job: str) -> admin.Trace:
        assert self.broker.admin_url is not None
        return admin.trace(self.broker.admin_url, job)


@contextlib.contextmanager
def running(directory: Path | None, *, history: bool = False, **options: int) -> Iterator[Place]:
    data_dir = None if directory is None else str(directory)
    config = mqcore.BrokerConfig(
        listen=("emqp://127.0.0.1:0", "tmqp://127.0.0.1:0"),
        admin="http://127.0.0.1:0",
        data_dir=data_dir,
        history=history,
        shards=2,
        **options,  # type: ignore[arg-type]
    )
    with mqcore.Broker(config) as broker:
        yield Place(broker, addresses(broker.listeners))


def request(peer: EventmqPeer, job: str, headers: str, queue: str = "default") -> None:
    peer.say("REQUEST", job, queue, headers, JOB)


async def declare(broker: mqcore.Broker, queue: str, **options: object) -> None:
    settings: dict[str, object] = {"status": QueueStatus.PULL, "delivery_handler": "at-least-once", **options}
    async with broker.client() as mq:
        await mq.declare(queue, 0, QueueOptions(**settings))  # type: ignore[arg-type]


async def letters(broker: mqcore.Broker, queue: str) -> list[tuple[str, dict[str, str]]]:
    async with broker.client() as mq:
        count = (await mq.queue(queue, 0).information()).messages
        pulled = await mq.queue(queue, 0).pull(count, bytes) if count else []
        return [(each.id, dict(each.headers)) for each in pulled]


def test_with_a_data_directory_a_job_is_confirmed_when_it_is_saved_and_waits_through_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as place, place.worker(slots=0), place.client() as client:
        for job, headers in (("kept", "guarantee"), ("plain", "")):
            request(client, job, headers)
            assert client.receive()[4] == job.encode()
    with running(tmp_path) as place, place.worker(slots=2) as worker:
        assert [worker.receive()[3] for _ in range(2)] == [b"kept", b"plain"]


def test_a_failed_try_is_remembered_and_the_next_has_its_time_also_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as place, place.client() as client:
        asyncio.run(declare(place.broker, "dead"))
        options = {"status": QueueStatus.ROUND_ROBIN, "dead_letter": "dead/0"}
        asyncio.run(declare(place.broker, "mail", **options))
        with place.worker(2, '[[1, "mail"]]') as worker:
            request(client, "j", "retry-count:1", "mail")
            assert worker.receive()[3] == b"j"
            worker.say("REPLY", "x", '{"error": "busy", "retry_after": 5}', "j")
            wait_until(lambda: place.trace("j").outcome == "delayed", what="the job to wait for its time")
            (now,) = place.trace("j").now
            assert (now.attempts, now.put_backs, now.saved) == (1, 1, True)
            # There is a free slot, and yet it does not come before its time.
            assert worker.until_now() == []
    with running(tmp_path) as place, place.worker(1, '[[1, "mail"]]') as worker:
        assert worker.receive()[3] == b"j"
        assert asyncio.run(letters(place.broker, "dead")) == []
        worker.say("REPLY", "x", FAILED, "j")
        wait_until(lambda: place.trace("j").now[-1].queue == "dead/0", what="the dead letter")
        ((job, headers),) = asyncio.run(letters(place.broker, "dead"))
        assert job == "j"
        assert (headers["Dead-Letter-Reason"], headers["Dead-Letter-Queue"]) == ("limit", "mail/0")
        assert headers["Dead-Letter-Error"] == "boom"


def test_a_guaranteed_job_that_fails_is_a_dead_letter_and_its_client_has_the_result(tmp_path: Path) -> None:
    with running(tmp_path) as place, place.client() as client:
        asyncio.run(declare(place.broker, "dead"))
        asyncio.run(declare(place.broker, "mail", status=QueueStatus.ROUND_ROBIN, dead_letter="dead/0"))
        with place.worker(1, '[[1, "mail"]]') as worker:
            request(client, "j", "guarantee,reply-requested", "mail")
            assert worker.receive()[3] == b"j"
            worker.say("REPLY", "x", FAILED, "j")
            assert client.receive()[4] == b"j"
            assert client.receive()[4:] == [FAILED.encode(), b"j"]
            wait_until(lambda: bool(asyncio.run(letters(place.broker, "dead"))), what="the dead letter")


def test_a_result_that_was_put_into_a_queue_survives_and_its_job_is_done(tmp_path: Path) -> None:
    with running(tmp_path) as place, place.client() as client:
        asyncio.run(declare(place.broker, "results"))
        with place.worker(1) as worker:
            request(client, "j", "guarantee,reply-requested,result-queue:results")
            worker.receive()
            worker.say("REPLY", "x", '{"value": 7}', "j")
            assert client.receive()[4] == b"j"
            assert client.receive()[4:] == [b'{"value": 7}', b"j"]
    with running(tmp_path) as place, place.worker(1) as worker:
        assert [job for job, _ in asyncio.run(letters(place.broker, "results"))] == ["j"]
        assert worker.until_now() == []


async def publish(broker: mqcore.Broker, queue: str, size: int) -> bool:
    """Publish a message; whether the disk had room for it."""
    async with broker.client() as mq:
        try:
            await mq.publish(f"{queue}/0", bytes(size))
        except errors.Busy:
            return False
    return True


async def fill(broker: mqcore.Broker, queue: str) -> None:
    """Publish until the disk has no room for more."""
    for _ in range(4 * DISK_MIB * 1024 // 32):
        if not await publish(broker, queue, 32 * 1024):
            return
    pytest.fail("four times the disk was published and never refused")


def test_a_guaranteed_job_whose_result_finds_no_room_on_the_disk_runs_again(small_disk: Path) -> None:
    result = json.dumps({"value": "x" * 64 * 1024})
    occupy(small_disk / "filler", leave=DISK_MIB // 2 << 20)
    with running(small_disk / "data") as place, place.client() as client:
        asyncio.run(declare(place.broker, "results"))
        with place.worker(1) as worker:
            request(client, "j", "guarantee,reply-requested,result-queue:results")
            worker.receive()
            assert client.receive()[4] == b"j"
            asyncio.run(fill(place.broker, "results"))
            worker.say("REPLY", "x", result, "j")
            worker.say("READY", "r")
            assert worker.receive()[3] == b"j", "it runs again"
            (small_disk / "filler").unlink()
            wait_until(lambda: asyncio.run(publish(place.broker, "results", 64 * 1024)), what="room on the disk")
            worker.say("REPLY", "x", result, "j")
            assert client.receive()[4:] == [result.encode(), b"j"]
        assert [job for job, _ in asyncio.run(letters(place.broker, "results"))].count("j") == 1


def test_a_job_is_traced_through_its_tries_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path, history=True) as place, place.client() as client:
        with place.worker(1, name=b"first"):
            request(client, "j", "guarantee,retry-count:2")
            client.receive()
            wait_until(lambda: place.trace("j").outcome == "delivered", what="the job to be with its worker")
            (now,) = place.trace("j").now
            assert [each.name for each in now.consumers] == ["first"]
            assert now.producer is not None
            assert (now.producer.name, now.producer.protocol) == ("client", "emqp")
        with place.worker(1, name=b"second") as second:
            second.receive()
            second.say("REPLY", "x", '{"error": "busy", "retry_after": 0}', "j")
            second.say("READY", "r")
            second.receive()
            second.say("REPLY", "x", '{"value": 1}', "j")
            wait_until(lambda: place.trace("j").outcome == "done", what="the job to be done")
        traced = place.trace("j")
        assert traced.now == ()
        output = [(step.kind, step.consumer and step.consumer.name) for step in traced.steps]
        assert output == [
            ("produced", None),
            ("saved", None),
            ("delivered", "first"),
            ("consumer-lost", "first"),
            ("put-back", None),
            ("delivered", "second"),
            ("nacked", "second"),
            ("put-back", None),
            ("delivered", "second"),
            ("acked", "second"),
        ]
        assert [step.reason for step in traced.steps if step.kind == "nacked"] == ["failed"]
        assert traced.steps[0].producer is not None
        assert traced.steps[0].producer.name == "client"
        assert [step.last for step in traced.steps] == [False] * 9 + [True]


def test_a_message_whose_body_is_on_the_disk_is_traced_by_its_number(tmp_path: Path) -> None:
    with running(tmp_path, history=True, memory_watermark=4000) as place:
        asyncio.run(declare(place.broker, "default"))
        with place.client() as client:
            for number in range(100):
                client.say("REQUEST", f"m{number}", "default", "", b"x" * 1000)
            assert {client.receive()[4] for _ in range(100)} == {b"m%d" % number for number in range(100)}
        for number in (0, 50, 99):
            traced = place.trace(f"m{number}")
            assert traced.outcome == "waiting", number
            assert traced.now[0].saved


def test_trace_without_history_shows_only_the_current_state() -> None:
    with running(None) as place, place.client() as client, place.worker(0) as worker:
        request(client, "j", "")
        wait_until(lambda: bool(place.broker.stats().queues[0].received), what="the job")
        traced = place.trace("j")
        assert (traced.outcome, traced.history, traced.steps) == ("waiting", False, ())
        worker.say("READY", "r")
        worker.receive()
        wait_until(lambda: not place.broker.stats().queues[0].unsettled, what="the job to be settled")
        with pytest.raises(errors.NotFound, match="history"):
            place.trace("j")
        with pytest.raises(errors.NotFound):
            place.trace("no/such id?")


def mqcore_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqcore", *arguments]
    return programs.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)


def test_the_command_line_traces_as_lines_and_as_json(tmp_path: Path) -> None:
    with running(tmp_path, history=True) as place, place.client() as client, place.worker(1) as worker:
        request(client, "j", "guarantee")
        worker.receive()
        url = str(place.broker.admin_url)
        shown = mqcore_cli("trace", "j", "--url", url)
        assert shown.returncode == 0, shown.stderr
        lines = [line.split("\t") for line in shown.stdout.splitlines()]
        assert lines[0] == ["at", "queue", "step", "attempt", "who", "why"]
        assert [line[2] for line in lines[1:]] == ["produced", "saved", "delivered", "delivered"]
        assert lines[-1][0] == "now"
        assert lines[-1][4] == "worker (emqp)"
        output = json.loads(mqcore_cli("trace", "j", "--url", url, "--json").stdout)
        assert (output["schema"], output["outcome"], output["now"][0]["state"]) == (
            "mqcore.trace/1",
            "delivered",
            "delivered",
        )
        missing = mqcore_cli("trace", "k", "--url", url)
        assert missing.returncode != 0
        assert "no message k" in missing.stderr


def test_trace_requires_the_right_to_administer(tmp_path: Path) -> None:
    added = mqcore_cli("token", "create", "boss", "--allow", "administer", "--data-dir", str(tmp_path))
    assert added.returncode == 0, added.stderr
    with running(tmp_path) as place, pytest.raises(errors.Unauthorized):
        place.trace("j")


def test_only_an_administrator_can_stop_the_program() -> None:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        urls = {name: f"tcp://{address}" for name, address in served.ready["listeners"].items()}
        with EventmqPeer(urls["emqp"]) as worker, EventmqPeer(urls["emqp-frontend"]) as client:
            worker.inform()
            for stranger in (worker, client):
                stranger.say("DISCONNECT", "d")
                stranger.until_now()
            assert served.process.poll() is None
            with EventmqPeer(urls["emqp-admin"]) as boss:
                boss.say("DISCONNECT", "d")
                assert boss.receive()[2:5:2] == [b"ACK", b"d"]
                assert served.process.wait(20) == 0
    assert any("stopped without a signal" in line for line in served.stderr_lines)


def test_rights_are_asked_for_also_where_a_broker_is_to_be_stopped(tmp_path: Path) -> None:
    added = mqcore_cli("token", "create", "boss", "--allow", "administer", "--data-dir", str(tmp_path))
    assert added.returncode == 0, added.stderr
    added = mqcore_cli("token", "create", "other", "--allow", "push:*", "--data-dir", str(tmp_path))
    other = added.stdout.strip()
    with running(tmp_path) as place:
        with EventmqPeer(place.urls["admin"], shakes=False) as nobody:
            nobody.send_bytes(GREETING + ready(b"DEALER"))
            nobody.say("DISCONNECT", "d")
            assert place.broker.wait(0.5) is False
        with EventmqPeer(place.urls["admin"], token=other) as somebody:
            somebody.say("DISCONNECT", "d")
            assert place.broker.wait(0.5) is False


async def test_a_program_that_serves_for_ever_returns_when_an_administrator_stops_it() -> None:
    async with mqcore.Broker(listen="emqp://127.0.0.1:0") as broker:
        serving_on = asyncio.create_task(broker.serve_forever())
        with await asyncio.to_thread(EventmqPeer, addresses(broker.listeners)["admin"]) as boss:
            boss.say("DISCONNECT", "d")
            await asyncio.wait_for(serving_on, 20)
        assert not broker.is_running
