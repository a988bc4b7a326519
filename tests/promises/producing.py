"""Producers: they publish to queues, topics and routers, and record what they were answered."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import mm2_peer
import mqcore
import throttr_peer
from conformance.adapters import PARTIES, Party, Place
from mqcore import errors, throttr
from mqcore.client import CopyReceipt
from promises.plan import Actor, Step
from promises.scene import REQUEST_SECONDS, Scene, body_of

CONSUMER_SECONDS = 0.15
"""Longest wait for a confirmation that a consumer causes."""

RECOGNIZED_SECONDS = 60.0
"""A queue that recognizes duplicates for this time takes a message once, however often its client publishes it."""

LOST = (errors.TransportError,)
SILENT = (errors.ConfirmTimeout, errors.RequestTimeout)
CUT = (OSError, EOFError, AssertionError, mm2_peer.Cut, throttr_peer.Cut)
"""Exceptions of a peer of bytes when its connection ends, or when the broker answers with an error."""
REJECTED = (errors.Nacked, errors.OperationError)


@dataclass(frozen=True)
class Draft:
    """A message to publish."""

    label: str
    verdict: str = ""
    """How the queue's handler decides about it."""
    terms: dict[str, Any] = field(default_factory=dict)
    identity: str = ""
    """The id that it is published with; empty: the client chooses one."""


def drafts(scene: Scene, actor: Actor, step: Step) -> list[Draft]:
    """The messages of a burst: some of them twice with the same id, if the plan repeats them."""
    verdicts, terms, repeat = step.get("verdicts", [""]), step.get("terms", [{}]), step.get("repeat", 0)
    found: list[Draft] = []
    for number in range(step["count"]):
        label = scene.label(actor)
        identity = f"id-{label}" if repeat else ""
        found.append(Draft(label, verdicts[number % len(verdicts)], terms[number % len(terms)], identity))
        if repeat and number % repeat == 0:
            found.append(replace(found[-1], label=scene.label(actor)))
    return found


def outcome_of(error: BaseException) -> tuple[str, str]:
    """Outcome and detail of a publish that raised."""
    if isinstance(error, LOST):
        return "unknown", str(error)
    if isinstance(error, SILENT):
        return "timeout", str(error)
    if isinstance(error, REJECTED):
        return "rejected", f"{type(error).__name__}: {error}"
    raise error


def copy_outcome(copy: CopyReceipt) -> str:
    """Outcome of a copy in a receipt."""
    if copy.status == "unconfirmed":
        return "timeout" if "no acknowledgement" in str(copy.reason) else "unknown"
    return copy.status


async def produce(scene: Scene, actor: Actor) -> None:
    """Publish all bursts of an actor."""
    await scene.until(actor.start)
    if actor.protocol.startswith("raw-"):
        await asyncio.to_thread(_produce_raw, scene, actor)
    elif actor.protocol == "throttr":
        await _produce_throttr(scene, actor)
    else:
        async with scene.connect(actor) as client:
            for step in actor.steps:
                await _burst(scene, actor, client, step)


async def _burst(scene: Scene, actor: Actor, client: mqcore.Client, step: Step) -> None:
    messages = drafts(scene, actor, step)
    if step.get("batch") and not step.get("cc"):
        await _publish_many(scene, actor, client, step, messages)
        return
    for draft in messages:
        if await _publish(scene, actor, client, step, draft) == "timeout":
            return
        if step["gap"]:
            await asyncio.sleep(step["gap"] / 1000)


def _confirm_seconds(scene: Scene, actor: Actor) -> float:
    """How long a producer waits: in some queues a confirmation comes only when a consumer has the message."""
    rules = scene.world.queues.get(actor.target)
    waits = rules is not None and rules.decisions.confirms_at in {"sent", "consumed"}
    return CONSUMER_SECONDS if waits else REQUEST_SECONDS


async def _publish_many(scene: Scene, actor: Actor, client: mqcore.Client, step: Step, messages: list[Draft]) -> None:
    at = scene.history.now()
    # One call has one set of terms.
    messages = [replace(draft, terms=messages[0].terms) for draft in messages]
    bodies = [body_of(draft.label, draft.verdict, step.get("size", 0)) for draft in messages]
    confirm, high = step["confirm"], step.get("high", False)
    try:
        receipts = await client.publish_many(
            actor.target,
            bodies,
            confirm=confirm,
            high_priority=high,
            timeout=_confirm_seconds(scene, actor),
            return_exceptions=True,
            **messages[0].terms,
        )
        answers: list[Any] = list(receipts)
    except errors.MqcoreError as error:
        answers = [error] * len(messages)
    for draft, answer in zip(messages, answers, strict=True):
        outcome = outcome_of(answer) if isinstance(answer, BaseException) else ("confirmed" if confirm else "sent", "")
        _record(scene, actor, at, draft, step, [(actor.target, "queue")], outcome)


