"""Measures how many random defects the tests find: `make mutants`, `make mutants TARGETS="client broker" MUTANTS=40`.

A mutant is the program with one small defect: another comparison, a constant off by one, a statement less. The sample
of a target depends only on `--seed`, so a run can be repeated. Python mutants run in a copy of the project against the
tests of their target that run the mutated line. The first run of a target records which ones these are; `--record`
keeps that for other runs while the modules stay the same. `--tests` adds tests, and `--only` repeats single mutants of
a sample. `--near` gives a first result in a fraction of the time: only the quickest of these tests run, so some
survivors are none. With it, mutants of crates meet only the Rust tests of their crate; `--again` runs the survivors
against all tests that reach them. `tools/rust_mutants.py` describes how mutants of crates run.

A mutant counts as caught if a test fails or the tests take far longer than without it. The program prints each mutant
with its file, line and change and the test that failed, and exits with 1 if a target's share of caught mutants is below
`--least`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mutant_runs import PACKAGE, RECORDER, ROOT, Copy, quickest
from rust_runs import run_crates

SPARK: Final = ("bundle", "jvm", "ledger*", "options", "origin", "readers", "rows", "sink", "source", "stream")
PIPELINES: Final = ("charts", "compact", "features", "pipeline*", "reports")
ANSWERING: Final = ("answering", "broker_calls", "handler_loop", "raised")
# The modules and the tests of each target. Of `sync`, two modules are generated: their tests run what is generated.
PYTHON: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "client": (
        ("client/*.py", "bodies.py"),
        (
            *("test_client*.py", "test_documented_defaults.py", "test_message_ids.py", "test_serve.py"),
            *("test_join_handlers.py", "test_copy_confirmations.py", "test_pull_stream.py", "test_batches.py"),
            "test_event_handlers.py",
            *("test_mqks_client.py", "test_mm2_client.py", "protocols/test_tmqp_client.py", "test_router_cli.py"),
        ),
    ),
    "broker": (
        ("broker.py", "handlers.py", "extensions.py", *(f"_{name}.py" for name in ANSWERING)),
        (
            *("test_broker.py", "test_handlers.py", "test_handler_reports.py", "test_guards.py"),
            *("test_custom_messages.py", "test_event_handlers.py", "test_raising_callbacks.py", "test_extensions.py"),
            *("test_mqks_client.py", "jobs/test_ended_schedules.py"),
        ),
    ),
    "config": (
        ("config/*.py",),
        ("test_broker.py", "test_declare.py", "test_documented_defaults.py", "test_options.py", "test_public_api.py"),
    ),
    "routing": (
        ("routing.py",),
        ("test_documented_defaults.py", "test_router_cli.py", "protocols/test_tmqp_python_routers.py"),
    ),
    "throttr": (
        ("throttr/base.py", "throttr/client.py", "throttr/models.py", "throttr/requests.py"),
        ("test_throttr_client.py",),
    ),
    "ratelimit": (("ratelimit/*.py",), ("test_documented_defaults.py", "test_ratelimit*.py")),
    "jobs": (("jobs/*.py", "jobs/pool/*.py"), ("jobs/test_*.py",)),
    "ledger": (("spark/ledger.py", "spark/publisher.py"), ("spark/test_ledger*.py",)),
    "spark": (("spark/*.py",), tuple(f"spark/test_{name}.py" for name in SPARK)),
    "pipelines": (
        ("spark/pipelines/*.py",),
        tuple(f"spark/test_{name}.py" for name in PIPELINES),
    ),
    "sync": (
        ("sync/base.py", "sync/joining.py", "sync/publishing.py", "sync/streams.py"),
        (
            *("test_sync*.py", "test_batches.py", "test_copy_confirmations.py", "test_custom_messages.py"),
            *("test_event_handlers.py", "test_join_handlers.py", "test_message_ids.py", "test_mm2_client.py"),
            *("test_program_end.py", "test_pull_stream.py", "test_serve.py"),
        ),
    ),
    "admin": (
        ("admin.py", "authority.py", "credentials.py", "observing.py", "tls.py", "_broker_stats.py", "_http.py"),
        (
            *("test_admin_http.py", "test_authority.py", "test_broker.py", "test_cli_admin.py", "test_credentials.py"),
            *(
                "test_event_handlers.py",
                "test_handlers.py",
                "test_history.py",
                "test_sighup.py",
                "test_tls.py",
                "jobs/test_jobs_authority.py",
            ),
        ),
    ),
    "storage": (
        ("backup.py", "compaction.py", "export.py", "journal.py", "progress.py", "replay.py"),
        ("test_backup*.py", "test_cli_journal.py", "test_cli_terminal.py", "test_file_modes.py", "test_journal_*.py"),
    ),
    "testing": (
        ("testing.py", "errors.py", "micromessage.py", "_option_table.py"),
        (
            "test_documented_defaults.py",
            "test_errors.py",
            "test_generated.py",
            "test_mm2_*.py",
            "test_options.py",
            "test_testing.py",
            "test_vectors.py",
        ),
    ),
    "cli": (
        ("cli/*.py",),
        (
            *("test_cli.py", "test_cli_*.py", "test_router_cli.py", "test_limit_cli.py", "test_authority.py"),
            *("test_backup.py", "test_journal_*.py", "test_sighup.py", "test_client_topics.py"),
            "jobs/test_jobs_cli.py",
        ),
    ),
}
GENERATED: Final = ("throttr/sync_client.py",)

# The recorder names this instead of a test for lines that run while modules are imported.
IMPORT: Final = "import"

# Some tests choose their parameters at random: all runs must choose the same ones, also those that use a record.
TESTS_SEED: Final = "1"

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}


@dataclass(frozen=True)
class Mutant:
    """One defect in one module."""

    module: Path
    line: int
    change: str
    place: int
    """Its number among all places of the module."""
    function: range
    """The lines of the innermost function around it; none if it is in no function."""

    def source(self) -> str:
        """The module with the defect."""
        tree = ast.parse(self.module.read_text(encoding="utf-8"))
        parent, name, index = next(itertools.islice(places(tree), self.place, None))
        new = changed(child_of(parent, name, index))
        assert new is not None
        put(parent, name, index, new)
        return ast.unparse(ast.fix_missing_locations(tree))


def changed(node: ast.AST) -> ast.AST | None:
    """`node` with a defect; `None` if no defect of ours fits."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            new.ops[0] = COMPARISONS[type(operator)]()
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            return new.operand
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            new.op = OPERATORS[type(operator)]()
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(number) | float(number)):
            new.value = number + 1
        case ast.If() | ast.While() | ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), new.test)
        case ast.Return(value=ast.expr()) if not isinstance(new.value, ast.Constant):
            new.value = ast.Constant(None)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
            return ast.Pass()
        case _:
            return None
    return new


