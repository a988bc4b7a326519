"""Jobs that raise what would end a program."""

from __future__ import annotations

import asyncio
import sys

from mqcore.jobs import Jobs

jobs = Jobs()


class Unprintable(BaseException):
    """Its text raises too."""

    def __str__(self) -> str:
        raise SystemExit(5)


class Unencodable(Exception):
    """Its text and arguments have a character that UTF-8 does not have."""

    def __init__(self) -> None:
        super().__init__("no \ud800")


def end(kind: str) -> None:
    ends = (SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, asyncio.CancelledError)
    raise {exception.__name__: exception for exception in (*ends, Unprintable, Unencodable)}[kind]


@jobs.task
def raises(kind: str) -> None:
    end(kind)


@jobs.task
async def raises_async(kind: str) -> None:
    await asyncio.sleep(0)
    end(kind)


@jobs.task
async def starts_what_exits() -> str:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.05)
    return "done"


@jobs.task
def fine() -> str:
    return "fine"
