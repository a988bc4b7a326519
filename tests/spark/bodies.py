"""Made-up JSON bodies of two periods, and what is in them, counted in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from spark.made import at, message

DAY = timedelta(days=1).total_seconds()


def order(chance: random.Random, number: int) -> dict[str, Any]:
    """An order as in both periods."""
    content: dict[str, Any] = {
        "order": number,
        "price": round(chance.lognormvariate(3, 0.5), 2),
        "status": chance.choices(["paid", "open", "late"], [6, 3, 1])[0],
        "gift": chance.random() < 0.3,
        "to": {"city": chance.choice(["Bern", "Basel", "Chur"]), "zip code": 3000 + chance.randrange(5000)},
        "lines": [{"item": chance.randrange(1000)} for _ in range(chance.randrange(1, 5))],
    }
    if chance.random() < 0.7:
        content["note"] = "x" * chance.randrange(5, 40) if chance.random() < 0.8 else None
    return content


def planted(chance: random.Random, number: int) -> dict[str, Any]:
    """An order with each kind of drift."""
    content = order(chance, number)
    content["price"] = round(content["price"] * 3, 2)
    content["status"] = chance.choices(["paid", "open", "late"], [2, 2, 6])[0]
    content["gift"] = int(content["gift"])
    content["to"]["country"] = "CH"
    del content["order"]
    if chance.random() < 0.9:
        content["note"] = None
    return content


def history(
    bodies: Iterable[tuple[str, int, bytes | None]],
) -> list[dict[str, Any]]:
    """Messages with a queue, a day and a body each."""
    return [
        message(number, body, queue=queue, message_id=f"m{number}", time=at(day * DAY + number % 1000))
        for number, (queue, day, body) in enumerate(bodies)
    ]


def dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


def types_of(contents: Iterable[Any]) -> dict[str, Counter[str]]:
    """Number of values by path and type."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}

    def walk(path: str, value: Any) -> None:
        found[path][names.get(type(value), "null")] += 1
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{path}.{name}" if name.isidentifier() else f'{path}["{name}"]', inner)
        elif isinstance(value, list):
            for inner in value:
                walk(f"{path}[]", inner)

    for content in contents:
        walk("$", content)
    return dict(found)
