"""The executor of plain handlers and jobs: which thread runs a call, exceptions, and the shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from mqcore._daemon_threads import DaemonThreads
from served import wait_until


@pytest.fixture
def threads() -> Iterator[DaemonThreads]:
    made = DaemonThreads(2, "tested")
    yield made
    made.shutdown()


def test_calls_share_as_many_threads_as_are_allowed(threads: DaemonThreads) -> None:
    met = threading.Barrier(2)

    def meet(number: int) -> tuple[int, str]:
        met.wait(10)
        return number, threading.current_thread().name

    found = [future.result(10) for future in [threads.submit(meet, number) for number in range(20)]]
    assert [number for number, _ in found] == list(range(20))
    assert {name for _, name in found} == {"tested_0", "tested_1"}


def test_free_thread_runs_the_next_call(threads: DaemonThreads) -> None:
    for _ in range(5):
        assert threads.submit(lambda: threading.current_thread().daemon).result(10)
        wait_until(lambda: threads._free == 1, what="the free thread")
    assert len(threads._started) == 1


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_call_is_that_of_its_future(threads: DaemonThreads, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("no")

    with pytest.raises(kind, match="no"):
        threads.submit(fail).result(10)
    assert threads.submit(int, "5").result(10) == 5


@pytest.mark.parametrize("cancel", [True, False])
def test_shutdown_ends_threads_after_their_calls(threads: DaemonThreads, cancel: bool) -> None:
    release, started = threading.Event(), threading.Barrier(3)

    def run() -> bool:
        started.wait(10)
        return release.wait(10)

    running = [threads.submit(run) for _ in range(2)]
    started.wait(10)
    waiting = threads.submit(int, "5")
    canceled = threads.submit(int, "6")
    assert canceled.cancel()
    threads.shutdown(wait=False, cancel_futures=cancel)
    with pytest.raises(RuntimeError, match="after the shutdown"):
        threads.submit(int)
    release.set()
    assert all(future.result(10) for future in running)
    if cancel:
        with pytest.raises(CancelledError):
            waiting.result(10)
    else:
        assert waiting.result(10) == 5
    threads.shutdown(wait=True)
    assert not any(thread.is_alive() for thread in threads._started)
