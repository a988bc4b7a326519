"""OpenTelemetry: spans of clients and brokers, metrics and logs, as a real OTLP receiver gets them."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import mqcore
import mqcore.otel
from awaited import until
from eventmq_peer import EventmqPeer
from job_processes import broker_url
from mqcore import QueueOptions, QueueStatus, errors, sync
from mqcore.client import Request
from mqcore.jobs import Jobs, Task, Worker
from otlp_receiver import Received, SeenSpan, plain, receiving
from served import ServedBroker, serving, wait_until

LIMIT = 20.0
APP = """
import asyncio
import mqcore

class Orders(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        if message.body == b"bad":
            raise ValueError("a bad order")
        return mqcore.Decision(save=True, acknowledge=mqcore.SendAck.ALWAYS)

class Later(mqcore.DeliveryHandler):
    async def received_from_producer(self, queue, message, producer):
        await asyncio.sleep(0.05)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

app = {"orders": Orders(), "later": Later()}
"""


@pytest.fixture
def receiver() -> Iterator[Received]:
    with receiving() as received:
        yield received


@pytest.fixture
def provider(receiver: Received) -> Iterator[TracerProvider]:
    """The tracer provider of this program, which exports every span at once."""
    made = TracerProvider(resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    yield made
    mqcore.otel.uninstrument()
    made.shutdown()


@pytest.fixture
def broker(receiver: Received, tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker with handlers that exports to the receiver."""
    (tmp_path / "shop.py").write_text(APP)
    environment = {
        "PYTHONPATH": str(tmp_path),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_BLRP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    listen = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0", "--listen", "mm2://127.0.0.1:0")
    given = ("--app", "shop:app", *listen, "--otel", "--data-dir", str(tmp_path / "data"))
    with serving(*given, environment=environment) as running:
        yield running


def options(handler: str | None = None) -> QueueOptions:
    return QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler=handler)


def of_broker(receiver: Received, name: str) -> list[SeenSpan]:
    return [span for span in receiver.named(name) if span.service == "mqcore"]


async def test_a_trace_covers_publish_decision_delivery_and_processing(
    receiver: Received, provider: TracerProvider, broker: ServedBroker
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    tracer = provider.get_tracer("shop")
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("orders", 1, options("orders"))
        with tracer.start_as_current_span("checkout") as checkout:
            await mq.publish("orders/1", "2 apples", id="first")
        async with mq.queue("orders/1").consume(str) as messages:
            message = await anext(messages)
            assert message.headers["traceparent"].startswith("00-")
            with tracer.start_as_current_span("pack"):
                await asyncio.sleep(0.03)
            assert await message.ack()
            outside = trace.get_current_span()
        assert not outside.get_span_context().is_valid, "the span of the processing is no longer the current one"
        await until(lambda: bool(of_broker(receiver, "settle orders/1")), "the last span", limit=LIMIT)

    (publish,) = receiver.named("publish orders/1")
    assert publish.parent_id == f"{checkout.get_span_context().span_id:016x}"
    assert (publish.kind, publish.failed) == (4, False)
    assert publish.attributes["messaging.system"] == "mqcore"
    assert publish.attributes["messaging.destination.name"] == "orders/1"

    spans = {span.name.split()[0]: span for span in receiver.spans if span.service == "mqcore"}
    assert set(spans) == {"decide", "save", "deliver", "settle"}
    for span in spans.values():
        assert (span.trace_id, span.parent_id) == (publish.trace_id, publish.span_id), span
        assert span.attributes["messaging.message.id"] == "first"
        assert not span.failed
        assert abs(span.start - time.time()) < 60
    assert spans["decide"].attributes["mqcore.handler"] == "orders.received_from_producer"
    assert spans["settle"].attributes["mqcore.outcome"] == "acked"
    assert spans["settle"].attributes["mqcore.attempt"] == 1
    assert spans["settle"].seconds >= 0.02, "from the delivery to the acknowledgement"
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)

    (process,) = receiver.named("process orders/1")
    assert process.links == [publish.span_id]
    assert process.parent_id == ""
    assert process.trace_id != publish.trace_id
    assert (process.kind, process.attributes["mqcore.outcome"]) == (5, "acked")
    (pack,) = receiver.named("pack")
    assert (pack.trace_id, pack.parent_id) == (process.trace_id, process.span_id)
    resource = next(found for found in receiver.resources if found["service.name"] == "mqcore")
    assert resource["service.version"] == mqcore.__version__
    assert resource["deployment.environment.name"] == "test"


async def test_with_parent_the_processing_continues_the_trace(
    receiver: Received, provider: TracerProvider, broker: ServedBroker
) -> None:
    mqcore.otel.instrument(parent=True, tracer_provider=provider)
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("work", 1, options())
        await mq.publish_many("work/1", ["a", "b", "c"])
        async with mq.queue("work/1").consume(str) as messages:
            for outcome in ("acked", "failed", "nacked"):
                message = await anext(messages)
                if outcome == "failed":
                    with pytest.raises(ZeroDivisionError):
                        async with message.process():
                            raise ZeroDivisionError("no")
                elif outcome == "nacked":
                    await message.nack("not now", delay=60)
                else:
                    await message.ack()
    (publish,) = receiver.named("publish work/1")
    assert publish.attributes["messaging.batch.message_count"] == 3
    processed = receiver.named("process work/1")
    assert {(span.trace_id, span.parent_id) for span in processed} == {(publish.trace_id, publish.span_id)}
    assert [span.failed for span in processed] == [False, True, True]
    assert [span.attributes.get("error.type") for span in processed] == [None, "ZeroDivisionError", "nacked"]


async def test_handlers_that_raise_or_wait_have_spans_too(
    receiver: Received, provider: TracerProvider, broker: ServedBroker
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("orders", 1, options("orders"))
        await mq.declare("late", 1, options("later"))
        with pytest.raises(errors.Busy):
            await mq.publish("orders/1", "bad")
        await mq.publish("late/1", "x")
    await until(lambda: len(of_broker(receiver, "decide late/1")) == 1, "the span of the coroutine", limit=LIMIT)
    (bad,) = of_broker(receiver, "decide orders/1")
    assert bad.failed
    assert bad.attributes["error.type"] == "failed"
    (late,) = of_broker(receiver, "decide late/1")
    assert not late.failed
    assert late.seconds >= 0.05, "until the coroutine had decided"
    (publish,) = receiver.named("publish orders/1")
    assert publish.failed


async def test_requests_and_batches_and_streams_have_spans(receiver: Received, provider: TracerProvider) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    async with (
        mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker,
        mqcore.connect(broker) as mq,
    ):

        async def serve() -> None:
            async with mqcore.connect(broker, name="clock") as clock:

                async def answer(request: Request[str]) -> str:
                    if request.body == "boom":
                        raise RuntimeError("no")
                    await clock.publish("log/1", "asked")
                    return "noon"

                ready.set()
                await clock.serve(answer, str)

        ready = asyncio.Event()
        server = asyncio.create_task(serve())
        await ready.wait()
        assert await mq.request("@name:clock", "time?", reply=str) == "noon"
        with pytest.raises(errors.MqcoreError):
            await mq.request("@name:clock", "boom", reply=str)
        server.cancel()
        await asyncio.wait([server])

        await mq.declare("batch", 1, options())
        await mq.publish_many("batch/1", ["a", "b"])
        await mq.publish("batch/1", "c")
        consumer = mq.queue("batch/1").consume(str, idle_timeout=0.3)
        got = [(len(batch), await batch.ack()) async for batch in consumer.batches(3, wait="1s")]
        assert got == [(3, 3)]
    asked, failed = receiver.named("request @name:clock")
    served, unserved = receiver.named("serve @name:clock")
    assert (served.parent_id, unserved.parent_id) == (asked.span_id, failed.span_id)
    assert (served.failed, unserved.failed) == (False, True)
    assert unserved.attributes["error.type"] == "RuntimeError"
    (logged,) = receiver.named("publish log/1")
    assert (logged.trace_id, logged.parent_id) == (asked.trace_id, served.span_id)
    first, last = receiver.named("publish batch/1")
    (batch,) = receiver.named("process batch/1")
    assert sorted(set(batch.links)) == sorted({first.span_id, last.span_id})
    assert batch.attributes["messaging.batch.message_count"] == 3


def test_the_blocking_client_is_traced_as_well(receiver: Received, provider: TracerProvider) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    with mqcore.Broker() as broker, sync.connect(broker) as mq:
        mq.declare("work", 1, options())
        mq.declare("loose", 1, QueueOptions(status=QueueStatus.PUSH))
        mq.publish("work/1", "a")
        with mq.queue("work/1").consume(str) as messages:
            next(messages).ack()
        with mq.queue("loose/1").consume(str, idle_timeout=0.3) as messages:
            mq.publish("loose/1", "b", confirm=False)
            mq.publish("loose/1", "c", confirm=False)
            assert [message.body for message in messages] == ["b", "c"]
    assert [span.attributes["mqcore.outcome"] for span in receiver.named("process work/1")] == ["acked"]
    loose = receiver.named("process loose/1")
    assert [span.attributes["mqcore.outcome"] for span in loose] == ["processed"] * 2, "nothing settles these"


async def test_a_span_ends_when_the_program_asks_for_the_next_message(
    receiver: Received, provider: TracerProvider
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        await mq.declare("loose", 1, QueueOptions(status=QueueStatus.PUSH))
        async with mq.queue("loose/1").consume(str) as messages:
            await mq.publish("loose/1", "b", confirm=False)
            await anext(messages)
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: len(receiver.named("process loose/1")) == 1, "the end of the span")
            waiting.cancel()
            await asyncio.wait([waiting])


async def test_after_a_break_spans_continue_the_trace_before_the_loop(
    receiver: Received, provider: TracerProvider
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    tracer = provider.get_tracer("shop")
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        await mq.declare("loose", 1, QueueOptions(status=QueueStatus.PUSH))

        async def first() -> None:
            async for _ in mq.queue("loose/1").consume(str):
                break

        with tracer.start_as_current_span("outer") as outer:
            task = asyncio.ensure_future(first())
            await until(lambda: bool(broker.stats().queue("loose/1").consumers), "the consumer")
            await mq.publish("loose/1", "b")
            await task
            async for _ in mq.queue("loose/1").consume(str, idle_timeout=0.2):
                pass
            await mq.publish("loose/1", "c", confirm=False)
    publish = receiver.named("publish loose/1")
    assert {span.parent_id for span in publish} == {f"{outer.get_span_context().span_id:016x}"}


class Prefixing(mqcore.Client):
    """A client of a program that changes what it publishes."""

    async def publish(self, queue: str, body: object, **options: Any) -> Any:
        return await super().publish(queue, f"<{body}>", **options)


async def test_a_publish_that_a_program_overrides_runs_once(receiver: Received, provider: TracerProvider) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL))
        own = Prefixing(broker._core, mq._options)
        async with own:
            await own.publish("work/1", "a")
        (message,) = await mq.queue("work/1").pull(1, str)
        assert message.body == "<a>"
        assert len(receiver.named("publish work/1")) == 1


def test_handlers_of_joined_queues_continue_the_trace(receiver: Received, provider: TracerProvider) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    done = threading.Event()
    with mqcore.Broker() as broker, sync.connect(broker) as mq:
        mq.declare("work", 1, options())
        mq.declare("log", 1, QueueOptions(status=QueueStatus.PULL))

        def handle(message: sync.Delivered[bytes]) -> None:
            mq.publish("log/1", "handled")
            done.set()

        with mq.join("work", {1: handle}):
            mq.publish("work/1", "a")
            assert done.wait(LIMIT)
            wait_until(lambda: bool(receiver.named("process work/1")), what="the span of the handler")
    (process,) = receiver.named("process work/1")
    (log,) = receiver.named("publish log/1")
    assert (log.trace_id, log.parent_id) == (process.trace_id, process.span_id)
    assert process.attributes["mqcore.attempt"] == 1


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_handlers_of_an_app_continue_the_trace_of_their_own_message(
    receiver: Received, provider: TracerProvider, concurrency: int
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    async with mqcore.Broker() as broker:
        app = mqcore.App(broker)

        @app.subscriber("orders/1", concurrency=concurrency)
        @app.publisher("done/1", queue_options=QueueOptions(status=QueueStatus.PULL))
        async def handle(body: str, client: mqcore.Client) -> str:
            await asyncio.sleep(0.001 * int(body))
            await client.publish("done/1", body)
            return body

        async with app:
            await app.client.publish_many("orders/1", ["2", "1", "0", "2", "1", "0"])
            await until(lambda: broker.stats().queue("orders/1").acks == 6, "the acknowledgements")
    await until(lambda: len(receiver.named("process orders/1")) == 6, "the spans")
    processed = receiver.named("process orders/1")
    parents = [span.parent_id for span in receiver.named("publish done/1")]
    assert sorted(parents) == sorted(2 * [span.span_id for span in processed])
    assert [span.attributes["mqcore.outcome"] for span in processed] == ["acked"] * 6


def test_a_broker_that_runs_for_a_moment_exports_its_metrics(receiver: Received) -> None:
    with serving("--otel", environment={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}) as broker:
        with sync.connect(broker.url) as mq:
            mq.declare("work", 1, options())
            mq.publish("work/1", "a")
        assert broker.terminate() == 0
    assert 1 in [point.as_int for point in receiver.metrics["mqcore_messages_total"].sum.data_points]


def test_a_broker_that_is_forgotten_stops_although_it_exports(
    receiver: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", otel=True)
    broker.start()
    export = broker._export
    assert export is not None
    # A recorded warning would refer to the broker.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del broker
        gc.collect()
    wait_until(lambda: not export._thread.is_alive(), what="the end of the export")
    assert export._handler is not None
    logging.getLogger("mqcore").removeHandler(export._handler)


async def test_without_traces_there_are_no_spans(receiver: Received, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_TRACES_EXPORTER": "none"}
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with serving("--otel", environment=environment) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, options())
            await mq.publish("work/1", "a", headers=parent)
        assert broker.terminate() == 0
    assert receiver.spans == []
    assert receiver.metrics


async def test_contexts_cross_protocols(receiver: Received, provider: TracerProvider, broker: ServedBroker) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    listeners = broker.ready["listeners"]
    async with mqcore.connect(broker.url) as mq, mqcore.connect(f"mm2://{listeners['mm2']}") as mm2:
        await mq.declare("orders", 2, options())
        await mm2.publish("orders/2", b"over mm2", confirm=False)
        async with mq.queue("orders/2").consume() as messages:
            await (await anext(messages)).ack()
        await until(lambda: bool(of_broker(receiver, "settle orders/2")), "the last span", limit=LIMIT)
    (publish,) = receiver.named("publish orders/2")
    (process,) = receiver.named("process orders/2")
    assert process.links == [publish.span_id]
    assert of_broker(receiver, "settle orders/2")[0].parent_id == publish.span_id

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    backend, frontend = (f"emqp://{listeners[name]}" for name in ("emqp", "emqp-frontend"))
    with EventmqPeer(backend) as worker, EventmqPeer(frontend, identity=b"client") as client:
        worker.inform('[[10, "default"]]', 1)
        job = json.dumps(["run", {"path": "a", "callable": "b", "args": [], "kwargs": {}}])
        client.say("REQUEST", "j1", "default", f"retry-count:1,traceparent:{parent}", job)
        assert worker.receive()[2] == b"REQUEST"
        worker.say("READY", "ready")
        worker.until_now()
    jobs = lambda: [span for span in receiver.spans if span.parent_id == "b7ad6b7169203331"]  # noqa: E731
    await until(lambda: any(span.name.startswith("deliver ") for span in jobs()), "the span of the job", limit=LIMIT)
    assert {span.trace_id for span in jobs()} == {"0af7651916cd43dd8448eb211c80319c"}


def test_jobs_are_traced_from_the_sender_to_the_worker(
    receiver: Received, provider: TracerProvider, broker: ServedBroker
) -> None:
    mqcore.otel.instrument(tracer_provider=provider)
    with Jobs(broker_url(broker)) as jobs:

        @jobs.task(name="shop.divide", retries=1)
        def divide(by: int) -> float:
            """Divide."""
            return 1 / by

        worker = Worker(jobs, pool="thread", concurrency=1, drain_timeout=1)
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            assert divide.enqueue(2).result(timeout=LIMIT) == 0.5
            mqcore.otel.instrument(tracer_provider=provider, parent=True)
            assert asyncio.run(enqueue_and_wait(divide)) == 0.25
            with pytest.raises(errors.JobFailed):
                divide.enqueue(0).result(timeout=LIMIT)
        finally:
            worker.stop()
            running.join()
    linked, child, failed = receiver.named("enqueue default")
    worked = receiver.named("work default")
    assert [span.attributes["mqcore.outcome"] for span in worked] == ["succeeded", "succeeded", "retried", "failed"]
    assert (worked[0].links, worked[0].parent_id) == ([linked.span_id], "")
    assert (worked[1].links, worked[1].parent_id) == ([], child.span_id)
    assert {span.parent_id for span in worked[2:]} == {failed.span_id}
    assert [span.attributes["mqcore.attempt"] for span in worked[2:]] == [1, 2]
    assert {span.attributes["mqcore.task"] for span in worked} == {"shop.divide"}
    wait_until(lambda: len(of_broker(receiver, "deliver default/0")) == 4, what="the spans of the broker")
    assert {span.parent_id for span in of_broker(receiver, "deliver default/0")} == {
        span.span_id for span in (linked, child, failed)
    }


async def enqueue_and_wait(task: Task[[int], float, float]) -> float:
    job = await task.aenqueue(4)
    return await job


async def test_what_is_not_sampled_has_no_spans_in_the_broker(receiver: Received, broker: ServedBroker) -> None:
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    mqcore.otel.instrument(tracer_provider=unsampled)
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("work", 1, options())
        await mq.publish("work/1", "a")
        mqcore.otel.uninstrument()
        await mq.publish("work/1", "b")
        own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        mqcore.otel.instrument(tracer_provider=unsampled)
        await mq.publish("work/1", "c", headers={"TraceParent": own})
        async with mq.queue("work/1").consume(str) as messages:
            found = {}
            for _ in range(3):
                message = await anext(messages)
                found[message.body] = message.headers.get_all("traceparent")
                await message.ack()
    mqcore.otel.uninstrument()
    assert int(found["a"][0][-2:], 16) & 1 == 0, "not sampled"
    assert found["b"] == []
    assert found["c"] == [own], "a program that passes a context on by itself keeps its own"
    await until(lambda: bool(of_broker(receiver, "settle work/1")), "the spans of the sampled one", limit=LIMIT)
    assert {span.parent_id for span in receiver.spans} == {"b7ad6b7169203331"}


async def test_metrics_and_logs_reach_the_receiver(receiver: Received, broker: ServedBroker) -> None:
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("work", 1, options())
        await mq.publish_many("work/1", ["a", "b"])
        async with mq.queue("work/1").consume() as messages:
            for _ in range(2):
                await (await anext(messages)).ack()

        def acknowledged() -> bool:
            found = receiver.metrics.get("mqcore_processing_seconds")
            return found is not None and found.histogram.data_points[0].count == 2

        await until(acknowledged, "the metrics", limit=LIMIT)
    (point,) = receiver.metrics["mqcore_processing_seconds"].histogram.data_points
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert sum(point.bucket_counts) == 2
    assert receiver.metrics["mqcore_processing_seconds"].unit == "s"
    assert receiver.metrics["mqcore_processing_seconds"].histogram.aggregation_temporality == 2
    counter = receiver.metrics["mqcore_messages_total"].sum
    assert counter.is_monotonic
    outcomes = {plain(point.attributes)["outcome"]: point.as_int for point in counter.data_points}
    assert (outcomes["in"], outcomes["ack"], outcomes["dropped"]) == (2, 2, 0)
    assert receiver.metrics["mqcore_uptime_seconds"].gauge.data_points[0].as_double > 0
    assert broker.terminate() == 0
    texts = [text for service, _, text in receiver.logs if service == "mqcore"]
    assert any("draining" in text for text in texts), texts


async def test_a_receiver_that_fails_disturbs_no_client(tmp_path: Path, receiver: Received) -> None:
    receiver.refuse = True
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with serving("--otel", environment=environment) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, options())
            for number in range(200):
                await mq.publish("work/1", str(number), headers=parent)
            assert (await mq.queue("work/1").information()).messages == 200
        assert broker.terminate() == 0


def test_without_the_packages_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import mqcore, mqcore.otel\n"
        "for call in (mqcore.otel.instrument, mqcore.Broker(otel=True).start):\n"
        "    try:\n"
        "        call()\n"
        "    except mqcore.errors.ConfigError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'mqcore[otel]'") == 2, done
    assert (
        "opentelemetry"
        not in subprocess.run(
            [sys.executable, "-c", "import sys, mqcore, mqcore.sync; mqcore.connect; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    ), "clients import nothing of it by themselves"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf and grpc"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "opentelemetry-exporter-otlp-proto-grpc"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "milliseconds"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(errors.ConfigError, match=says) as raised:
        mqcore.Broker(otel=True).start()
    assert name in str(raised.value)


def test_opentelemetry_instrument_finds_the_clients() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="opentelemetry_instrumentor", name="mqcore")
    instrumentor = found.load()()
    provider = TracerProvider(shutdown_on_exit=False)
    instrumentor.instrument(tracer_provider=provider)
    try:
        with mqcore.Broker() as broker, sync.connect(broker) as mq:
            mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL))
            mq.publish("work/1", "a")
            (message,) = mq.queue("work/1").pull(1)
            assert "traceparent" in message.headers
    finally:
        instrumentor.uninstrument()