def is_left_out(node: ast.AST) -> bool:
    """Code whose defects no test could see: types, logs, overloads, names that a module exports."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in {"_LOG", "LOG", "warnings"}
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of each node that can run."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not is_left_out(child):
                yield node, name, index
                yield from places(child)


def mutants_of(module: Path) -> list[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = []
    functions = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for place, (parent, name, index) in enumerate(places(tree)):
        old = child_of(parent, name, index)
        new = changed(old)
        if new is None:
            continue
        line = getattr(old, "lineno", getattr(parent, "lineno", 1))
        change = f"{first_line(old)}  ->  {first_line(new)}"
        around = [lines for lines in functions if line in lines]
        found.append(Mutant(module, line, change, place, min(around, key=len, default=range(0))))
    return found


def child_of(parent: ast.AST, name: str, index: int | None) -> ast.AST:
    """The child at a place."""
    child: Any = getattr(parent, name)
    return child if index is None else child[index]  # type: ignore[no-any-return]


def put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    """Replaces a child of `parent`."""
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def first_line(node: ast.AST) -> str:
    """The text of a node in a report."""
    return ast.unparse(node).partition("\n")[0][:70]


def read_lines(path: Path) -> list[str]:
    """The lines of a file of a record; none if no process wrote it."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@dataclass(frozen=True)
