"""Schedules that the broker keeps: they run, are listed, end, and outlive kill -9 with each run made once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import pytest

import mqcore
import programs
from depth import choices, rounds
from eventmq_peer import EventmqPeer
from mqcore import admin, journal
from mqcore._core import AuthorityStore
from mqcore.backup import backup, restore
from mqcore.errors import Busy, DataDirBusy, InvalidArgument, NotFound, NotRunning, Unauthorized
from served import ServedBroker, clean_environment, serving, wait_until

ROUNDS = rounds("CRASH", quick=2, full=200)
"""Kills in the middle of it."""

CALL = json.dumps(
    ["run", {"path": "m", "callable": "f", "args": [1], "kwargs": {}, "class_args": [], "class_kwargs": {}}]
)


def of_role(listeners: tuple[str, ...], role: str) -> str:
    """The URL of one of a broker's sockets."""
    (found,) = (url for url in listeners if url.endswith(f"role={role}"))
    return found


def work(url: str, queue: str, slots: int = 0) -> EventmqPeer:
    """A worker of a queue, which has joined."""
    worker = EventmqPeer(url)
    worker.say("INFORM", "i", json.dumps([[10, queue]]), "worker")
    assert worker.receive()[2] == b"ACK"
    for _ in range(slots):
        worker.say("READY", "r")
    return worker


def words(job: list[bytes]) -> dict[str, str]:
    """The headers of a job."""
    return dict(word.partition(":")[::2] for word in job[5].decode().split(","))


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", admin="http://127.0.0.1:0", shards=2) as broker:
        yield broker


def test_a_schedule_runs_on_its_grid_and_ends(broker: mqcore.Broker) -> None:
    frontend = EventmqPeer(of_role(broker.listeners, "frontend"))
    with work(of_role(broker.listeners, "backend"), "ticks", 100) as worker, frontend as client:
        client.say("SCHEDULE", "s", "ticks", "guarantee,nohaste,interval-ms:200,timeout:9", "1", CALL, "")
        runs = [worker.receive() for _ in range(3)]
        assert [run[4] for run in runs] == [b"ticks"] * 3
        assert [run[6].decode() for run in runs] == [CALL] * 3
        said = [words(run) for run in runs]
        assert [run["fence"] for run in said] == ["1", "2", "3"]
        assert {later - earlier for earlier, later in pairwise(int(run["due"]) for run in said)} == {200}
        assert all("guarantee" in run and run["timeout"] == "9" for run in said)
        assert all("nohaste" not in run and "interval-ms" not in run for run in said)
        assert len({bytes(run[3]) for run in runs}) == 3
        (kept,) = broker.schedules().schedules
        assert (kept.interval_ms, kept.queue, kept.catch_up, kept.left) == (200, "ticks", "latest", None)
        assert said[0]["schedule"] == kept.id
        client.say("UNSCHEDULE", "u", "ticks", "", "1", CALL, "")
        wait_until(lambda: broker.schedules().total == 0, what="the end of the schedule")


def test_runs_of_an_unknown_queue_go_to_default_under_its_name(broker: mqcore.Broker) -> None:
    with EventmqPeer(of_role(broker.listeners, "frontend")) as client:
        client.say("SCHEDULE", "s", "unknown", "run_count:1", "60", CALL, "")
        wait_until(lambda: any(queue.address == "default/0" for queue in broker.stats().queues), what="the queue")
        with work(of_role(broker.listeners, "backend"), "default", 1) as worker:
            run = worker.receive()
        assert (run[4], words(run)["fence"]) == (b"unknown", "1")
        wait_until(lambda: broker.schedules().total == 0, what="the last run")


def test_schedules_are_listed_by_what_is_due_next(broker: mqcore.Broker) -> None:
    assert broker.admin_url is not None
    with EventmqPeer(of_role(broker.listeners, "frontend")) as client:
        berlin = "nohaste,timezone:Europe/Berlin,catch-up:all,run_count:7"
        client.say("SCHEDULE", "s", "night", berlin, "-1", CALL.replace("f", "g"), "30 2 * * *")
        client.say("SCHEDULE", "s", "soon", "nohaste", "5", CALL, "")
        for broken in ("timezone:Mars/Base", "catch-up:perhaps", "interval-ms:1"):
            client.say("SCHEDULE", "s", "q", broken, "-1", CALL, "* * * * *")
        client.say("SCHEDULE", "s", "q", "", "-1", CALL, "* * * *")
        wait_until(lambda: len(broker.errors()) == 4, what="four refusals")
        wait_until(lambda: broker.schedules().total == 2, what="two schedules")
    found = admin.schedules(broker.admin_url)
    assert found == broker.schedules()
    soon, night = found.schedules
    assert (soon.queue, soon.interval_ms, soon.cron) == ("soon", 5000, None)
    assert (night.cron, night.timezone, night.catch_up, night.left) == ("30 2 * * *", "Europe/Berlin", "all", 7)
    assert night.due.minute == 30
    assert night.due.hour in {0, 1}
    assert broker.schedules(limit=1).total == 2
    assert [kept.queue for kept in broker.schedules(limit=1).schedules] == ["soon"]
    command = [sys.executable, "-m", "mqcore", "jobs", "schedules", "--url", broker.admin_url, "--json"]
    listed = programs.run(command, env=clean_environment(), capture_output=True, text=True, timeout=20, check=True)
    assert [row["queue"] for row in json.loads(listed.stdout)["schedules"]] == ["soon", "night"]
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        assert b"\nmqcore_schedules 2\n" in answer.read()


