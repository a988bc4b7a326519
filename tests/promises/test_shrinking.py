"""Plans derive from their seed only, survive a file, and shrink to what makes them fail."""

from __future__ import annotations

from collections import Counter

from promises.choose import plan_for
from promises.plan import Plan
from promises.shrink import candidates, shrink

PLANS = [plan_for(seed) for seed in range(500)]


def test_plan_derives_from_its_seed_and_survives_a_file() -> None:
    for plan in PLANS:
        assert plan_for(plan.seed) == plan
        assert Plan.from_json(plan.to_json()) == plan
        assert len(plan.describe().splitlines()) > len(plan.actors)


def test_random_plans_reach_every_status_protocol_role_and_fault() -> None:
    statuses = {queue.options["status"] for plan in PLANS for queue in plan.queues}
    assert statuses == {"push", "roundrobin", "pull", "cache", "broadcast", "paused"}
    protocols = {actor.protocol.removeprefix("raw-") for plan in PLANS for actor in plan.actors}
    assert protocols == {"tmqp", "mqks", "mm2", "throttr", "emqp"}
    raw = {actor.protocol for plan in PLANS for actor in plan.actors if actor.protocol.startswith("raw-")}
    assert raw == {"raw-tmqp", "raw-mqks", "raw-mm2", "raw-throttr", "raw-emqp"}
    roles = {actor.role for plan in PLANS for actor in plan.actors}
    assert roles == {"producer", "consumer", "puller", "administrator", "idler", "jobs"}
    faults = Counter(fault.kind for plan in PLANS for fault in plan.faults)
    assert set(faults) == {"kill", "term", "cut"}
    ends = {step.get("end") for plan in PLANS for actor in plan.actors for step in actor.steps}
    assert {"stay", "close", "break", "die"} <= ends
    assert {plan.broker.served for plan in PLANS} == {True, False}
    assert any(not fault.handlers for plan in PLANS for fault in plan.faults)


def test_every_candidate_is_smaller_and_complete() -> None:
    for plan in PLANS[:100]:
        for candidate in candidates(plan):
            known = {queue.address for queue in candidate.queues}
            assert candidate != plan
            assert candidate.size <= plan.size
            for bound in (*candidate.topics.values(), *candidate.routers.values()):
                assert set(bound) <= known


async def test_failing_plan_shrinks_to_its_cause() -> None:
    """The cause here: an administrator clears a queue in a plan that also has a producer."""

    async def fails(plan: Plan) -> bool:
        clears = any(step.get("do") == "clear" for actor in plan.actors for step in actor.steps)
        return clears and any(actor.role == "producer" for actor in plan.actors)

    failing = [plan for plan in PLANS if await fails(plan)]
    assert failing
    for plan in failing[:5]:
        smaller = await shrink(plan, fails)
        assert await fails(smaller)
        assert len(smaller.actors) == 2
        assert len(smaller.queues) <= 2, "one for the producer, one that is cleared"
        assert not smaller.faults
        assert all(len(actor.steps) == 1 for actor in smaller.actors)


async def test_shrinking_stops_after_its_attempts() -> None:
    attempts = 0

    async def fails(plan: Plan) -> bool:
        nonlocal attempts
        attempts += 1
        return True

    await shrink(PLANS[0], fails, attempts=7)
    assert attempts == 7
