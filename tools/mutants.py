"""Measures how many random defects the tests find: `make mutants`, `make mutants TARGETS="client broker" MUTANTS=40`.

A mutant is the program with one small defect: another comparison, a constant off by one, a statement less. The sample
of a target depends only on `--seed`, so a run can be repeated. Python mutants run in a copy of the project against the
tests that belong to their module: first against those that run the mutated line, then against all of them. With
`--whole`, survivors run against all Python tests. Rust mutants are made and run by cargo-mutants, with a sample of the
same kind.

A mutant counts as caught if a test fails or the tests take far longer than without it. The program prints each mutant
with its file, line and change and the test that failed, and exits with 1 if a target's share of caught mutants is below
`--least`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "python" / "mqcore"

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

# Seconds of tests that run the mutated line, before all tests of the target run.
NEAREST_SECONDS: Final = 20.0

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


@dataclass(frozen=True)
class Outcome:
    """The end of a run of tests."""

    passed: bool
    seconds: float
    why: list[str]
    """The tests that failed, or another reason."""
    durations: dict[str, float]
    """Seconds of each test."""


def nearest(mutant: Mutant, lines: Lines, durations: dict[str, float]) -> list[str]:
    """The quickest tests that run the line of a mutant. A line that no test runs by itself may be a default or a part
    of a statement: for those, the quickest of all tests.
    """
    running = lines.get(mutant.module, {}).get(mutant.line, durations.keys())
    found: list[str] = []
    total = 0.0
    for test in sorted(running & durations.keys(), key=lambda test: (durations[test], test)):
        total += durations[test]
        if found and total > NEAREST_SECONDS:
            break
        found.append(test)
    return found


class Copy:
    """The project in a directory of its own, whose modules can be replaced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        extension = [path.relative_to(ROOT) for path in PACKAGE.glob("_core*")]
        for path in {*map(Path, filter(None, listed.decode().split("\0"))), *extension}:
            if (ROOT / path).is_file():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, directory / path)

    def run(
        self, tests: list[str], processes: int, limit: float | None, environment: dict[str, str] | None = None
    ) -> Outcome:
        """Runs tests until one fails; all of them without a limit."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
        command += ["--dist", "loadscope", "--durations=0", "--durations-min=0", *tests]
        if limit is not None:
            command.append("-x")
        paths = os.pathsep.join(filter(None, [str(self.directory / "python"), (environment or {}).get("PYTHONPATH")]))
        fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.directory,
                env={**os.environ, **(environment or {}), **fixed},
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, time.monotonic() - begin, [f"time limit of {limit:.0f} s"], {})
        durations: dict[str, float] = {}
        for match in re.finditer(r"^([0-9.]+)s (?:setup|call|teardown) +(\S.*)$", done.stdout, re.MULTILINE):
            durations[match[2]] = durations.get(match[2], 0.0) + float(match[1])
        failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        why = failed or [f"exit code {done.returncode}", done.stderr[-2000:]]
        return Outcome(done.returncode == 0, time.monotonic() - begin, why, durations)

    def record(self, tests: list[str], processes: int, files: list[Path]) -> tuple[Outcome, Lines]:
        """Runs all tests without a mutant, and records which tests run each line of `files`."""
        record = self.directory / "record"
        variables = {
            "PYTHONPATH": str(ROOT / "tools" / "recorder"),
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
        project = Copy(Path(directory))
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


def run_rust(crate: str, count: int, seed: int) -> tuple[int, list[str]] | None:
    """The same for a crate; `None` without cargo-mutants."""
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True, check=False).returncode != 0:
        print(f"{crate}: skipped: needs cargo-mutants (cargo install cargo-mutants)")
        return None
    listing = ["cargo", "mutants", "--list", "--json", "--package", crate]
    found = json.loads(subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout)
    names = sorted(each["name"] for each in found)
    sample = random.Random(f"{seed} {crate}").sample(names, min(count, len(names)))
    wanted = [argument for name in sample for argument in ("--re", f"^{re.escape(name)}$")]
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory:
        command = ["cargo", "mutants", "--package", crate, "--output", directory, "--no-shuffle", *wanted]
        subprocess.run(command, cwd=ROOT, check=False)
        report = Path(directory) / "mutants.out"
        missed = (report / "missed.txt").read_text(encoding="utf-8").splitlines()
        unviable = (report / "unviable.txt").read_text(encoding="utf-8").splitlines()
    return len(sample) - len(unviable), missed


def main() -> int:
    """Prints a score for each target; 1 if one is below the least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(PYTHON)}, or crates; default: all of Python")
    parser.add_argument("--count", type=int, default=40, help="mutants of each target (default 40)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="repeats a sample")
    parser.add_argument("--whole", action="store_true", help="run survivors against all Python tests, which takes long")
    parser.add_argument("--processes", type=int, default=3, help="processes that run tests (default 3)")
    parser.add_argument("--least", type=int, default=90, help="percentage that must be caught (default 90)")
    given = parser.parse_args()
    print(f"sample: --seed {given.seed} --count {given.count}", flush=True)
    scores = []
    for target in given.targets or PYTHON:
        if target in PYTHON:
            size, survivors = run_python(target, given.count, given.seed, whole=given.whole, processes=given.processes)
            scores.append((target, size, len(survivors)))
        elif target.startswith("mqcore-"):
            if (outcome := run_rust(target, given.count, given.seed)) is not None:
                scores.append((target, outcome[0], len(outcome[1])))
        else:
            parser.error(f"unknown target {target!r}; use {', '.join(PYTHON)} or the name of a crate")
    for target, size, survived in scores:
        print(f"{target:20} {size - survived:3}/{size:3} caught {100 * (size - survived) / max(size, 1):5.1f} %")
    return int(any(100 * (size - survived) < given.least * size for _, size, survived in scores))


if __name__ == "__main__":
    sys.exit(main())
