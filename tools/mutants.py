"""Measures how many random defects the tests find: `make mutants`, `make mutants TARGETS="client broker" MUTANTS=40`.

A mutant is the program with one small defect: another comparison, a constant off by one, a statement less. The sample
of a target depends only on `--seed`, so a run can be repeated. Python mutants run in a copy of the project against the
tests that belong to their module: first against those that run the mutated line, then against all of them. With
`--whole`, survivors run against all Python tests. `tools/rust_mutants.py` describes how mutants of crates run. `--near`
gives a first result in a fraction of the time, and `--again` runs its survivors against all tests that reach them.

A mutant counts as caught if a test fails or the tests take far longer than without it. The program prints each mutant
with its file, line and change and the test that failed, and exits with 1 if a target's share of caught mutants is below
`--least`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from mutant_runs import PACKAGE, RECORDER, ROOT, Copy, Outcome, quickest
from rust_runs import run_crates

# The modules of each target, and the tests that run first. Generated modules are mutated in their source.
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
        ("broker.py", "_answering.py", "handlers.py"),
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
    "throttr": (("throttr/client.py", "throttr/models.py", "throttr/requests.py"), ("test_throttr_client.py",)),
    "ratelimit": (("ratelimit/*.py",), ("test_documented_defaults.py", "test_ratelimit*.py")),
    "jobs": (("jobs/*.py", "jobs/pool/*.py"), ("jobs/test_*.py",)),
    "ledger": (("spark/ledger.py", "spark/publisher.py"), ("spark/test_ledger*.py",)),
    "spark": (("spark/*.py",), ("spark/test_ledger*.py", "spark/test_sink.py", "spark/test_source.py")),
    "cli": (
        ("cli/*.py",),
        (
            *("test_cli.py", "test_cli_*.py", "test_router_cli.py", "test_limit_cli.py", "test_authority.py"),
            *(
                "test_backup.py",
                "test_journal_*.py",
                "test_sighup.py",
                "test_client_topics.py",
                "jobs/test_jobs_cli.py",
            ),
        ),
    ),
}
GENERATED: Final = ("throttr/sync_client.py",)

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
    """One defect in one module: `source` is the whole module with it."""

    module: Path
    line: int
    change: str
    source: str


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
    for parent, name, index in list(places(tree)):
        field = getattr(parent, name)
        old = field if index is None else field[index]
        new = changed(old)
        if new is None:
            continue
        put(parent, name, index, new)
        source = ast.unparse(ast.fix_missing_locations(tree))
        put(parent, name, index, old)
        line = getattr(old, "lineno", getattr(parent, "lineno", 1))
        found.append(Mutant(module, line, f"{first_line(old)}  ->  {first_line(new)}", source))
    return found


def put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    """Replaces a child of `parent`."""
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def first_line(node: ast.AST) -> str:
    """The text of a node in a report."""
    return ast.unparse(node).partition("\n")[0][:70]


# Names of the tests that run each line of a module.
Lines: TypeAlias = dict[Path, dict[int, set[str]]]


def nearest(mutant: Mutant, lines: Lines, durations: dict[str, float]) -> list[str]:
    """The quickest tests that run the line of a mutant. A line that no test runs by itself may be a default or a part
    of a statement: for those, the quickest of all tests.
    """
    running = lines.get(mutant.module, {}).get(mutant.line, durations.keys())
    return quickest(running & durations.keys(), durations)


class PythonCopy(Copy):
    """A copy of the project with the built extension module, whose modules can be replaced."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (path.relative_to(ROOT) for path in PACKAGE.glob("_core*")))

    def record(self, tests: list[str], processes: int, files: list[Path]) -> tuple[Outcome, Lines]:
        """Runs all tests without a mutant, and records which tests run each line of `files`."""
        record = self.directory / "record"
        variables = {
            "PYTHONPATH": str(RECORDER),
            "MUTANTS_FILES": os.pathsep.join(str(self.directory / path.relative_to(ROOT)) for path in files),
            "MUTANTS_RECORD": str(record),
        }
        outcome = self.run(tests, processes, None, variables)
        lines: Lines = {}
        for entry in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
            test, file, line = entry.split("\t")
            lines.setdefault(ROOT / Path(file).relative_to(self.directory), {}).setdefault(int(line), set()).add(test)
        return outcome, lines

    def replace(self, module: Path, source: str) -> None:
        """Overwrites a module of the copy."""
        path = self.directory / module.relative_to(ROOT)
        path.write_text(source, encoding="utf-8")
        # Python would take the compiled module for current if it is as long and from the same second.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


