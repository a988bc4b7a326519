"""The OpenAPI document of the admin side: complete, committed, and true under generated requests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import programs
from depth import SEED, by_depth
from mqcore import QueueOptions, QueueStatus
from served import ROOT, serving
from test_admin_changes import Place, new_token

DOCUMENT = ROOT / "docs" / "openapi.json"
PROGRAM = Path(sys.executable).with_name("schemathesis")

EXAMPLES = by_depth(1, 100)
"""Requests for each operation and phase."""

FILES = ("/", "/assets/{file}", "/openapi.json")
"""Routes that the document leaves out."""

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)

needs_program = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="schemathesis is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with users, and with some of everything."""
    data = tmp_path_factory.mktemp("openapi") / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, rule) for name, rule in (("all", "*"), ("viewer", "inspect"))}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--auto-create") as broker:
        found = Place(broker, tokens)
        with found.connect() as client:
            for queue in (0, 1):
                client.declare("0", queue, QueueOptions(status=QueueStatus.PULL))
                client.publish_many(f"0/{queue}", ["text", b"\xff\x00", ""])
            yield found


def document(place: Place) -> dict[str, Any]:
    """The document that the broker serves."""
    return place.ask("GET", "/openapi.json")[1]


def test_the_committed_document_is_that_of_the_broker(place: Place) -> None:
    served = json.dumps(document(place), indent=1, sort_keys=True) + "\n"
    committed = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    # The version is that of the package, and changes with each release.
    without_version = [re.sub(r'"version": "[^"]*"', '"version": ""', text) for text in (served, committed)]
    if without_version[0] != without_version[1]:
        DOCUMENT.write_text(served)
        pytest.fail("docs/openapi.json was not that of the broker; it is written anew, so commit it")


def test_every_route_is_documented(place: Place) -> None:
    source = (ROOT / "rust" / "mqcore-server" / "src" / "admin.rs").read_text()
    routes: set[tuple[str, str]] = set()
    for path, methods in re.findall(r'\.route\(\s*"([^"]+)",\s*(.+?)\)\s*(?=\.route|\.fallback)', source, re.DOTALL):
        routes |= {(method, path) for method in re.findall(r"\b(get|post|delete|put|patch)\(", methods)}
    documented = {(method, path) for path, item in document(place)["paths"].items() for method in item}
    assert {route for route in routes if route[1] not in FILES} == documented
    assert len(documented) >= 25


def test_every_operation_and_member_is_described(place: Place) -> None:
    paths = document(place)["paths"]
    names: list[str] = []
    for path, item in paths.items():
        for method, operation in item.items():
            what = f"{method} {path}"
            assert operation["tags"], what
            names.append(operation["operationId"])
            assert all(answer["description"] for answer in operation["responses"].values()), what
            assert all(parameter["description"] for parameter in operation.get("parameters", [])), what
            assert {"401", "403", "503"} <= operation["responses"].keys(), what
    assert len(set(names)) == len(names), "generated clients need a name for each"


def generated(place: Place, who: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run generated requests with a token. `/stream` has no end, so it is left out."""
    command = [
        str(PROGRAM),
        "run",
        f"{place.url}/openapi.json",
        *("--header", f"Authorization: Bearer {place.tokens[who]}", "--exclude-path", "/stream"),
        *("--max-examples", str(EXAMPLES), "--seed", str(SEED), "--no-color", "--continue-on-failure"),
        *("--request-timeout", "20", "--warnings", "off", "--report-dir", str(tmp_path / "report")),
        *arguments,
    ]
    return programs.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)


@needs_program
@pytest.mark.timeout(1_000)
def test_generated_requests_of_an_administrator_get_documented_answers(place: Place, tmp_path: Path) -> None:
    found = generated(place, "all", tmp_path, "--checks", ",".join(CHECKS), "--exclude-path", "/drain")
    assert found.returncode == 0, found.stdout[-6_000:]
    assert place.ask("GET", "/healthz")[0] in (200, 503)
    assert place.broker.process.poll() is None


@needs_program
@pytest.mark.timeout(1_000)
@pytest.mark.full("26 s; test_authority_matrix.py and test_permission_matrix.py refuse changes to viewers")
def test_generated_requests_of_a_viewer_change_nothing(place: Place, tmp_path: Path) -> None:
    before = state(place)
    report = tmp_path / "requests.ndjson"
    generated(
        place, "viewer", tmp_path, "--checks", "not_a_server_error", "--report", "ndjson",
        "--report-ndjson-path", str(report),
    )  # fmt: skip
    changes = answers_to_changes(report)
    assert changes, "requests that would change something were sent"
    assert set(changes) <= {401, 403, 405}, changes
    time.sleep(0.1)
    assert state(place) == before
    assert place.broker.process.poll() is None


def state(place: Place) -> list[tuple[str, str, int]]:
    """All queues."""
    page = place.ask("GET", "/queues")[1]
    return [(row["queue"], row["status"], row["ready"]) for row in page["queues"]]


def answers_to_changes(report: Path) -> list[int]:
    """Statuses of the answers to all requests that change something."""
    found: list[int] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            request, response = value.get("request"), value.get("response")
            if (
                isinstance(request, dict)
                and isinstance(response, dict)
                and request.get("method") not in ("GET", "HEAD")
            ):
                found.append(int(response["status_code"]))
            for part in value.values():
                walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)

    for line in report.read_text().splitlines():
        walk(json.loads(line))
    return found
