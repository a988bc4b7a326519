"""Bodies and small helpers of the tests of apps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic
import pytest


class Order(msgspec.Struct):
    """The body of most tests."""

    id: int
    sku: str = "A-100"


@dataclass
class Invoice:
    """The result of handlers."""

    id: int
    total: float


class Stock(TypedDict):
    """A body as a dictionary."""

    sku: str
    count: int


class Customer(pydantic.BaseModel):
    """A body of pydantic."""

    name: str
    age: int


async def until(condition: Callable[[], bool], limit: float = 10.0) -> None:
    """Poll until `condition()` is true; fail after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"the condition did not become true within {limit} s")
        await asyncio.sleep(0.01)
