"""Runs mutants of crates against the tests that reach them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mutant_runs import RECORDER, quickest
from rust_mutants import RustMutant, is_switchable, sampled, survivors_of
from rust_workspace import TestProgram, Workspace, compiling

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


def record_programs(workspace: Workspace, reach: Reach, programs: list[TestProgram], count: int) -> None:
    """Runs test programs without a mutant, unless they have been."""
    with tempfile.TemporaryDirectory(prefix="mqcore-reached-") as name:
        for program in programs:
            if program in reach.programs:
                continue
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

    def catching_program(self, mutant: RustMutant, *, own: bool, everything: bool = False) -> str | None:
        """The test of cargo test that fails with a mutant, of those of its crate or of the others; of those that run
        its function or of all.
        """
        programs = sorted(
            (seconds, program.path.name, program)
            for program, (seconds, numbers) in self.reach.programs.items()
            if (program.crate == mutant.crate) == own and (everything or mutant.number in numbers)
        )
        for _, name, program in programs:
            if failed := self.failing_program(program, {"MUTANT": str(mutant.number)}):
                return f"{name} {failed}"
        return None

    def catching_test(self, mutant: RustMutant, *, everything: bool = False) -> str | None:
        """The Python test that fails with a mutant, of those that run its function or of all."""
        variables = {"MUTANT": str(mutant.number)}
        tests = [test for test in self.reach.durations if everything or mutant.number in self.reach.tests.get(test, ())]
        first = quickest(tests, self.reach.durations)
        rest = [test for test in tests if test not in first]
        return self.failing_test(first, 0, variables) or self.failing_test(rest, self.processes, variables)

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
    crates: list[str], count: int, seed: int, *, processes: int, jobs: int, own: bool, again: Path | None
) -> dict[str, Tested] | None:
    """Runs a sample of each crate, or the mutants that survived according to the output `again`. With `own`, mutants
    meet only the test programs of their crate. Returns `None` without cargo-mutants.
    """
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True, check=False).returncode != 0:
        print(f"{' '.join(crates)}: skipped: needs cargo-mutants (cargo install cargo-mutants)")
        return None
    sample = sampled(crates, count, seed, None if again is None else survivors_of(again))
    results = {crate: Tested() for crate in crates}
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory, ThreadPoolExecutor(jobs) as pool:
        workspace = Workspace(Path(directory), crates, {mutant.file for mutant in sample}, seed)
        candidates: list[RustMutant] = []
        for mutant in sample:
            if is_switchable(mutant, workspace.texts[mutant.file], candidates):
                candidates.append(mutant)
        checked = crates if own else []
        kept, unviable = compiling(workspace, candidates, checked)
        print(f"{len(kept)} of {len(sample)} mutants in one build, {len(unviable)} unviable", flush=True)
        hunt = Hunt(workspace, Reach({}, {}, {}, {}), processes)

        def hunted(mutants: list[RustMutant], catching: Callable[[RustMutant], str | None]) -> list[RustMutant]:
            """Runs these mutants; returns those that are not caught."""
            runs = {pool.submit(catching, mutant): mutant for mutant in mutants}
            missed = []
            for done in as_completed(runs):
                if done.result() is None:
                    missed.append(runs[done])
                else:
                    report(results, runs[done], done.result())
            return missed

        waiting: list[RustMutant] = []
        for crate in crates:
            record_programs(workspace, hunt.reach, workspace.build_programs([crate]), len(sample))
            mutants = [mutant for mutant in kept if mutant.crate == crate]
            missed = hunted(mutants, lambda mutant: hunt.catching_program(mutant, own=True))
            print(f"{crate}: {len(missed)} of {len(mutants)} are not caught by its own test programs:", flush=True)
            for mutant in missed:
                print(f"    {mutant.name}", flush=True)
            waiting += missed
        if waiting and not own:
            # Later, because there are far more of these tests, and far fewer mutants are left.
            record_programs(workspace, hunt.reach, workspace.build_programs([]), len(sample))
            waiting = hunted(in_turn(waiting), lambda mutant: hunt.catching_program(mutant, own=False))
            workspace.build_extension()
            record_tests(workspace, hunt.reach, len(sample), processes)
            waiting = hunted(in_turn(waiting), hunt.catching_test)
        for mutant in waiting:
            report(results, mutant, None)
        workspace.restore(mutant.file for mutant in kept)
        for mutant in in_turn([each for each in sample if each not in kept and each not in unviable]):
            text = workspace.texts[mutant.file]
            workspace.replace(mutant.file, mutant.applied(text, 0, len(text)))
            if workspace.errors([mutant.crate] if own else []):
                print(f"  unviable  {mutant.name}", flush=True)
            else:
                report(results, mutant, catching_alone(workspace, mutant, hunt, own=own))
            workspace.restore([mutant.file])
    return results


def catching_alone(workspace: Workspace, mutant: RustMutant, hunt: Hunt, *, own: bool) -> str | None:
    """The test that fails with the only mutant of the workspace."""
    known = {program.name: program for program in hunt.reach.programs}
    reach = Reach({}, {}, hunt.reach.tests, hunt.reach.durations)
    alone = Hunt(workspace, reach, hunt.processes)
    for crates in ([mutant.crate],) if own else ([mutant.crate], []):
        for program in workspace.build_programs(crates):
            if old := known.get(program.name):
                reach.programs[program] = hunt.reach.programs[old]
                reach.skipped[program] = hunt.reach.skipped[old]
        if failed := alone.catching_program(mutant, own=bool(crates), everything=True):
            return failed
    if own:
        return None
    workspace.build_extension()
    return alone.catching_test(mutant, everything=True)


def report(results: dict[str, Tested], mutant: RustMutant, failed: str | None) -> None:
    """Prints and counts the end of a mutant."""
    result = results[mutant.crate]
    result.viable += 1
    if failed is None:
        result.survivors.append(mutant)
    verdict = "SURVIVED" if failed is None else "caught  "
    print(f"  {verdict}  {mutant.name}{'' if failed is None else f'  [{failed}]'}", flush=True)
