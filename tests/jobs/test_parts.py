"""Parts of jobs that need no broker: addresses, headers, backoff, options, names, and what is imported when."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import multiprocessing
import os
import random
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pydantic
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from mqcore import errors
from mqcore.cli.worker import split_queues
from mqcore.jobs import Backoff, Jobs, TaskOptions, Worker, current, signature, wire
from mqcore.jobs.address import parse
from mqcore.jobs.pool import child
from served import wait_until


def test_an_address_names_all_sockets() -> None:
    found = parse("emqp://broker.example")
    assert found.backend == "tcp://broker.example:47290"
    assert found.frontend == "tcp://broker.example:47291"
    assert found.admin == "tcp://broker.example:47293"
    assert found.subscribe == "tcp://broker.example:47299"
    other = parse("emqp://[::1]:9?frontend=7&admin=elsewhere:8")
    assert (other.backend, other.frontend, other.admin) == ("tcp://[::1]:9", "tcp://[::1]:7", "tcp://elsewhere:8")


@pytest.mark.parametrize(
    "url",
    ["tmqp://127.0.0.1", "emqp://", "emqp://a/b", "emqp://a?front=1", "emqp://a?frontend=x", "emqp://a:99999", ""],
)
def test_invalid_address_raises_config_error(url: str) -> None:
    with pytest.raises(errors.ConfigError):
        parse(url)


NUMBERS = st.integers(0, 10**6)
SETTINGS = st.fixed_dictionaries(
    {"reply_requested": st.booleans(), "guarantee": st.booleans(), "retry_count": NUMBERS, "timeout": NUMBERS}
)


@given(SETTINGS, st.lists(st.binary(max_size=20).filter(lambda word: b"," not in word), max_size=3), st.randoms())
def test_headers_are_found_among_arbitrary_words(
    settings: dict[str, Any], words: list[bytes], chance: random.Random
) -> None:
    names = (b"reply-requested", b"guarantee", b"retry-count", b"timeout", b"attempt")
    others = [word for word in words if not word.strip().startswith(names)]
    headers = wire.Headers(**settings)
    mixed = [*headers.encode().split(b","), *others]
    chance.shuffle(mixed)
    assert wire.Headers.parse(b",".join(mixed)) == headers


@given(st.binary(max_size=200))
def test_headers_of_arbitrary_bytes_are_within_their_limits(text: bytes) -> None:
    headers = wire.Headers.parse(text)
    assert all(0 <= number <= 10**6 for number in (headers.timeout, headers.retry_count, headers.attempt))
    assert wire.Headers.parse(b"timeout:123456789,attempt:" + b"9" * 50) == wire.Headers(timeout=10**6, attempt=10**6)
    assert wire.Headers.parse(b"timeout:" + text + b",retry-count:7").retry_count == 7


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_job_or_are_rejected(job: bytes) -> None:
    with contextlib.suppress(errors.BodyError):
        assert wire.decode_call(job).name


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'["run",{"callable":"f","path":"p","args":' + b"[" * 100_000])
def test_job_that_is_nested_too_deeply_is_rejected(nested: bytes) -> None:
    with pytest.raises(errors.BodyError, match="invalid job"):
        wire.decode_call(nested)
    assert wire.parse_progress([b'{"id":' + nested]) is None


def test_headers_are_written_as_all_workers_read_them() -> None:
    headers = wire.Headers(reply_requested=True, guarantee=True, retry_count=3, timeout=7)
    assert headers.encode() == b"reply-requested,guarantee,retry-count:3,timeout:7"
    assert wire.Headers.parse(headers.encode()) == headers
    assert wire.Headers.parse(b"guarantee:false, timeout:-1,retry-count:x,attempt:2") == wire.Headers(attempt=2)
    assert wire.Headers().encode() == b""


def test_ids_of_messages_have_the_form_of_uuids_and_are_not_repeated() -> None:
    ids = [wire.new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [str(uuid.UUID(id_)) for id_ in ids] == ids
    other = wire._Ids()
    assert other()[:24] != ids[0][:24]


def test_a_job_has_all_members_that_the_original_wants() -> None:
    job = wire.encode_call("shop.mail.send", b'["a"]', b'{"b":1}', wire.Terms())
    assert job == (
        b'["run",{"callable":"send","path":"shop.mail","args":["a"],"kwargs":{"b":1},"class_args":[],"class_kwargs":{}}]'
    )
    assert wire.decode_call(job).name == "shop.mail.send"


def test_a_backoff_grows_up_to_its_end() -> None:
    steady = Backoff("1s", max="10s", factor=3, jitter=0)
    assert [steady.wait(attempt) for attempt in (1, 2, 3, 4, 10**9)] == [1, 3, 9, 10, 10]
    spread = {Backoff("1s", jitter=0.5).wait(1) for _ in range(100)}
    assert len(spread) > 1
    assert all(0.5 <= wait <= 1.5 for wait in spread)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": ""},
        {"queue": "x" * 256},
        {"retries": -1},
        {"timeout": 0},
        {"soft_timeout": "soon"},
        {"priority": 256},
        {"run_after": datetime(2026, 1, 1)},  # without a time zone
    ],
    ids=str,
)
def test_invalid_task_option_raises_config_error(options: dict[str, object]) -> None:
    jobs = Jobs()
    task = jobs.task(lambda: None)
    with pytest.raises(errors.ConfigError):
        task.using(**options)
    with pytest.raises(errors.ConfigError, match="unknown task option colour"):
        task.using(colour="red")


def default(call: Callable[..., object], name: str) -> object:
    return inspect.signature(call).parameters[name].default


def test_defaults_are_those_of_the_documentation() -> None:
    options = TaskOptions()
    assert (options.queue, options.retries, options.priority, options.unique) == ("default", 0, 0, False)
    assert options.raises == ()
    assert (options.guarantee, options.result) == (True, True)
    assert (options.timeout, options.soft_timeout, options.run_after) == (None, None, None)
    assert options.backoff == Backoff() == Backoff(1, max=60, factor=2, jitter=0.1)
    for call in (Jobs, Jobs.close, Jobs.status, Jobs.workers):
        assert default(call, "timeout") == 5
    assert default(Worker, "prefetch") == 0
    assert default(Worker, "drain_timeout") == 30


def test_queue_name_may_have_255_bytes() -> None:
    assert TaskOptions(queue="x" * 255).queue == "x" * 255
    with pytest.raises(errors.ConfigError, match="1 to 255 bytes"):
        TaskOptions(queue="x" * 256)


def test_removed_schedule_is_not_sent_again() -> None:
    jobs = Jobs("emqp://127.0.0.1:1", timeout=0.1)
    task = jobs.task(name="shop.send")(print)
    jobs.every("1h", task.bind(1))
    kept = jobs.every("2h", task.bind(2))
    with pytest.raises(errors.ConnectFailed):
        jobs.unschedule(jobs.schedules[0])
    assert list(jobs.schedules) == [kept]
    jobs.close(0)


def test_scheduled_job_does_not_send_its_time_limit_to_the_broker() -> None:
    task = Jobs().task(timeout="1500ms")(lambda: None)
    assert (task.options.headers().timeout, task.options.terms().hard) == (2, 1.5)
    later = task.using(run_after="1h").options
    assert (later.headers().timeout, later.terms().hard) == (0, 1.5)


def test_two_tasks_cannot_have_one_name() -> None:
    jobs = Jobs()
    jobs.task(name="shop.send")(print)
    with pytest.raises(errors.ConfigError, match=r"task shop\.send already exists"):
        jobs.task(name="shop.send")(print)


@pytest.mark.parametrize("name", ["", ".send", "shop.", "."])
def test_job_of_a_task_that_cannot_have_its_name_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"invalid task name '{name}'; it must not be empty"):
        Jobs("emqp://127.0.0.1:1").send(name)


def test_unique_key_fits_one_header_and_is_equal_for_equal_calls() -> None:
    task = Jobs().task(lambda number=0: number)

    def key(**options: object) -> str:
        call = task.using(**options).bind(1)
        return call.headers().unique

    assert key() == ""
    assert key(unique="a, b:c%\n") == "a%2C b:c%25%0A"
    assert len(key(unique=True)) == 64
    assert key(unique=True) == key(unique=True, queue="other") != task.using(unique=True).bind(2).headers().unique
    assert task.using(unique="k").bind(1).headers().encode() == (
        b"reply-requested,guarantee,create-queue,result-ttl:3600,unique:k"
    )
    for wrong in ("", "x" * 256, "," * 100):
        with pytest.raises(errors.ConfigError, match="invalid unique key"):
            task.using(unique=wrong)


def test_schedules_are_messages_of_nine_frames() -> None:
    jobs = Jobs()

    @jobs.task(queue="reports", retries=1)
    def nightly(day: int = 0) -> None:
        return

    every = jobs.every("30s", nightly.bind(3), nohaste=True, runs=5).frames(b"SCHEDULE")
    assert every[2] == b"SCHEDULE"
    assert every[4:7] == [b"reports", b"guarantee,nohaste,create-queue,retry-count:1,run_count:5", b"30"]
    assert b'"args":[3]' in every[7]
    assert every[8] == b""
    cron = jobs.cron(" 0 3 * *  * ", nightly).frames(b"UNSCHEDULE")
    assert (cron[2], cron[6], cron[8]) == (b"UNSCHEDULE", b"-1", b"0 3 * * *")
    zoned = jobs.cron("0 0 3 * * *", nightly, timezone="Europe/Berlin", catch_up="all").frames(b"SCHEDULE")
    assert zoned[5] == b"guarantee,nohaste,create-queue,timezone:Europe/Berlin,catch-up:all,retry-count:1"
    assert jobs.every("250ms", nightly).frames(b"SCHEDULE")[5:7] == [
        b"guarantee,create-queue,retry-count:1,interval-ms:250",
        b"0.25",
    ]
    with pytest.raises(errors.ConfigError, match="none, latest, all"):
        jobs.every(5, nightly, catch_up="some")
    for zone in ("", "Europe/Berlin,guarantee"):
        with pytest.raises(errors.ConfigError, match="zone"):
            jobs.cron("0 3 * * *", nightly, timezone=zone)
    for wrong in ("nightly", "* * * *"):
        with pytest.raises(errors.ConfigError, match="cron"):
            jobs.cron(wrong, nightly)
    with pytest.raises(errors.ConfigError):
        jobs.every(0, nightly)


def test_queues_are_read_with_their_weights() -> None:
    assert split_queues("a:40, b,c:d:1") == [("a", 40), ("b", 10), ("c:d", 1)]


def test_outside_of_a_job_there_is_none() -> None:
    with pytest.raises(LookupError, match="no job is running"):
        current()


class Order(pydantic.BaseModel):
    number: int


def test_pydantic_models_are_arguments_and_results() -> None:
    def function(order: Order) -> Order:
        return order

    known = signature.Signature(function)
    args, kwargs = signature.encode_arguments([Order(number=7)], {})
    assert (args, kwargs) == (b'[{"number":7}]', b"{}")
    assert known.decode(args, kwargs) == ([Order(number=7)], {})
    assert known.decode_result(signature.encode_value(Order(number=8))) == Order(number=8)
    with pytest.raises(errors.BodyError, match=r"(?s)the argument 'order' has the wrong type: .*valid integer"):
        known.decode(b'[{"number":"x"}]', b"{}")


def test_counts_of_a_worker_begin_at_zero() -> None:
    assert dataclasses.astuple(Worker(Jobs(), pool="thread").counts) == (0, 0, 0, 0, 0, 0)


def test_process_of_a_pool_ends_by_itself_when_the_worker_closes_its_pipe() -> None:
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    orders, control = spawn.Pipe(duplex=False)
    shared = child.SharedBatch(spawn.RawArray("q", 3), spawn.Lock())
    arguments = (theirs, orders, shared, ("mqcore.jobs.imports", "NOTHING"), ())
    process = spawn.Process(target=child.main, args=arguments, daemon=True)
    process.start()
    theirs.close()
    orders.close()
    assert pipe.poll(30)
    assert os.read(pipe.fileno(), 100) == child.HEAD.pack(1) + child.READY
    pipe.close()
    process.join(30)
    control.close()
    assert process.exitcode == 0


def test_sending_more_than_the_buffer_holds_to_a_broker_that_does_not_read_is_busy() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.RCVHWM, 1)
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        jobs = Jobs(f"emqp://127.0.0.1:1?frontend={port}", timeout=0.2)

        def fill() -> None:
            for _ in range(40_000):
                jobs.send("shop.send", ["x" * 4000], result=False)

        with pytest.raises(errors.Busy, match=r"accepted no job within 0\.2 s") as busy:
            fill()
        assert busy.value.code == 503
        jobs.close(0)


def test_sending_waits_for_room_in_the_buffer_while_the_broker_reads() -> None:
    sent = 0
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.RCVHWM, 1)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def is_full(before: list[int]) -> bool:
            before.append(sent)
            return sent > 10_000 and before[-10:] == [sent] * 10

        def read() -> None:
            wait_until(partial(is_full, []), limit=30, what="the full buffer")
            for _ in range(20_000):
                router.recv_multipart()

        reading = threading.Thread(target=read)
        reading.start()
        jobs = Jobs(f"emqp://127.0.0.1:1?frontend={port}", timeout=30)
        for _ in range(20_000):
            jobs.send("shop.send", ["x" * 4000], result=False)
            sent += 1
        reading.join(60)
        jobs.close(0)
    assert not reading.is_alive()