class Reach:
    """Which tests run which lines."""

    durations: dict[str, float]
    """Seconds of each test."""
    lines: dict[str, dict[str, set[str]]]
    """Names of the tests that run each line of a module."""
    files: set[str] = field(default_factory=set)
    """The files of tests that were run, also those whose tests are all skipped."""

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the line of a mutant, the quickest first. A line that no test runs by itself may be a
        default or a part of a statement: for those, all tests that run its function, or else its module.
        """
        lines = self.lines.get(str(mutant.module.relative_to(ROOT)), {})
        exact = lines.get(str(mutant.line), set())
        parts = (
            set(self.durations) if IMPORT in exact else exact,
            set().union(*(lines.get(str(line), set()) for line in mutant.function)),
            set().union(*lines.values()),
            set(self.durations),
        )
        running = next((some for part in parts if (some := part & self.durations.keys())), set())
        return sorted(running, key=lambda test: (self.durations[test], test))

    def save(self, path: Path) -> None:
        """Writes a file that `load` reads."""
        lines = {module: {line: sorted(tests) for line, tests in each.items()} for module, each in self.lines.items()}
        path.write_text(
            json.dumps({"durations": self.durations, "lines": lines, "files": sorted(self.files)}), encoding="utf-8"
        )

    @classmethod
    def load(cls, path: Path) -> Reach:
        """Reads a file that `save` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = found["lines"].items()
        return cls(
            found["durations"],
            {module: {line: set(tests) for line, tests in each.items()} for module, each in lines},
            set(found["files"]),
        )

    def add(self, other: Reach) -> None:
        """Adds what later runs have recorded."""
        self.durations.update(other.durations)
        self.files.update(other.files)
        for module, each in other.lines.items():
            for line, tests in each.items():
                self.lines.setdefault(module, {}).setdefault(line, set()).update(tests)


