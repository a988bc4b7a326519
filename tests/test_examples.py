"""Every example runs, does what it says, and is short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from served import ROOT, ServedBroker, clean_environment

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SAYS = {
    "app": ["total: 19.0"],
    "authenticator": ["the cook has joined", "the guest may not join: 401"],
    "cluster": ["still there: [b'1 apple', b'2 pears']"],
    "embed": ["confirmed by server"] * 3 + ["order 0", "order 1", "order 2"],
    "events": [
        "cook of eu joined orders",
        "cook sent soup to orders/1",
    ],
    "handler": ["with a schema: accepted", "without one: rejected, none"],
    "hello": ["three of A-100 - confirmed by server"],
    "consume": [f"{number} done at attempt {attempt}" for number, attempt in ((1, 1), (2, 1), (4, 1), (3, 2))],
    "job_flows": ["6 words"],
    "jobs": ["3.5", "1 succeeded, 1 retried"],
    "nodes_leader": ["east has 3 and west has 3"],
    "nodes_mesh": ["has 3"] * 3,
    "request": ["17 characters"],
    "ratelimit": ["allowed 1", "allowed 0", "refused, again in 30 s 0", "neither 10", "2"],
    "routing": [
        "alarms, only-first: @type:operator, alarms/1",
        "orders, only-first: @handler:router orders, orders-elsewhere/1",
    ],
}


def run(*arguments: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=ROOT,
        env=clean_environment(),
    )
    assert result.returncode == 0, result.stderr + result.stdout
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_says_what_it_should(name: str) -> None:
    assert run(str(ROOT / "examples" / f"{name}.py")) == SAYS[name]


def test_the_consumer_works_against_a_broker_that_runs_alone(served: ServedBroker) -> None:
    assert run(str(ROOT / "examples" / "consume.py"), served.url) == SAYS["consume"]


def test_the_test_of_the_examples_passes() -> None:
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_with_testbroker.py")
    assert "1 passed" in said[-1]


def test_no_example_is_forgotten_here() -> None:
    assert {path.stem for path in EXAMPLES} == {
        *SAYS,
        # Web servers: tests/test_fastapi.py, tests/test_flask.py and tests/test_ratelimit_asgi.py.
        "fastapi_service",
        "flask_service",
        "ratelimit_django",
        "ratelimit_starlette",
        "test_with_testbroker",
    }


def test_the_program_of_the_readme_is_the_first_example() -> None:
    readme = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    without_docstring = (ROOT / "examples" / "hello.py").read_text().partition('"""\n\n')[2]
    assert program == without_docstring
    assert len(re.findall(r"^\s*\S", program, re.MULTILINE)) <= 12


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 40
