"""Runs many seeds, reports those that fail with a smaller plan, and replays one. `make promises` starts it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from promises.choose import plan_for
from promises.history import as_lines
from promises.known import explanation
from promises.model import Finding
from promises.plan import Plan
from promises.run import Outcome, run
from promises.shrink import shrink

CONCURRENT = 4
"""Plans that run at the same time."""
REPEATS = 5
"""Runs of a plan until it counts as not failing: plans repeat exactly, the moments of their operations do not."""


@dataclass
class Failure:
    """A seed with findings that are not known."""

    outcome: Outcome
    findings: list[Finding]

    def report(self, plan: Plan | None = None) -> str:
        """The findings, how to replay them, and the plan."""
        seed = self.outcome.plan.seed
        lines = [f"seed {seed}: {finding}" for finding in self.findings]
        lines.append(f"replay with: make promises SEED={seed}")
        lines.append((plan or self.outcome.plan).describe())
        return "\n".join(lines)


async def outcomes(
    seeds: Iterable[int], concurrent: int = CONCURRENT, on_error: Callable[[Exception], None] | None = None
) -> AsyncIterator[Outcome]:
    """The outcome of each seed, as they finish. The first run that ends with an error raises it, or each is passed to
    `on_error`.
    """
    waiting = iter(seeds)
    running: set[asyncio.Task[Outcome]] = set()
    try:
        while True:
            while len(running) < concurrent and (seed := next(waiting, None)) is not None:
                running.add(asyncio.create_task(run(plan_for(seed)), name=f"seed {seed}"))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    yield task.result()
                except Exception as error:
                    error.add_note(f"in {task.get_name()}")
                    if on_error is None:
                        raise
                    on_error(error)
    finally:
        # Brokers in processes of their own end with their run.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def unknown(outcome: Outcome) -> list[Finding]:
    """Findings that the list of known ones does not explain."""
    return [finding for finding in outcome.findings if explanation(outcome, finding) is None]


async def failures(seeds: Iterable[int], concurrent: int = CONCURRENT) -> list[Failure]:
    """Every seed with unknown findings."""
    return [
        Failure(outcome, findings) async for outcome in outcomes(seeds, concurrent) if (findings := unknown(outcome))
    ]


async def smallest(failure: Failure, repeats: int = REPEATS) -> Plan:
    """The smallest plan found that breaks the same promise."""
    rules = {finding.rule for finding in failure.findings}

    async def fails(plan: Plan) -> bool:
        for _ in range(repeats):
            if rules & {finding.rule for finding in unknown(await run(plan))}:
                return True
        return False

    return await shrink(failure.outcome.plan, fails)


async def _search(first: int, count: int, concurrent: int, shrinks: bool, until_failure: bool) -> int:
    began, known, failed = time.monotonic(), Counter[str](), 0
    done = 0
    broken: list[Exception] = []

    def note(error: Exception) -> None:
        broken.append(error)
        traceback.print_exception(error)

    async with contextlib.aclosing(outcomes(range(first, first + count), concurrent, note)) as running:
        async for outcome in running:
            done += 1
            known.update(reason for finding in outcome.findings if (reason := explanation(outcome, finding)))
            if findings := unknown(outcome):
                failed += 1
                failure = Failure(outcome, findings)
                print(failure.report(await smallest(failure) if shrinks else None), flush=True)
                if until_failure:
                    return 1
            if done % 100 == 0:
                print(f"{done} of {count} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    for reason, times in known.most_common():
        print(f"known, {times} times: {reason}")
    ended = f", {len(broken)} ended with an error" if broken else ""
    print(f"{count} seeds from {first}: {failed} failed{ended}, {time.monotonic() - began:.0f} s")
    return 1 if failed or broken else 0


async def _replay(plan: Plan, repeats: int, shrinks: bool, verbose: bool) -> int:
    print(plan.describe(), flush=True)
    for number in range(1, repeats + 1):
        outcome = await run(plan)
        for finding in outcome.findings:
            reason = explanation(outcome, finding)
            print(f"run {number}: {finding}{f' (known: {reason})' if reason else ''}", flush=True)
        if verbose or unknown(outcome):
            print(as_lines(outcome.history.events))
            print("".join(outcome.log[-20:]))
        if findings := unknown(outcome):
            if shrinks:
                smaller = await smallest(Failure(outcome, findings))
                print(f"a smaller plan that fails:\n{smaller.describe()}\n{smaller.to_json()}")
            return 1
    print(f"no unknown finding in {repeats} runs")
    return 0


def main() -> int:
    """Read the arguments, which `make promises` passes."""
    parser = argparse.ArgumentParser(description="Check the broker's promises with random plans.")
    parser.add_argument("--seeds", type=int, default=2000, help="number of seeds [default: 2000]")
    parser.add_argument("--first", type=int, help="first seed [default: random]")
    parser.add_argument("--seed", type=int, help="replay this seed")
    parser.add_argument("--plan", type=Path, help="replay the plan in this JSON file")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"runs of a replayed plan [default: {REPEATS}]")
    parser.add_argument("--concurrent", type=int, default=CONCURRENT, help=f"plans at a time [default: {CONCURRENT}]")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller plan that fails")
    parser.add_argument("--until-failure", action="store_true", help="stop after the first seed that fails")
    parser.add_argument("--verbose", action="store_true", help="print the history of every replay")
    given = parser.parse_args()
    logging.getLogger("mqcore").setLevel(logging.CRITICAL)  # connections are lost and handlers raise by plan
    if given.plan is not None or given.seed is not None:
        plan = Plan.from_json(given.plan.read_text()) if given.plan is not None else plan_for(given.seed)
        return asyncio.run(_replay(plan, given.repeats, given.shrink, given.verbose))
    first = given.first if given.first is not None else random.SystemRandom().getrandbits(31)
    return asyncio.run(_search(first, given.seeds, given.concurrent, given.shrink, given.until_failure))


if __name__ == "__main__":
    sys.exit(main())