class PythonCopy(Copy):
    """A copy of the project with the built extension module, whose modules can be replaced."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (path.relative_to(ROOT) for path in PACKAGE.glob("_core*")))

    def record(self, tests: list[str], processes: int, files: list[Path]) -> Reach:
        """Runs tests without a mutant, and records which of them run each line of `files`."""
        record = self.directory / "record"
        shutil.rmtree(record, ignore_errors=True)
        record.mkdir()
        names = [str(self.directory / path.relative_to(ROOT)) for path in files]
        variables = {
            "PYTHONPATH": str(RECORDER),
            "PYTEST_ADDOPTS": "-p current_test",
            "MUTANTS_FILES": os.pathsep.join(names),
            "MUTANTS_RECORD": str(record),
        }
        outcome = self.run(tests, processes, None, variables)
        if not outcome.passed:
            print(f"left out, because they fail without a mutant: {' '.join(outcome.why)}", flush=True)
        passed = {test: each for test, each in outcome.durations.items() if test not in outcome.why}
        reach = Reach(passed, {}, set(tests))
        named = [entry.partition("\t")[::2] for entry in read_lines(record / "tests")]
        for name, test in [*named, (IMPORT, IMPORT)]:
            for entry in read_lines(record / f"lines.{name}"):
                number, line = entry.split()
                module = str(files[int(number)].relative_to(ROOT))
                reach.lines.setdefault(module, {}).setdefault(line, set()).add(test)
        return reach

    def replace(self, module: Path, source: str) -> None:
        """Overwrites a module of the copy."""
        path = self.directory / module.relative_to(ROOT)
        path.write_text(source, encoding="utf-8")
        # Python would take the compiled module for current if it is as long and from the same second.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def failure(self, mutant: Mutant, tests: list[str], durations: dict[str, float], processes: int) -> str | None:
        """The test that a mutant fails; `None` if all pass. A test that then fails without the mutant is dropped."""
        remaining = list(tests)
        while remaining:
            limit = 3 * sum(durations[test] for test in remaining) + 60
            self.replace(mutant.module, mutant.source())
            outcome = self.run(remaining, processes, limit)
            self.replace(mutant.module, mutant.module.read_text(encoding="utf-8"))
            failed = [test for test in outcome.why if test in durations]
            if outcome.passed:
                return None
            if processes == 0 or not failed or self.run(failed, 0, limit).passed:
                return outcome.why[0]
            for test in failed:
                del durations[test]
            remaining = [test for test in remaining if test not in failed]
        return None


def reach_of(target: str, project: PythonCopy, tests: list[str], processes: int, record: Path | None) -> Reach:
    """Which tests run which lines: of a file of an earlier run, and of a run of the tests that it does not have."""
    reach = Reach({}, {})
    if record is not None and (path := record / f"{target}.json").exists():
        reach = Reach.load(path)
    if missing := [test for test in tests if test not in reach.files]:
        reach.add(project.record(missing, processes, modules_of(target)))
        if record is not None:
            record.mkdir(parents=True, exist_ok=True)
            reach.save(record / f"{target}.json")
    return reach


def modules_of(target: str) -> list[Path]:
    """The modules of a target."""
    return sorted({path for pattern in PYTHON[target][0] for path in PACKAGE.glob(pattern)})


def run_python(
    target: str,
    count: int,
    seed: int,
    only: list[int],
    added: list[str],
    record: Path | None,
    processes: int,
    *,
    near: bool,
) -> tuple[int, list[Mutant]]:
    """Runs a sample of a target, or its mutants with the numbers `only`; returns how many ran, and the survivors."""
    everything = [
        mutant
        for path in modules_of(target)
        if str(path.relative_to(PACKAGE)) not in GENERATED
        for mutant in mutants_of(path)
    ]
    sample = random.Random(f"{seed} {target}").sample(everything, min(count, len(everything)))
    numbered = [(number, mutant) for number, mutant in enumerate(sample, 1) if not only or number in only]
    tests = {
        f"tests/{path.relative_to(ROOT / 'tests')}"
        for pattern in PYTHON[target][1]
        for path in (ROOT / "tests").glob(pattern)
    }
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory:
        project = PythonCopy(Path(directory))
        reach = reach_of(target, project, sorted(tests.union(added)), processes, record)
        durations = reach.durations
        if not durations:
            sys.exit(f"{target}: no test passes without a mutant")
        print(f"{target}: {len(numbered)} of {len(everything)} mutants, {len(durations)} tests", flush=True)
        for number, mutant in numbered:
            running = reach.tests_of(mutant)
            first = quickest(running, durations)
            rest = [] if near else [test for test in running if test not in first]
            by = project.failure(mutant, first, durations, 0) or project.failure(mutant, rest, durations, processes)
            where = f"{mutant.module.relative_to(ROOT)}:{mutant.line}"
            verdict = f"SURVIVED {where}: {mutant.change}  ({len(running)} tests)"
            if by is not None:
                verdict = f"caught   {where}: {mutant.change}  [{by}]"
            print(f"  {number:3}/{len(sample)} {verdict}", flush=True)
            if by is None:
                survivors.append(mutant)
    return len(numbered), survivors


def numbers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(number) for number in text.split(",")]


def main() -> int:
    """Prints a score for each target; 1 if one is below the least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(PYTHON)}, or crates; default: all of Python")
    parser.add_argument("--count", type=int, default=40, help="mutants of each target (default 40)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="repeats a sample")
    parser.add_argument("--only", type=numbers, default=[], help="numbers of mutants of the sample, as 3,17")
    parser.add_argument("--tests", action="append", default=[], help="a file of tests besides those of the target")
    parser.add_argument("--record", type=Path, help="directory for which tests run which lines (default: no directory)")
    parser.add_argument("--processes", type=int, default=3, help="processes that run tests (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants of crates that run at a time (default 1)")
    parser.add_argument("--near", action="store_true", help="mutants meet only the nearest tests, which is quick")
    parser.add_argument(
        "--again", type=Path, metavar="OUTPUT", help="run the mutants of crates that survived in this output, no sample"
    )
    parser.add_argument("--least", type=int, default=90, help="percentage that must be caught (default 90)")
    given = parser.parse_args()
    print(f"sample: --seed {given.seed} --count {given.count}", flush=True)
    os.environ["MQCORE_SEED"] = TESTS_SEED
    targets = given.targets or list(PYTHON)
    crates = [target for target in targets if target.startswith("mqcore-")]
    if unknown := [target for target in targets if target not in PYTHON and target not in crates]:
        parser.error(f"unknown targets {', '.join(unknown)}; use {', '.join(PYTHON)} or the names of crates")
    scores = []
    for target in targets:
        if target in PYTHON:
            size, survivors = run_python(
                target,
                given.count,
                given.seed,
                given.only,
                given.tests,
                given.record,
                given.processes,
                near=given.near,
            )
            scores.append((target, size, len(survivors)))
    options = {"processes": given.processes, "jobs": given.jobs, "own": given.near, "again": given.again}
    results = run_crates(crates, given.count, given.seed, **options) if crates else None
    scores += [(crate, tested.viable, len(tested.survivors)) for crate, tested in (results or {}).items()]
    for target, size, survived in scores:
        print(f"{target:20} {size - survived:3}/{size:3} caught {100 * (size - survived) / max(size, 1):5.1f} %")
    return int(any(100 * (size - survived) < given.least * size for _, size, survived in scores))


if __name__ == "__main__":
    sys.exit(main())