def test_unchanged_schedule_continues(broker: mqcore.Broker) -> None:
    with (
        work(of_role(broker.listeners, "backend"), "hours", 9) as worker,
        EventmqPeer(of_role(broker.listeners, "frontend")) as client,
    ):
        for _ in range(3):
            client.say("SCHEDULE", "s", "hours", "guarantee", "3600", CALL, "")
        assert words(worker.receive())["fence"] == "1"
        client.say("SCHEDULE", "s", "hours", "guarantee", "7200", CALL, "")
        assert words(worker.receive())["fence"] == "1", "another one begins anew, at once"
        assert not worker.kept


def serve(directory: Path) -> AbstractContextManager[ServedBroker]:
    listen = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0")
    environment = {"MQCORE_DELIVERY_HANDLER": "at-least-once"}
    arguments = (*listen, "--admin", "http://127.0.0.1:0", "--data-dir", str(directory))
    return serving(*arguments, environment=environment)


def runs_in(worker: EventmqPeer, seconds: float) -> list[dict[str, str]]:
    """The headers of all jobs that come until none has come for so long."""
    found = []
    worker.socket.settimeout(seconds)
    try:
        while True:
            found.append(words(worker.receive()))
            worker.say("READY", "r")
    except TimeoutError:
        return found


def test_a_program_ends_a_schedule_of_its_broker_by_its_id(broker: mqcore.Broker) -> None:
    with EventmqPeer(of_role(broker.listeners, "frontend")) as client:
        for queue, call in (("one", CALL), ("two", CALL.replace("f", "g"))):
            client.say("SCHEDULE", "s", queue, "nohaste", "3600", call, "")
        wait_until(lambda: broker.schedules().total == 2, what="both schedules")
    one = next(kept.id for kept in broker.schedules().schedules if kept.queue == "one")
    broker.unschedule(one)
    assert [kept.queue for kept in broker.schedules().schedules] == ["two"]
    with pytest.raises(NotFound, match="mqcore jobs schedules") as missing:
        broker.unschedule(one)
    assert (missing.value.code, missing.value.target) == (404, one)
    for malformed in ("", "one", one[1:], "g" * 40):
        with pytest.raises(InvalidArgument, match="40 hexadecimal digits"):
            broker.unschedule(malformed)
        with pytest.raises(InvalidArgument, match="40 hexadecimal digits"):
            admin.unschedule("http://127.0.0.1:1", malformed)
    broker.stop()
    with pytest.raises(NotRunning):
        broker.unschedule(one)


