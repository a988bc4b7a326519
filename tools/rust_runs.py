"""Runs mutants of crates against the tests that reach them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mutant_runs import RECORDER, ROOT, quickest
from rust_mutants import RustMutant, is_switchable, sampled, survivors_of
from rust_workspace import TestProgram, Workspace, compiling

# Seconds of test programs of other crates, and of Python tests, that mutants meet with `near`.
NEAR_SECONDS: Final = 30.0
# How often a failed test may run again until it fails once more.
CONFIRMATIONS: Final = 3


@dataclass
class Tested:
    """The end of the tests of a sample."""

    viable: int = 0
    survivors: list[RustMutant] = field(default_factory=list)


@dataclass
class Reach:
    """Which tests run the functions of which mutants."""

    programs: dict[TestProgram, tuple[float, set[int]]]
    """Seconds and mutants of the test programs."""
    skipped: dict[TestProgram, list[str]]
    """Their tests that fail without a mutant."""
    tests: dict[str, set[int]]
    """Mutants of the Python tests that pass without one."""
    durations: dict[str, float]
    """Seconds of these tests."""


def record_programs(workspace: Workspace, programs: list[TestProgram], count: int) -> Reach:
    """Runs all test programs without a mutant."""
    reach = Reach({}, {}, {}, {})
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqcore-reached-") as name:
        for program in programs:
            reached = Path(name, "program")
            reached.write_bytes(bytes(count))
            run = workspace.run(program, [], None, {"MUTANTS_REACHED": str(reached)})
            if run.failed or run.crash:
                what = run.crash or " ".join(run.failed)
                print(f"left out, because it fails without a mutant: {program.path.name} {what}", flush=True)
                if run.crash:
                    continue
            reach.programs[program] = (
                run.seconds,
                {number for number, byte in enumerate(reached.read_bytes()) if byte},
            )
            reach.skipped[program] = run.failed
    print(f"test programs: {time.monotonic() - begin:.0f} s", flush=True)
    return reach


def record_tests(workspace: Workspace, reach: Reach, count: int, processes: int) -> None:
    """Runs all Python tests without a mutant."""
    with tempfile.TemporaryDirectory(prefix="mqcore-reached-") as name:
        variables = {
            **workspace.environment,
            "PYTHONPATH": str(RECORDER),
            "PYTEST_ADDOPTS": "-p reached_mutants",
            "MUTANTS_COUNT": str(count),
            "MUTANTS_DIRECTORY": name,
        }
        outcome = workspace.copy.run(["tests"], processes, None, variables)
        failed = set() if outcome.passed else set(outcome.why)
        if failed:
            print(f"left out, because they fail without a mutant: {' '.join(sorted(failed))}", flush=True)
        print(f"Python tests: {outcome.seconds:.0f} s", flush=True)
        reach.durations = {test: each for test, each in outcome.durations.items() if test not in failed}
        for record in Path(name).glob("*.reached"):
            for line in record.read_text(encoding="utf-8").splitlines():
                test, _, numbers = line.rpartition("\t")
                if test in reach.durations:
                    reach.tests.setdefault(test, set()).update(map(int, numbers.split(",")))


@dataclass(frozen=True)
class Hunt:
    """The tests that mutants meet."""

    workspace: Workspace
    reach: Reach
    processes: int
    near: bool
    """Whether mutants meet only the programs of their crate and the quickest of all other tests."""

    def catching_program(self, mutant: RustMutant, *, everything: bool) -> str | None:
        """The test of cargo test that fails with a mutant, of those that run its function or of all."""
        variables = {"MUTANT": str(mutant.number)}
        programs = sorted(
            (program.crate != mutant.crate, seconds, program.path.name, program)
            for program, (seconds, numbers) in self.reach.programs.items()
            if everything or mutant.number in numbers
        )
        total = 0.0
        for foreign, seconds, name, program in programs:
            total += seconds if foreign else 0
            if self.near and total > NEAR_SECONDS:
                break
            if failed := self.failing_program(program, variables):
                return f"{name} {failed}"
        return None

    def catching_test(self, mutant: RustMutant, *, everything: bool) -> str | None:
        """The Python test that fails with a mutant, of those that run its function or of all."""
        variables = {"MUTANT": str(mutant.number)}
        tests = [test for test in self.reach.durations if everything or mutant.number in self.reach.tests.get(test, ())]
        first = quickest(tests, self.reach.durations)
        if failed := self.failing_test(first, 0, variables):
            return failed
        if self.near:
            return None
        return self.failing_test([test for test in tests if test not in first], self.processes, variables)

    def failing_program(self, program: TestProgram, variables: dict[str, str]) -> str | None:
        """A test of a program that fails, and fails again."""
        limit = 3 * self.reach.programs[program][0] + 60
        skipped = list(self.reach.skipped[program])
        while True:
            # Without a name of a test, --exact refers to what is skipped.
            arguments = ["--exact", *(part for test in skipped for part in ("--skip", test))]
            run = self.workspace.run(program, arguments, limit, variables)
            if run.crash:
                return run.crash
            if not run.failed:
                return None
            for _ in range(CONFIRMATIONS):
                again = self.workspace.run(program, [run.failed[0], "--exact"], limit, variables)
                if again.failed or again.crash:
                    return run.failed[0]
            print(f"fails only now and then: {program.path.name} {run.failed[0]}", flush=True)
            skipped.append(run.failed[0])

    def failing_test(self, tests: list[str], processes: int, variables: dict[str, str]) -> str | None:
        """A Python test that fails, and fails again."""
        environment = {**self.workspace.environment, **variables}
        while tests:
            limit = 3 * sum(self.reach.durations[test] for test in tests) + 60
            outcome = self.workspace.copy.run(tests, processes, limit, environment)
            if outcome.passed:
                return None
            if outcome.why[0] not in tests:
                return outcome.why[0]
            for _ in range(CONFIRMATIONS):
                again = self.workspace.copy.run(outcome.why[:1], 0, limit, environment)
                if not again.passed:
                    return outcome.why[0]
            print(f"fails only now and then: {outcome.why[0]}", flush=True)
            tests = [test for test in tests if test != outcome.why[0]]
        return None


def in_turn(mutants: list[RustMutant]) -> list[RustMutant]:
    """One mutant of each crate, then a second one of each: what ran so far is a sample of all crates at any time."""
    ranks: dict[str, int] = {}
    keys = {}
    for mutant in mutants:
        rank = ranks[mutant.crate] = ranks.get(mutant.crate, 0) + 1
        keys[mutant] = (rank, mutant.number)
    return sorted(mutants, key=keys.__getitem__)


def run_crates(
    crates: list[str], count: int, seed: int, *, processes: int, jobs: int, near: bool, again: Path | None
) -> dict[str, Tested] | None:
    """Runs a sample of each crate, or the mutants that survived according to the output `again`; `None` without
    cargo-mutants.
    """
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True, check=False).returncode != 0:
        print(f"{' '.join(crates)}: skipped: needs cargo-mutants (cargo install cargo-mutants)")
        return None
    sample = sampled(crates, count, seed, None if again is None else survivors_of(again))
    results = {crate: Tested() for crate in crates}
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory:
        workspace = Workspace(Path(directory), crates, seed)
        candidates: list[RustMutant] = []
        for mutant in sample:
            if is_switchable(mutant, (ROOT / mutant.file).read_text(encoding="utf-8"), candidates):
                candidates.append(mutant)
        kept, unviable = compiling(workspace, candidates)
        print(f"{len(kept)} of {len(sample)} mutants in one build, {len(unviable)} unviable", flush=True)
        reach = record_programs(workspace, workspace.build(), len(sample))
        hunt = Hunt(workspace, reach, processes, near)
        waiting: list[RustMutant] = []
        with ThreadPoolExecutor(jobs) as pool:
            runs = {pool.submit(hunt.catching_program, mutant, everything=False): mutant for mutant in in_turn(kept)}
            for done in as_completed(runs):
                if done.result() is None:
                    waiting.append(runs[done])
                    print(f"  waiting   {runs[done].name}", flush=True)
                else:
                    report(results, runs[done], done.result())
            # After the programs of cargo test, which take far less time and catch most mutants.
            record_tests(workspace, reach, len(sample), processes)
            runs = {pool.submit(hunt.catching_test, mutant, everything=False): mutant for mutant in in_turn(waiting)}
            for done in as_completed(runs):
                report(results, runs[done], done.result())
        workspace.restore(mutant.file for mutant in kept)
        for mutant in in_turn([each for each in sample if each not in kept and each not in unviable]):
            text = (ROOT / mutant.file).read_text(encoding="utf-8")
            workspace.replace(mutant.file, mutant.applied(text, 0, len(text)))
            if workspace.errors():
                print(f"  unviable  {mutant.name}", flush=True)
            else:
                programs = workspace.build()
                known = {program.name: program for program in reach.programs}
                old = {program: known[program.name] for program in programs if program.name in known}
                rebuilt = {program: reach.programs[each] for program, each in old.items()}
                skipped = {program: reach.skipped[each] for program, each in old.items()}
                renamed = Reach(rebuilt, skipped, reach.tests, reach.durations)
                alone = Hunt(workspace, renamed, processes, near)
                failed = alone.catching_program(mutant, everything=True) or alone.catching_test(mutant, everything=True)
                report(results, mutant, failed)
            workspace.restore([mutant.file])
    return results


def report(results: dict[str, Tested], mutant: RustMutant, failed: str | None) -> None:
    """Prints and counts the end of a mutant."""
    result = results[mutant.crate]
    result.viable += 1
    if failed is None:
        result.survivors.append(mutant)
    verdict = "SURVIVED" if failed is None else "caught  "
    print(f"  {verdict}  {mutant.name}{'' if failed is None else f'  [{failed}]'}", flush=True)