async def _publish(scene: Scene, actor: Actor, client: mqcore.Client, step: Step, draft: Draft) -> str:
    """Publish one message, and return the outcome."""
    at = scene.history.now()
    body = body_of(draft.label, draft.verdict, step.get("size", 0))
    confirm = step["confirm"]
    kind, _, name = actor.target.partition(":")
    copies: list[str] = step.get("cc", [])
    answers: dict[str, tuple[str, str]] = {}
    try:
        if kind == "@router":
            await client.send(actor.target, body, confirm=confirm)
        elif kind == "@topic":
            topic = f"topic/{name}" if actor.protocol == "mm2" else name
            await client.publish(topic, body, confirm=confirm)
        else:
            options: dict[str, Any] = {"timeout": _confirm_seconds(scene, actor), **draft.terms}
            if draft.identity:
                options |= {"id": draft.identity, "retry": confirm and step.get("retry", False)}
            if copies:
                options["cc"] = copies
            if step.get("high"):
                options["high_priority"] = True
            receipt = await client.publish(actor.target, body, confirm=confirm, **options)
            answers = {copy.queue: (copy_outcome(copy), copy.reason or "") for copy in receipt.copies}
        outcome = ("confirmed" if confirm else "sent", "")
    except errors.MqcoreError as error:
        outcome = outcome_of(error)
    if kind == "@router":
        # The router's confirmation says that the message was passed on, not that it is saved.
        outcome = ("accepted", "") if outcome[0] == "confirmed" else outcome
        _record(scene, actor, at, draft, step, [(queue, "router") for queue in scene.plan.routers[name]], outcome)
    elif kind == "@topic":
        _record(scene, actor, at, draft, step, [(queue, "topic") for queue in scene.plan.topics[name]], outcome)
    else:
        _record(scene, actor, at, draft, step, [(actor.target, "queue")], outcome)
        for copy in copies:
            # An exception concerns the message; its copies may have been accepted.
            answer = outcome if outcome[0] == "sent" else answers.get(copy, ("unknown", outcome[1]))
            _record(scene, actor, at, draft, step, [(copy, "cc")], answer)
        if "timeout" in {answer for answer, _ in answers.values()}:
            # Each further message would wait as long.
            return "timeout"
    return outcome[0]


def _record(
    scene: Scene,
    actor: Actor,
    at: float,
    draft: Draft,
    step: Step,
    places: list[tuple[str, str]],
    answer: tuple[str, str],
) -> None:
    for queue, via in places:
        outcome, detail = answer
        rules = scene.world.queues.get(queue)
        if outcome == "rejected" and rules is not None and rules.decisions.confirms_at in {"sent", "consumed"}:
            outcome = "nacked"  # by a consumer, after the queue had taken it
        if outcome == "rejected" and via == "topic" and len(places) > 1:
            outcome = "unknown"  # by one of its queues; the others may have taken their copies
        scene.history.add(
            "publish",
            at,
            client=actor.name,
            queue=queue,
            label=draft.label,
            outcome=outcome,
            detail=detail,
            verdict=draft.verdict,
            via=via,
            high=bool(step.get("high")),
            # MicroMessage2 acknowledges every message.
            asked=bool(step["confirm"]) or actor.protocol == "mm2",
            retried=bool(step.get("retry")) and (rules is None or rules.deduplication_window < RECOGNIZED_SECONDS),
            identity=draft.identity,
            delay=draft.terms.get("delay", 0.0),
            expires_in=draft.terms.get("expires_in", 0.0),
            priority=draft.terms.get("priority", 0),
        )


async def _produce_throttr(scene: Scene, actor: Actor) -> None:
    topic = actor.target.partition(":")[2]
    # Its first request connects, so a broker that starts again causes no error here.
    client = throttr.Client(scene.url(actor), request_timeout=REQUEST_SECONDS)
    try:
        for step in actor.steps:
            for _ in range(step["count"]):
                at, label = scene.history.now(), scene.label(actor)
                try:
                    taken = await client.publish(topic, body_of(label))
                    answer = ("accepted", "") if taken else ("sent", "answered 00")
                except errors.MqcoreError as error:
                    answer = outcome_of(error)
                _record(
                    scene,
                    actor,
                    at,
                    Draft(label),
                    step,
                    [(queue, "topic") for queue in scene.plan.topics[topic]],
                    answer,
                )
                await asyncio.sleep(step["gap"] / 1000)
    finally:
        await client.close()


def open_party(scene: Scene, actor: Actor) -> Party:
    """A peer of bytes."""
    scheme = actor.protocol.removeprefix("raw-")
    urls = scene.broker.emqp_sockets if scheme == "emqp" else [scene.url(actor)]
    return PARTIES[scheme](*urls)


def _produce_raw(scene: Scene, actor: Actor) -> None:
    is_topic = actor.target.startswith("@topic:")
    place = Place(actor.target.removeprefix("@topic:"), not is_topic)
    places = [(queue, "topic") for queue in scene.plan.topics[place.name]] if is_topic else [(actor.target, "queue")]
    published: list[tuple[float, str]] = []
    outcome = ("unknown", "the connection was lost")
    with contextlib.suppress(*CUT):
        party = open_party(scene, actor)
        try:
            for step in actor.steps:
                for _ in range(step["count"]):
                    published.append((scene.history.now(), scene.label(actor)))
                    party.publish(place, body_of(published[-1][1]))
            # An answer to a later request: the broker has read everything before.
            party.take()
            outcome = ("accepted", "")
        finally:
            party.close()
    for at, label in published:
        _record(scene, actor, at, Draft(label), actor.steps[0], places, outcome)