def test_removed_schedule_stays_removed_after_kill_9(tmp_path: Path) -> None:
    store = AuthorityStore.of_data_dir(tmp_path)
    _, token = store.add_token(json.dumps({"name": "ends", "allow": ["administer:/schedules*", "push:*"]}))
    _, reader = store.add_token(json.dumps({"name": "reads", "allow": ["administer:/schedules"]}))

    def unschedule(*arguments: str, token: str = token) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqcore", "jobs", "unschedule", *arguments, "--url", broker.admin_url]
        environment = clean_environment() | {"MQCORE_TOKEN": token}
        return programs.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)

    with serve(tmp_path) as broker:
        frontend = f"emqp://{broker.ready['listeners']['emqp-frontend']}"
        with EventmqPeer(frontend, token=token) as client:
            for number, queue in enumerate(("by-http", "by-program", "goes-on")):
                client.say("SCHEDULE", "s", queue, "nohaste", "3600", CALL.replace("1", str(number)), "")
            wait_until(lambda: admin.schedules(broker.admin_url, token=token).total == 3, what="the schedules")
        ids = {kept.queue: kept.id for kept in admin.schedules(broker.admin_url, token=token).schedules}
        for allowed in (None, "mqt_0123456789ab_nobodyhasthistoken", reader):
            with pytest.raises(Unauthorized):
                admin.unschedule(broker.admin_url, ids["by-http"], token=allowed)
        refused = unschedule(ids["by-http"], token=reader)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert admin.schedules(broker.admin_url, token=token).total == 3
        admin.unschedule(broker.admin_url, ids["by-http"], token=token)
        ended = unschedule(ids["by-program"], "--json")
        assert json.loads(ended.stdout) == {"schema": "mqcore.jobs.unschedule/1", "id": ids["by-program"]}
        # It was confirmed: nothing may bring them back, whenever the broker dies.
        broker.process.kill()
        broker.process.wait()
    with serve(tmp_path) as broker:
        (kept,) = admin.schedules(broker.admin_url, token=token).schedules
        assert kept.queue == "goes-on"
        with pytest.raises(NotFound, match=ids["by-http"]):
            admin.unschedule(broker.admin_url, ids["by-http"], token=token)
        missing = unschedule(ids["by-program"])
        assert (missing.returncode, missing.stdout) == (3, "")
        assert f"keeps no schedule {ids['by-program']}" in missing.stderr
        malformed = unschedule("by-program")
        assert (malformed.returncode, "40 hexadecimal digits" in malformed.stderr) == (2, True)
        assert unschedule(ids["goes-on"].upper()).returncode == 0
        assert admin.schedules(broker.admin_url, token=token).total == 0
    audit = (tmp_path / "audit.jsonl").read_text()
    assert f'"resource":"/schedules/{ids["by-http"]}"' in audit


