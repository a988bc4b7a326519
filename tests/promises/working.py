"""Jobs: senders, workers and schedules of `mqcore.jobs`, in threads of this process."""

from __future__ import annotations

import asyncio
from typing import Any

from mqcore import errors
from mqcore.jobs import Jobs, Worker
from promises.plan import Actor
from promises.scene import Scene

RESULT_SECONDS = 5.0
"""Longest wait for a result. Only a broken promise takes that long."""


async def play(scene: Scene) -> None:
    """Let workers run until all senders have their results."""
    actors = [actor for actor in scene.plan.actors if actor.role == "jobs"]
    if not actors:
        return
    jobs = Jobs(scene.broker.urls["emqp"])
    task = _task(scene, jobs)
    stop = asyncio.Event()
    workers = [asyncio.create_task(_work(scene, actor, jobs, stop)) for actor in _of(actors, "worker")]
    for actor in _of(actors, "schedule"):
        _schedule(scene, actor, jobs, task)
    try:
        await asyncio.gather(*(_send(scene, actor, task) for actor in _of(actors, "sender")))
        await _schedules_end(scene, actors)
    finally:
        stop.set()
        await asyncio.gather(*workers)
        await asyncio.to_thread(jobs.close)


def _of(actors: list[Actor], part: str) -> list[Actor]:
    return [actor for actor in actors if actor.options["part"] == part]


def _task(scene: Scene, jobs: Jobs) -> Any:
    def remember(label: str) -> str:
        scene.history.add("job-run", label=label)
        return label

    return jobs.task(name="remember")(remember)


async def _send(scene: Scene, actor: Actor, task: Any) -> None:
    await scene.until(actor.start)
    chosen = task.using(queue=actor.target, guarantee=actor.options["guarantee"])
    sent: list[tuple[float, str, Any]] = []
    for step in actor.steps:
        for _ in range(step["count"]):
            at, label = scene.history.now(), scene.label(actor)
            sent.append((at, label, await chosen.aenqueue(label)))
            await asyncio.sleep(step["gap"] / 1000)
    await asyncio.gather(*(_result(scene, actor, *one) for one in sent))


async def _result(scene: Scene, actor: Actor, at: float, label: str, job: Any) -> None:
    outcome, detail = "result", ""
    try:
        await job.aresult(RESULT_SECONDS)
    except (errors.RequestTimeout, errors.JobLost) as error:
        outcome, detail = "timeout", str(error)
    except errors.MqcoreError as error:
        outcome, detail = "failed", str(error)
    scene.history.add("job", at, client=actor.name, queue=actor.target, label=label, outcome=outcome, detail=detail)


def _schedule(scene: Scene, actor: Actor, jobs: Jobs, task: Any) -> None:
    for step in actor.steps:
        label = scene.label(actor)
        chosen = task.using(queue=actor.target, result=False)
        jobs.every(step["interval"] / 1000, chosen.bind(label), runs=step["runs"])
        scene.history.add("schedule", client=actor.name, queue=actor.target, label=label, count=step["runs"])


async def _schedules_end(scene: Scene, actors: list[Actor]) -> None:
    """Wait until each schedule has run as often as planned, and a moment longer."""
    wanted = sum(step["runs"] for actor in _of(actors, "schedule") for step in actor.steps)
    deadline = scene.history.now() + RESULT_SECONDS
    while scene.history.now() < deadline:
        ran = sum(event.label.startswith("s") for event in scene.history.of("job-run"))
        if ran >= wanted:
            break
        await asyncio.sleep(0.02)


async def _work(scene: Scene, actor: Actor, jobs: Jobs, stop: asyncio.Event) -> None:
    """Run one worker until its time is over; the first one stays until all have finished."""
    await scene.until(actor.start)
    queues = actor.target.split(",")
    options = actor.options
    worker = Worker(
        jobs,
        queues=queues,
        concurrency=options["concurrency"],
        prefetch=options["prefetch"],
        pool="thread",
        drain_timeout=5,
        schedules=actor.name == "w0",  # a worker that sends an ended schedule starts it again
    )
    running = asyncio.create_task(asyncio.to_thread(worker.run))
    try:
        if actor.name != "w0":
            await scene.until(actor.steps[0]["for"])
        else:
            await stop.wait()
    finally:
        worker.stop()
        await running
