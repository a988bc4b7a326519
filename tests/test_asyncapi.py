"""The AsyncAPI document of an app, checked with the schema that the AsyncAPI project publishes.

`tests/vectors/asyncapi-3.0.0.json.xz` is the file `schemas/3.0.0-without-$id.json` of the npm package @asyncapi/specs
6.11.1, which has the Apache License 2.0.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import programs
from app_types import Customer, Invoice, Order, Stock
from mqcore import App, Group, Retry
from served import ROOT, clean_environment

SCHEMA = ROOT / "tests" / "vectors" / "asyncapi-3.0.0.json.xz"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(lzma.open(SCHEMA).read()))


def shop() -> App:
    """An app with everything that a document has."""
    app = App(["tmqp://user:secret@one:2622?ca=x", "tmqp://two"], name="billing")
    group = Group(prefix="shop/")

    @app.subscriber("orders/1001", retry=Retry(5, dead_letter="orders/9001"))
    @app.publisher("invoices/2001")
    async def bill(order: Order) -> Invoice | None:
        """Write an invoice."""

    @app.on_request(content_type=10)
    def quote(customer: Customer) -> Invoice: ...  # type: ignore[empty-body]

    @app.on_request()
    def other(body: bytes) -> None: ...

    @app.batch_subscriber("@topic:logs.*", max=50)
    def collect(lines: list[str]) -> None: ...

    @group.subscriber("1", title="Stock", description="Count it.")
    async def count(stock: list[Stock]) -> None: ...

    group.publisher("2", dict[str, Order])
    app.include(group)
    return app


def resolve(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for inner in value.values() for each in references(inner)]
    return [each for inner in value for each in references(inner)] if isinstance(value, list) else []


def test_document_is_valid_and_all_its_references_lead_somewhere(validator: jsonschema.Draft7Validator) -> None:
    document = json.loads(json.dumps(shop().asyncapi(title="Billing", version="2.1.0", description="Bills.")))
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)] == []
    found = references(document)
    assert len(found) > 20
    for reference in found:
        resolve(document, reference)
    assert document["info"] == {"title": "Billing", "version": "2.1.0", "description": "Bills."}


def test_validator_finds_a_wrong_document(validator: jsonschema.Draft7Validator) -> None:
    document = shop().asyncapi()
    document["operations"]["receive-orders-1001"]["action"] = "take"
    assert list(validator.iter_errors(document))


def test_document_describes_messages_and_operations() -> None:
    document = shop().asyncapi()
    assert document["servers"] == {
        "broker": {"host": "one:2622", "protocol": "tmqp"},
        "broker1": {"host": "two", "protocol": "tmqp"},
    }
    assert {name: channel["address"] for name, channel in document["channels"].items()} == {
        "orders-1001": "orders/1001",
        "invoices-2001": "invoices/2001",
        "topic-logs": "@topic:logs.*",
        "shop-1": "shop/1",
        "shop-2": "shop/2",
        "requests-10": "@name:billing",
        "replies-10": None,
        "requests-all": "@name:billing",
        "replies-all": None,
    }
    billed = document["operations"]["receive-orders-1001"]
    assert (billed["title"], billed["description"]) == ("bill", "Write an invoice.")
    assert billed["x-mqcore"]["retries"] == 5
    sent = document["operations"]["send-invoices-2001"]
    message = resolve(document, resolve(document, sent["messages"][0]["$ref"])["$ref"])
    schema = resolve(document, message["payload"]["$ref"])
    assert schema["properties"] == {"id": {"type": "integer"}, "total": {"type": "number"}}
    assert document["components"]["schemas"]["Customer"]["required"] == ["name", "age"]
    assert document["operations"]["receive-shop-1"]["description"] == "Count it."


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqcore", "docs", "asyncapi", *arguments]
    return programs.run(
        command, capture_output=True, text=True, cwd=cwd, env=clean_environment(), timeout=30, check=False
    )


def test_command_prints_or_writes_the_document(tmp_path: Path, validator: jsonschema.Draft7Validator) -> None:
    (tmp_path / "shop.py").write_text(
        "import mqcore\napp = mqcore.App(name='shop')\n\n\n"
        "@app.subscriber('orders/1')\nasync def bill(order: dict[str, int]) -> None: ...\n"
    )
    printed = run("shop:app", "--title", "Shop", "--app-version", "3.0", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    document = json.loads(printed.stdout)
    assert not list(validator.iter_errors(document))
    assert document["info"] == {"title": "Shop", "version": "3.0"}
    written = run("shop:app", "--output", "document.json", cwd=tmp_path)
    assert (written.returncode, written.stdout) == (0, "")
    assert json.loads((tmp_path / "document.json").read_text())["info"]["title"] == "shop"
    wrong = run("shop:nothing", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "nothing is missing; expected an mqcore.App" in wrong.stderr