def test_removing_a_schedule_fails_on_a_full_disk(small_disk: Path) -> None:
    store = AuthorityStore.of_data_dir(small_disk / "data")
    _, token = store.add_token(json.dumps({"name": "all", "allow": ["*"]}))
    large = CALL.replace("1", json.dumps("x" * 60_000))

    def metrics() -> bytes:
        request = urllib.request.Request(f"{broker.admin_url}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    with serve(small_disk / "data") as broker:
        frontend = f"emqp://{broker.ready['listeners']['emqp-frontend']}"
        with EventmqPeer(frontend, token=token) as client:
            # No worker takes its runs, so they stay until there is no space for more.
            client.say("SCHEDULE", "s", "default", "catch-up:all,interval-ms:10,guarantee", "1", large, "")
            wait_until(lambda: admin.schedules(broker.admin_url, token=token).total == 1, what="the schedule")
        (kept,) = admin.schedules(broker.admin_url, token=token).schedules
        wait_until(lambda: b"\nmqcore_schedules_failing 1\n" in metrics(), limit=60, what="the end of the disk")
        wait_until(
            lambda: re.search(rb"\nmqcore_schedule_runs_pending [1-9]", metrics()) is not None,
            what="a run that cannot be saved",
        )
        with pytest.raises(Busy, match="cannot be saved now"):
            admin.unschedule(broker.admin_url, kept.id, token=token)
        assert admin.schedules(broker.admin_url, token=token).total == 1


def all_runs_of(broker: ServedBroker, queue: str) -> list[dict[str, str]]:
    """The headers of all runs that a queue has, once its only schedule has ended."""
    listeners = broker.ready["listeners"]
    with EventmqPeer(f"emqp://{listeners['emqp-frontend']}") as client:
        client.say("UNSCHEDULE", "u", queue, "", "1", CALL, "")
        wait_until(
            lambda: all(kept.queue != queue for kept in admin.schedules(broker.admin_url).schedules), what="its end"
        )
    with work(f"emqp://{listeners['emqp']}", queue, 100) as worker:
        return runs_in(worker, 2.0)


def test_backups_of_schedules_that_run_all_the_time_bring_them_back_and_each_run_is_made_once(tmp_path: Path) -> None:
    interval, taken = 20, []
    with serve(tmp_path / "data") as broker:
        listeners = broker.ready["listeners"]
        work(f"emqp://{listeners['emqp']}", "ticks").close()
        with EventmqPeer(f"emqp://{listeners['emqp-frontend']}") as client:
            client.say("SCHEDULE", "s", "ticks", f"catch-up:all,interval-ms:{interval}", "1", CALL, "")
            berlin = "nohaste,timezone:Europe/Berlin,catch-up:none,run_count:7"
            client.say("SCHEDULE", "s", "night", berlin, "-1", CALL.replace("f", "g"), "30 2 * * *")
            wait_until(lambda: admin.schedules(broker.admin_url).total == 2, what="both schedules")
        for number in range(3):
            time.sleep(0.1 + 0.03 * number)
            ticks, night = admin.schedules(broker.admin_url).schedules
            backup(tmp_path / f"running-{number}", url=broker.admin_url)
            taken.append((f"running-{number}", ticks.runs))
        broker.process.kill()
        broker.process.wait()
    backup(tmp_path / "killed.tar.zst", data_dir=tmp_path / "data")
    taken.append(("killed.tar.zst", ticks.runs))
    for source, made_before in taken:
        data = tmp_path / f"from-{source}"
        back = restore(tmp_path / source, data)
        assert (back.schedules, back.findings) == (2, ())
        with serve(data) as broker:
            assert night in admin.schedules(broker.admin_url).schedules, "as it was"
            runs = all_runs_of(broker, "ticks")
        assert len(runs) >= made_before > 0
        assert [int(run["fence"]) for run in runs] == list(range(1, len(runs) + 1)), "each of them once, in order"
        first = int(runs[0]["due"])
        assert [int(run["due"]) for run in runs] == [first + interval * at for at in range(len(runs))]


def test_the_journal_of_schedules_is_listed_and_verified(tmp_path: Path) -> None:
    with serve(tmp_path) as broker:
        with EventmqPeer(f"emqp://{broker.ready['listeners']['emqp-frontend']}") as client:
            for number in range(3):
                client.say("SCHEDULE", "s", "night", "nohaste", "3600", CALL.replace("1", str(number)), "")
            wait_until(lambda: admin.schedules(broker.admin_url).total == 3, what="the schedules")
            client.say("UNSCHEDULE", "u", "night", "", "1", CALL, "")
            wait_until(lambda: admin.schedules(broker.admin_url).total == 2, what="the end of one")
        with pytest.raises(DataDirBusy):
            journal.segments(tmp_path)
        assert broker.terminate() == 0

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqcore", "journal", *arguments, str(tmp_path)]
        environment = clean_environment()
        return programs.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)

    listing = journal.segments(tmp_path)
    assert (listing.schedules, listing.runs, listing.limits, listing.live) == (2, 0, 0, 0)
    beside = [segment for segment in listing.segments if segment.journal == "schedules"]
    assert [segment.shard for segment in beside] == [None] * len(beside)
    assert sum(segment.live for segment in beside) == 3, "two schedules, and the record of the one that has ended"
    assert listing.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.segment"))
    listed = run("ls")
    assert "\nschedules\t" in listed.stdout
    assert listed.stderr.rstrip().endswith("2 schedules")
    assert json.loads(run("ls", "--json").stdout)["schedules"] == 2
    verified = run("verify")
    assert (verified.returncode, "2 schedules" in verified.stdout) == (0, True)
    # One byte in the middle of what was saved.
    file = tmp_path / "schedules" / f"{beside[0].number:010}.segment"
    payload = bytearray(file.read_bytes())
    payload[payload.index(b"night")] ^= 1
    file.write_bytes(payload)
    damaged = run("verify", "--json")
    output = json.loads(damaged.stdout)
    assert (damaged.returncode, output["damaged"]) == (6, True)
    assert {(finding["journal"], finding["shard"]) for finding in output["findings"]} == {("schedules", None)}


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_each_due_time_runs_once_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    chance = choices(__name__)
    interval, calls = 50, [CALL, CALL.replace("f", "g")]
    for kill in range(ROUNDS):
        with serve(tmp_path) as broker:
            listeners = broker.ready["listeners"]
            if kill == 0:
                for queue in ("ticks", "tocks"):
                    work(f"emqp://{listeners['emqp']}", queue).close()
                with EventmqPeer(f"emqp://{listeners['emqp-frontend']}") as client:
                    for queue, call in zip(("ticks", "tocks"), calls, strict=True):
                        said = f"catch-up:all,interval-ms:{interval}"
                        client.say("SCHEDULE", "s", queue, said, "1", call, "")
                    wait_until(lambda: admin.schedules(broker.admin_url).total == 2, what="both schedules")
            time.sleep(chance.uniform(0.2, 0.8))
            broker.process.kill()
            broker.process.wait()
    with serve(tmp_path) as broker:
        listeners = broker.ready["listeners"]
        assert admin.schedules(broker.admin_url).total == 2
        with EventmqPeer(f"emqp://{listeners['emqp-frontend']}") as client:
            for call in calls:
                client.say("UNSCHEDULE", "u", "ticks", "", "1", call, "")
            wait_until(lambda: admin.schedules(broker.admin_url).total == 0, what="their end")
        for queue in ("ticks", "tocks"):
            with work(f"emqp://{listeners['emqp']}", queue, 100) as worker:
                runs = runs_in(worker, 2.0)
            assert len(runs) > ROUNDS * 4
            assert [int(run["fence"]) for run in runs] == list(range(1, len(runs) + 1)), "each of them once, in order"
            first = int(runs[0]["due"])
            assert [int(run["due"]) for run in runs] == [first + interval * at for at in range(len(runs))]
