"""A program that uses a client may end at any moment, and ends cleanly."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from depth import by_depth
from served import ServedBroker, clean_environment

# The last thing it does is to await an answer: the thread that brought it may still be on its way back.
PROGRAM = """
import asyncio, os, sys
import mqcore

async def main():
    async with mqcore.connect(sys.argv[1]) as client:
        queue = f"ends-{os.getpid()}/0"
        await client.publish(queue, b"x")
        async with client.queue(queue).consume() as messages:
            async for message in messages:
                return

asyncio.run(main())
"""


def test_a_program_may_end_upon_its_last_answer(served: ServedBroker) -> None:
    def end(_number: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, served.url], env=clean_environment(), timeout=30, check=False
        ).returncode

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(end, range(by_depth(quick=12, full=60)))) == {0}


def test_a_program_may_end_without_closing_its_client(served: ServedBroker) -> None:
    program = PROGRAM.replace("                return", "                sys.exit(7)")
    done = subprocess.run([sys.executable, "-c", program, served.url], env=clean_environment(), timeout=30, check=False)
    assert done.returncode == 7