def run_python(target: str, count: int, seed: int, *, whole: bool, processes: int) -> tuple[int, list[Mutant]]:
    """Runs a sample of a target; returns its size and the survivors."""
    modules, patterns = PYTHON[target]
    files = sorted({path for pattern in modules for path in PACKAGE.glob(pattern)})
    everything = [
        mutant for path in files if str(path.relative_to(PACKAGE)) not in GENERATED for mutant in mutants_of(path)
    ]
    sample = random.Random(f"{seed} {target}").sample(everything, min(count, len(everything)))
    tests = sorted(
        f"tests/{path.relative_to(ROOT / 'tests')}" for pattern in patterns for path in (ROOT / "tests").glob(pattern)
    )
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory:
        project = PythonCopy(Path(directory))
        whole_run, lines = project.record(tests, processes, files)
        durations, seconds = whole_run.durations, whole_run.seconds
        if not whole_run.passed:
            print(f"{target}: left out, because they fail without a mutant: {' '.join(whole_run.why)}", flush=True)
            durations = {test: each for test, each in durations.items() if test not in whole_run.why}
        if not durations:
            sys.exit(f"{target}: no test passes without a mutant")
        print(f"{target}: {len(sample)} of {len(everything)} mutants, {seconds:.0f} s a run", flush=True)
        for number, mutant in enumerate(sample, 1):
            project.replace(mutant.module, mutant.source)
            first = nearest(mutant, lines, durations)
            runs = [(first, 0, 3 * sum(durations[test] for test in first) + 60)] if first else []
            runs.append(([test for test in durations if test not in first], processes, 3 * seconds + 60))
            if whole:
                runs.append((["tests"], processes, 3600))
            failed = next((outcome.why for run in runs if not (outcome := project.run(*run)).passed), None)
            project.replace(mutant.module, mutant.module.read_text(encoding="utf-8"))
            where = f"{mutant.module.relative_to(ROOT)}:{mutant.line}"
            verdict = "SURVIVED" if failed is None else "caught"
            by = "" if failed is None else f"  [{failed[0]}]"
            print(f"  {number:3}/{len(sample)} {verdict:8} {where}: {mutant.change}{by}", flush=True)
            if failed is None:
                survivors.append(mutant)
    return len(sample), survivors


def main() -> int:
    """Prints a score for each target; 1 if one is below the least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(PYTHON)}, or crates; default: all of Python")
    parser.add_argument("--count", type=int, default=40, help="mutants of each target (default 40)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="repeats a sample")
    parser.add_argument("--whole", action="store_true", help="run survivors against all Python tests, which takes long")
    parser.add_argument("--processes", type=int, default=3, help="processes that run tests (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants of crates that run at a time (default 1)")
    parser.add_argument(
        "--near", action="store_true", help="mutants of crates meet only the nearest tests, which is quick"
    )
    parser.add_argument(
        "--again", type=Path, metavar="OUTPUT", help="run the mutants of crates that survived in this output, no sample"
    )
    parser.add_argument("--least", type=int, default=90, help="percentage that must be caught (default 90)")
    given = parser.parse_args()
    print(f"sample: --seed {given.seed} --count {given.count}", flush=True)
    targets = given.targets or list(PYTHON)
    crates = [target for target in targets if target.startswith("mqcore-")]
    if unknown := [target for target in targets if target not in PYTHON and target not in crates]:
        parser.error(f"unknown targets {', '.join(unknown)}; use {', '.join(PYTHON)} or the names of crates")
    scores = []
    for target in targets:
        if target in PYTHON:
            size, survivors = run_python(target, given.count, given.seed, whole=given.whole, processes=given.processes)
            scores.append((target, size, len(survivors)))
    options = {"processes": given.processes, "jobs": given.jobs, "near": given.near, "again": given.again}
    results = run_crates(crates, given.count, given.seed, **options) if crates else None
    scores += [(crate, tested.viable, len(tested.survivors)) for crate, tested in (results or {}).items()]
    for target, size, survived in scores:
        print(f"{target:20} {size - survived:3}/{size:3} caught {100 * (size - survived) / max(size, 1):5.1f} %")
    return int(any(100 * (size - survived) < given.least * size for _, size, survived in scores))


if __name__ == "__main__":
    sys.exit(main())
