"""Ten planted problems, each named with cause and remedy, and a broker without problems."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import QueueOptions, QueueStatus, admin, errors
from ports import free_ports
from served import ServedBroker, serving
from small_disks import occupy
from test_cli import mqcore as cli
from test_cli import one

APP = """
import time

import mqcore


class Blocked(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        time.sleep(3600)


class Kind(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        return mqcore.Decision(save=True, acknowledge="if-saved")


first = {"blocked": Blocked(), "gone": Kind()}
second = {"blocked": Blocked()}
"""

PROBLEMS = {
    "blocked-handler": "handler blocked",
    "no-consumer": "queue lonely/1",
    "slow-consumer": "queue slow/1",
    "dead-letters": "queue failing/1",
    "missing-handler": "queue homeless/1",
    "disk-full": "journal of shard 0",
    "paused-queue": "queue paused/1",
    "limit-reached": "queue limited/1",
    "node-down": "node ",
    "clock-jump": "system clock",
}
"""The ten problems, and what each is about."""

NOTICED = 10.0
"""Seconds until all are named. The broker looks once a second and waits three seconds for what may pass by itself."""

ACKNOWLEDGED = {"request_acknowledge": True, "acknowledge_timeout": 3600.0}


@contextlib.contextmanager
def clock(directory: Path) -> Any:
    """Environment of a program whose system clock follows a file, and that file."""
    shim, offset = directory / "clock.so", directory / "offset"
    offset.write_text("0")
    source = Path(__file__).with_name("system_clock.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    yield {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(offset)}, offset


async def plant(mq: mqcore.Client, filler: Path, offset: Path) -> None:
    """Plant all problems but the missing handler and the node, which are there from the start."""
    await mq.declare("lonely", 1, QueueOptions(status=QueueStatus.PUSH))
    await mq.publish("lonely/1", b"waits", confirm=False)
    await mq.declare("paused", 1, QueueOptions(status=QueueStatus.PAUSED))
    await mq.declare("limited", 1, QueueOptions(status=QueueStatus.PULL, publish_limit="1/s"))
    await mq.declare("blocked", 1, QueueOptions(delivery_handler="blocked"))
    await mq.publish("blocked/1", b"undecided", confirm=False)
    dead = QueueOptions(status=QueueStatus.ROUND_ROBIN, put_back_limit=0, dead_letter="failing/65535", **ACKNOWLEDGED)
    await mq.declare("failing", 65535, QueueOptions(status=QueueStatus.PULL))
    await mq.declare("failing", 1, dead)
    async with mq.queue("failing/1").consume(bytes, prefetch=20, idle_timeout=2.0) as messages:
        for number in range(20):
            await mq.publish("failing/1", f"{number}".encode())
        async for message in messages:
            await message.nack("planted")
    await mq.declare("saving", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
    occupy(filler, leave=0)
    for _ in range(3_000):
        try:
            await mq.publish("saving/1", b"x" * 32_768)
        except errors.Busy:
            break
    else:
        pytest.fail("the disk was not full")
    await asyncio.to_thread(offset.write_text, "86400")


@contextlib.asynccontextmanager
async def slow_consumer(mq: mqcore.Client) -> AsyncIterator[None]:
    """A consumer that acknowledges nothing."""
    await mq.declare("slow", 1, QueueOptions(status=QueueStatus.ROUND_ROBIN, **ACKNOWLEDGED))
    async with mq.queue("slow/1").consume(bytes, prefetch=2):
        for _ in range(10):
            await mq.publish("slow/1", b"work", confirm=False)
        yield


async def exceed(mq: mqcore.Client) -> None:
    """Publish more than the limit of a queue for ever."""
    while True:
        with contextlib.suppress(errors.MqcoreError):
            await mq.publish("limited/1", b"too many")
        await asyncio.sleep(0.05)


def named(findings: list[dict[str, Any]]) -> dict[str, str]:
    """The kinds of findings, each with its first subject. Every finding has a cause and a remedy."""
    for finding in findings:
        assert finding["cause"], finding
        assert finding["remedy"], finding
    return {finding["kind"]: finding["subject"] for finding in reversed(findings)}


async def until_named(what: str, look: Callable[[], dict[str, str]]) -> None:
    """Wait until `look` names all problems."""
    deadline = time.monotonic() + NOTICED
    while True:
        seen = await asyncio.to_thread(look)
        missing = {kind: subject for kind, subject in PROBLEMS.items() if not seen.get(kind, "").startswith(subject)}
        if not missing:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"{what} does not name {missing}; it names {seen}")
        await asyncio.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
async def test_ten_planted_problems_are_all_named_with_cause_and_remedy(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    where = ("--data-dir", str(small_disk / "data"), "--admin", "http://127.0.0.1:0", "--auto-create")
    common = ("--listen", "tmqp://127.0.0.1:0", *where)
    with serving("--app", "shop:first", *common, cwd=tmp_path, environment={"MQCORE_SHARDS": "1"}) as before:
        async with mqcore.connect(before.url) as mq:
            await mq.declare("homeless", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="gone"))
            await mq.publish("homeless/1", b"kept")
    upstream = ("--upstream", f"tmqp://127.0.0.1:{free_ports(1)[0]}")
    with (
        clock(tmp_path) as (environment, offset),
        serving(
            *("--app", "shop:second", *common, *upstream),
            cwd=tmp_path,
            environment={"MQCORE_SHARDS": "1", **environment},
        ) as broker,
    ):
        async with mqcore.connect(broker.url) as mq, slow_consumer(mq):
            await plant(mq, small_disk / "filler", offset)
            excess = asyncio.create_task(exceed(mq))
            try:
                await look_everywhere(broker)
            finally:
                excess.cancel()
        broker.process.kill()


async def look_everywhere(broker: ServedBroker) -> None:
    """The admin side and the three commands name all problems."""
    url = broker.admin_url

    def asked() -> dict[str, str]:
        found = admin.attention(url)
        assert found.total == sum(found.counts.values()) == len(found.findings)
        return {finding.kind: finding.subject for finding in reversed(found.findings)}

    def commanded(command: str, code: int) -> Callable[[], dict[str, str]]:
        def look() -> dict[str, str]:
            result = cli(*command.split(), "--json", "--url", url)
            assert result.returncode == code, result.stderr
            return named(json.loads(result.stdout)["findings"])

        return look

    def examined() -> dict[str, str]:
        result = cli("doctor", "--json", "--url", url)
        assert result.returncode == 1, result.stderr
        checks = json.loads(result.stdout)["checks"]
        problems = [check for check in checks if check["state"] in {"warn", "fail"}]
        assert all(check["remedy"] for check in problems)
        return {check["name"]: check["text"] for check in reversed(problems)}

    await until_named("the admin side", asked)
    await until_named("mqcore status", commanded("status --limit 1000", 1))
    await until_named("mqcore top", commanded("top --once", 0))
    await until_named("mqcore doctor", examined)
    with pytest.raises(urllib.error.HTTPError) as unhealthy:
        await asyncio.to_thread(urllib.request.urlopen, f"{url}/healthz", timeout=5)
    assert (unhealthy.value.code, json.load(unhealthy.value)["status"]) == (503, "critical")


@pytest.fixture(scope="module")
def healthy() -> Any:
    """A broker without problems."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as broker:
        yield broker


def test_a_healthy_broker_reports_no_problem(healthy: ServedBroker) -> None:
    deadline = time.monotonic() + 10
    while (found := admin.attention(healthy.admin_url)).status == "starting":
        assert time.monotonic() < deadline
    assert (found.status, found.summary, found.findings) == ("healthy", "Healthy.", ())
    with urllib.request.urlopen(f"{healthy.admin_url}/healthz", timeout=5) as page:
        assert json.load(page) == {"status": "healthy", "summary": "Healthy."}
    shown = cli("status", "--url", healthy.admin_url)
    assert (shown.returncode, "nothing needs attention" in shown.stdout.decode()) == (0, True)
    examined = cli("doctor", "--url", healthy.admin_url)
    assert "ok    findings: nothing needs attention" in examined.stdout.decode(), examined.stderr


def test_queues_are_sorted_filtered_and_paged_by_the_broker(healthy: ServedBroker) -> None:
    from mqcore import sync

    with sync.connect(healthy.url) as mq:
        for number in range(5):
            mq.declare("pages", number, QueueOptions(status=QueueStatus.PULL))
            for _ in range(number):
                mq.publish(f"pages/{number}", b"message")
        mq.declare("Other", 1, QueueOptions(status=QueueStatus.PULL))
    listed = admin.queues(healthy.admin_url, matching="PAGES")
    assert (listed.total, listed.matched) == (6, 5)
    assert [queue.queue for queue in listed.queues] == [f"pages/{number}" for number in range(5)]
    page = admin.queues(healthy.admin_url, matching="pages/", sort="ready", offset=1, limit=2)
    assert [(queue.queue, queue.ready) for queue in page.queues] == [("pages/3", 3), ("pages/2", 2)]
    (smallest,) = admin.queues(healthy.admin_url, matching="pages/", sort="ready", reverse=True, limit=1).queues
    assert (smallest.queue, smallest.oldest_seconds, smallest.block) == ("pages/0", None, None)
    oldest = admin.queues(healthy.admin_url, sort="oldest", limit=1).queues[0]
    assert oldest.queue == "pages/1"
    assert oldest.oldest_seconds is not None
    assert 0 <= oldest.oldest_seconds < 60
    assert (oldest.block, oldest.messages["received"]) == ("not-pulled", 1)
    with pytest.raises(errors.BadRequest, match="sort by one of name, ready"):
        admin.queues(healthy.admin_url, sort="colour")


def test_top_lists_queues_in_the_chosen_order_and_reports_list_those_that_are_stuck(healthy: ServedBroker) -> None:
    from mqcore import sync

    with sync.connect(healthy.url) as mq:
        for name, count in (("few", 1), ("many", 3)):
            mq.declare(name, 65535, QueueOptions(status=QueueStatus.PUSH))
            for _ in range(count):
                mq.publish(f"{name}/65535", b"dead", confirm=False)
        mq.queue_information("many/65535")
    shown = one(cli("top", "--json", "--url", healthy.admin_url, "--filter", "/65535"))
    assert [(row["queue"], row["ready"]) for row in shown["queues"]] == [("many/65535", 3), ("few/65535", 1)]
    plain = cli("top", "--once", "--url", healthy.admin_url, "--filter", "many/").stdout.decode().splitlines()
    assert plain[0].split("\t")[:3] == ["queue", "status", "ready"]
    assert plain[1].split("\t")[:3] == ["many/65535", "push", "3"]
    stuck = one(cli("report", "stuck", "--json", "--url", healthy.admin_url))["queues"]
    assert {("few/65535", "no-consumers"), ("many/65535", "no-consumers")} <= {
        (row["queue"], row["block"]) for row in stuck
    }
    dead = one(cli("report", "dead", "--json", "--url", healthy.admin_url))["queues"]
    assert {row["queue"] for row in dead} == {"few/65535", "many/65535"}
    assert one(cli("report", "slow-consumers", "--json", "--url", healthy.admin_url))["findings"] == []


def test_doctor_checks_a_configuration_and_a_data_directory(healthy: ServedBroker, tmp_path: Path) -> None:
    config, data = tmp_path / "mqcore.toml", tmp_path / "data"
    config.write_text("lisstem = 1\nshards = -1\n")
    data.mkdir(mode=0o755)
    arguments = ("--config", str(config), "--data-dir", str(data), "--url", healthy.admin_url, "--json")
    result = cli("doctor", *arguments)
    listed = json.loads(result.stdout)["checks"]
    checks = {check["name"]: check for check in listed}
    assert result.returncode == 1
    problems = [check["text"] for check in listed if check["name"] == "configuration"]
    assert [problem.partition(" ")[0] for problem in problems] == [f"{config}:1:", f"{config}:2:"]
    assert (checks["configuration"]["state"], checks["data directory"]["state"]) == ("fail", "warn")
    assert checks["data directory"]["remedy"] == f"chmod 700 {data}"
    config.write_text('listen = ["tmqp://127.0.0.1:0"]\n')
    data.chmod(0o700)
    checks = {check["name"]: check for check in json.loads(cli("doctor", *arguments).stdout)["checks"]}
    assert (checks["configuration"]["state"], checks["data directory"]["state"]) == ("ok", "ok")


def test_doctor_says_how_to_reach_a_broker_that_does_not_answer() -> None:
    result = cli("doctor", "--url", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert (result.returncode, "start it with --admin" in result.stdout.decode()) == (5, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(shell: str) -> None:
    script = cli("completion", shell)
    assert (script.returncode, f"_MQCORE_COMPLETE={shell}_complete" in script.stdout.decode()) == (0, True)


def test_bash_completes_commands_and_options() -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    completed = cli(COMP_WORDS="mqcore doct", COMP_CWORD="1", _MQCORE_COMPLETE="bash_complete")
    assert completed.stdout.decode().split() == ["plain,doctor"]
