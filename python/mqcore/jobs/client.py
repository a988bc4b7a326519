"""A client's connection to a broker of jobs: a thread that sends them and takes their results."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mqcore.errors import AuthFailed, Busy, ConnectFailed, ConnectionLost, Draining, MqcoreError
from mqcore.jobs import wire
from mqcore.jobs.dealer import Dealer, Waker

if TYPE_CHECKING:
    from mqcore.jobs.job import Job

__all__ = ["JobClient", "ask"]

# Jobs that may wait to be sent; whoever sends more waits until there is room.
_WAITING_MAX: Final = 10_000
# How many messages are taken before those that wait to be sent have their turn.
_BATCH: Final = 1000


class JobClient:
    """Sends jobs, and gives their results to whoever waits for them. Threads may share it."""

    def __init__(self, endpoint: str, timeout: float, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token = token
        self._timeout = timeout
        self._process = os.getpid()
        # Whoever holds no `Job` waits for no result, so an entry ends with it.
        self._jobs: weakref.WeakValueDictionary[str, Job[Any]] = weakref.WeakValueDictionary()
        self._waiting: deque[list[bytes]] = deque()
        self._room = threading.Semaphore(_WAITING_MAX)
        self._waker = Waker()
        self._sleeps = True
        self._connected = threading.Event()
        # It is known whether there is a broker that lets us in.
        self._known = threading.Event()
        self._refusal: AuthFailed | None = None
        self._closing: float | None = None
        self._failure: MqcoreError | None = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqcore-jobs-client", daemon=True)
        self._thread.start()
        self._began.wait()
        if self._failure is not None:
            raise self._failure
        self._at_exit = atexit.register(self.close)

    @property
    def is_of_this_process(self) -> bool:
        """Whether its thread exists here: a fork has none."""
        return self._process == os.getpid()

    @property
    def is_connected(self) -> bool:
        """Whether the broker is there."""
        return self._connected.is_set()

    def send(self, frames: list[bytes], job: Job[Any] | None = None) -> None:
        """Let the thread send a message; its results go to `job`. Raises `ConnectFailed`, `AuthFailed`, `Busy`,
        `Draining`."""
        if not self._connected.is_set():
            self._wait_for_broker()
        if not self._room.acquire(blocking=False) and not self._room.acquire(timeout=self._timeout):
            raise Busy(f"the broker at {self._endpoint} has taken no job within {self._timeout:g} s", 503)
        if self._closing is not None:
            raise Draining("these jobs are closed")
        if job is not None:
            self._jobs[job.id] = job
        self._waiting.append(frames)
        if self._sleeps:
            self._waker.wake()

    def _wait_for_broker(self) -> None:
        self._known.wait(self._timeout)
        if (refusal := self._refusal) is not None:
            raise AuthFailed(*refusal.args)
        if not self._connected.is_set():
            raise ConnectFailed(
                f"no broker of jobs answers at {self._endpoint} within {self._timeout:g} s; does "
                "`mqcore serve` listen on emqp:// there?"
            )

    def offer(self, frames: list[bytes]) -> None:
        """Let the thread send a message if it can at once; else it is dropped."""
        if self._connected.is_set() and self._closing is None and self._room.acquire(blocking=False):
            self._waiting.append(frames)
            if self._sleeps:
                self._waker.wake()

    async def asend(self, frames: list[bytes], job: Job[Any] | None = None) -> None:
        """Do as `send`, without holding up the event loop."""
        if self._connected.is_set() and len(self._waiting) < _WAITING_MAX // 2:
            self.send(frames, job)
        else:
            await asyncio.to_thread(self.send, frames, job)

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, for up to `timeout` seconds, and end."""
        atexit.unregister(self.close)
        if not self.is_of_this_process or not self._thread.is_alive():
            return
        self._closing = time.monotonic() + timeout
        self._waker.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            dealer = Dealer(self._endpoint, f"client-{os.getpid()}", token=self._token)
        except MqcoreError as error:
            self._failure = error
            return
        finally:
            self._began.set()
        dealer.also_poll(self._waker.fileno())
        try:
            while not self._is_over():
                self._turn(dealer)
        finally:
            dealer.close(linger=True)
            self._lost("the connection was closed before the result came")
            self._waker.close()

    def _is_over(self) -> bool:
        if self._closing is None:
            return False
        return not self._waiting or time.monotonic() > self._closing

    def _turn(self, dealer: Dealer) -> None:
        pause = 1.0 if self._closing is None else 0.05
        if dealer.is_connected and self._send_waiting(dealer):
            # Whoever appends after this looks sees that the thread sleeps, and wakes it.
            self._sleeps = True
            pause = 0.0 if self._waiting else pause
        ready = dealer.poll(pause)
        self._sleeps = False
        if ready:
            self._waker.clear()
        if dealer.watch():
            self._lost("the connection broke before the result came; whether the job was done is unknown")
        self._note(dealer)
        for frames in dealer.receive(_BATCH):
            self._received(frames)

    def _note(self, dealer: Dealer) -> None:
        """Let those who wait know whether there is a broker that lets us in."""
        refusal = dealer.take_refusal()
        if refusal is not None:
            self._refusal = refusal
            self._lost(str(refusal), AuthFailed)
        if dealer.is_connected:
            if not self._connected.is_set():
                self._refusal = None
                self._connected.set()
        else:
            self._connected.clear()
        if self._connected.is_set() or self._refusal is not None:
            self._known.set()
        else:
            self._known.clear()

    def _send_waiting(self, dealer: Dealer) -> bool:
        """Send what waits; false if there is no room for all of it."""
        sent = 0
        waiting = self._waiting
        while waiting and sent < _BATCH and dealer.send(waiting[0]):
            waiting.popleft()
            sent += 1
        if sent:
            self._room.release(sent)
        return not waiting or sent == _BATCH

    def _received(self, frames: list[bytes]) -> None:
        message = wire.parse(frames)
        if message is None or message.command != wire.REPLY or not message.body:
            return
        # One frame is the id of a job that was handed out; two are a result, and the id of its job.
        job = self._jobs.get(message.body[-1].decode("ascii", "replace"))
        if job is None:
            return
        if len(message.body) == 1:
            job.is_dispatched = True
        else:
            del self._jobs[job.id]
            job.is_dispatched = True
            job.end(message.body[0])

    def _lost(self, why: str, kind: type[MqcoreError] = ConnectionLost) -> None:
        for job in list(self._jobs.values()):
            job.end(kind(f"job {job.id} ({job.name}): {why}"))
        self._jobs.clear()


def ask(endpoint: str, command: bytes, timeout: float, token: str | None = None) -> bytes:
    """Ask an administrative socket one thing. Raises `ConnectFailed` if nothing answers within `timeout` seconds, and
    `AuthFailed`."""
    dealer = Dealer(endpoint, f"admin-{os.getpid()}", token=token)
    deadline = time.monotonic() + timeout
    try:
        dealer.send(wire.message(command))
        while (left := deadline - time.monotonic()) > 0:
            dealer.poll(left)
            dealer.watch()
            for frames in dealer.receive(_BATCH):
                message = wire.parse(frames)
                if message is not None and message.command == wire.REPLY and message.body:
                    return message.body[0]
            if (refusal := dealer.take_refusal()) is not None:
                raise refusal
    finally:
        dealer.close()
    raise ConnectFailed(
        f"nothing answers at {endpoint} within {timeout:g} s; is that the administrative side of a broker?"
    )
