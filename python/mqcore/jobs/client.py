"""A client's connection to a job broker: a thread that sends jobs and receives results."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from mqcore.errors import AuthFailed, Busy, ConnectFailed, ConnectionLost, Draining, MqcoreError, RequestTimeout
from mqcore.jobs import wire
from mqcore.jobs.dealer import Dealer, Waker

if TYPE_CHECKING:
    from mqcore.jobs.job import Job

__all__ = ["JobClient", "ask", "unreachable"]

# Jobs that may wait to be sent. `send` blocks while the buffer is full.
_WAITING_JOBS_MAX: Final = 10_000
# Messages received or sent at a time, so that neither direction starves the other.
_BATCH_MESSAGES: Final = 1000


class JobClient:
    """Sends jobs and passes their results to the `Job` objects. Thread-safe."""

    def __init__(self, endpoint: str, timeout: float, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token = token
        self._timeout = timeout
        self._process = os.getpid()
        # Weak references: a result is dropped once the program holds no `Job` that could return it.
        self._jobs: weakref.WeakValueDictionary[str, Job[Any]] = weakref.WeakValueDictionary()
        # Answers to requests, by the ids of the requests.
        self._answers: dict[str, Future[bytes]] = {}
        self._waiting: deque[list[bytes]] = deque()
        self._room = threading.Semaphore(_WAITING_JOBS_MAX)
        self._waker = Waker()
        self._sleeps = True
        self._connected = threading.Event()
        # Set once the connection has been accepted or rejected.
        self._known = threading.Event()
        self._refusal: AuthFailed | None = None
        self.connections = 0
        """Connections so far, including the present one."""
        self._closing: float | None = None
        self._has_ended = False
        """Whether the sending thread sends nothing more."""
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
        """Whether its thread runs in this process; after a fork, the child has no such thread."""
        return self._process == os.getpid()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._connected.is_set()

    def send(self, frames: list[bytes], job: Job[Any] | None = None, *, wait: bool = True) -> None:
        """Pass a message to the sending thread; the result goes to `job`.

        Raises `ConnectFailed` if there is no connection within the timeout, or at once without `wait`, `AuthFailed` for
        rejected credentials, `Busy` if the buffer stays full for the timeout, and `Draining` after `close`.
        """
        if not self._connected.is_set():
            self._wait_for_broker(self._timeout if wait else 0.0)
        if not self._room.acquire(blocking=False) and not self._room.acquire(timeout=self._timeout):
            raise Busy(f"the broker at {self._endpoint} accepted no job within {self._timeout:g} s", 503)
        if self._closing is not None:
            raise Draining("the job client is closed")
        if job is not None:
            self._jobs[job.id] = job
        self._waiting.append(frames)
        if self._has_ended:
            self._refuse_unsent(frames, job)
        if self._sleeps:
            self._waker.wake()

    def _refuse_unsent(self, frames: list[bytes], job: Job[Any] | None) -> None:
        """Raise `Draining` for a message that came after the sending thread had ended, unless it was sent before."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(frames)
            if job is not None:
                self._jobs.pop(job.id, None)
            raise Draining("the job client is closed")

    def _wait_for_broker(self, timeout: float) -> None:
        self._known.wait(timeout)
        if (refusal := self._refusal) is not None:
            raise AuthFailed(*refusal.args)
        if not self._connected.is_set():
            raise ConnectFailed(
                f"no job broker answered at {self._endpoint} within {self._timeout:g} s; "
                "check that `mqcore serve` listens on emqp:// there"
            )

    def offer(self, frames: list[bytes]) -> None:
        """Pass a message to the sending thread if the buffer has room, else drop it."""
        if self._connected.is_set() and self._closing is None and self._room.acquire(blocking=False):
            self._waiting.append(frames)
            if self._sleeps:
                self._waker.wake()

    def expect(self, job: Job[Any], *, wait: bool) -> None:
        """Ask the broker for the result of a job that it keeps. Raises like `send`; without `wait`, nothing."""
        frames = wire.message(b"AWAIT", job.id.encode())
        if wait:
            self.send(frames, job)
        elif self._jobs.get(job.id) is job:
            self.offer(frames)

    def ask(self, command: bytes, *frames: bytes, timeout: float) -> bytes:
        """Send a request that only mqcore's broker knows, and return its answer.

        Raises like `send`, `RequestTimeout` without an answer, and `ConnectionLost` if the connection is lost before.
        """
        request = wire.message(command, *frames)
        answer: Future[bytes] = Future()
        request_id = request[3].decode()
        self._answers[request_id] = answer
        try:
            self.send(request)
            return answer.result(timeout)
        except TimeoutError:
            raise RequestTimeout(
                f"no answer from the broker at {self._endpoint} within {timeout:g} s; this needs mqcore's broker"
            ) from None
        finally:
            self._answers.pop(request_id, None)

    async def asend(self, frames: list[bytes], job: Job[Any] | None = None) -> None:
        """Like `send`, without blocking the event loop."""
        if self._connected.is_set() and len(self._waiting) < _WAITING_JOBS_MAX // 2:
            self.send(frames, job)
        else:
            await asyncio.to_thread(self.send, frames, job)

    def close(self, timeout: float = 5.0) -> None:
        """Send waiting messages for up to `timeout` seconds, then close the connection."""
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
            # Before the jobs are ended: a job that comes later is refused by `send`.
            self._has_ended = True
            self._lost("the connection was closed before the result arrived")
            self._waker.close()

    def _is_over(self) -> bool:
        if self._closing is None:
            return False
        return not self._waiting or time.monotonic() > self._closing

    def _turn(self, dealer: Dealer) -> None:
        pause = 1.0 if self._closing is None else 0.05
        if dealer.is_connected and self._send_waiting(dealer):
            # A sender that appends after this check sees `_sleeps` and wakes the thread.
            self._sleeps = True
            pause = 0.0 if self._waiting else pause
        ready = dealer.poll(pause)
        self._sleeps = False
        if ready:
            self._waker.clear()
        if dealer.watch():
            self._lost("the connection was lost before the result arrived; it is unknown whether the job ran")
        self._update_state(dealer)
        for frames in dealer.receive(_BATCH_MESSAGES):
            self._received(frames)

    def _update_state(self, dealer: Dealer) -> None:
        """Signal threads that wait for the connection whether the broker has accepted it."""
        refusal = dealer.take_refusal()
        if refusal is not None:
            self._refusal = refusal
            self._lost(str(refusal), AuthFailed)
        if dealer.is_connected:
            if not self._connected.is_set():
                self._refusal = None
                self.connections += 1
                self._connected.set()
        else:
            self._connected.clear()
        if self._connected.is_set() or self._refusal is not None:
            self._known.set()
        else:
            self._known.clear()

    def _send_waiting(self, dealer: Dealer) -> bool:
        """Send waiting messages; false if the connection has no room for all of them."""
        sent = 0
        waiting = self._waiting
        while waiting and sent < _BATCH_MESSAGES and dealer.send(waiting[0]):
            waiting.popleft()
            sent += 1
        if sent:
            self._room.release(sent)
        return not waiting or sent == _BATCH_MESSAGES

    def _received(self, frames: list[bytes]) -> None:
        message = wire.parse(frames)
        if message is None or message.command != wire.REPLY or not message.body:
            return
        # One frame: the id of a job that the broker dispatched. Two frames: a result and the id of its job.
        of = message.body[-1].decode("ascii", "replace")
        job = self._jobs.get(of)
        if job is None:
            if len(message.body) > 1 and (answer := self._answers.pop(of, None)) is not None:
                answer.set_result(message.body[0])
            return
        if len(message.body) == 1:
            job.is_dispatched = True
        else:
            self._jobs.pop(of, None)
            job.is_dispatched = True
            job.end(message.body[0])

    def _lost(self, why: str, kind: type[MqcoreError] = ConnectionLost) -> None:
        for job in list(self._jobs.values()):
            job.end(kind(f"job {job.id} ({job.name}): {why}"))
        self._jobs.clear()
        while self._answers:
            _, answer = self._answers.popitem()
            answer.set_exception(kind(why))


def unreachable(endpoint: str, why: str) -> ConnectFailed:
    """The error for an endpoint to which no connection is possible."""
    return ConnectFailed(
        f"cannot connect to the job broker at {endpoint}: {why}; start `mqcore serve` with an emqp:// listener there, "
        "or correct the URL"
    )


def ask(endpoint: str, command: bytes, timeout: float, token: str | None = None) -> bytes:
    """Send a command to a broker's admin socket and return the answer.

    Raises `ConnectFailed` if nothing accepts the connection, or no answer arrives within `timeout` seconds, and
    `AuthFailed` for rejected credentials.
    """
    dealer = Dealer(endpoint, f"admin-{os.getpid()}", token=token)
    deadline = time.monotonic() + timeout
    try:
        dealer.send(wire.message(command))
        while (left := deadline - time.monotonic()) > 0:
            dealer.poll(left)
            for frames in dealer.receive(_BATCH_MESSAGES):
                message = wire.parse(frames)
                if message is not None and message.command == wire.REPLY and message.body:
                    return message.body[0]
            if (refusal := dealer.take_refusal()) is not None:
                raise refusal
            if dealer.unreachable is not None:
                raise unreachable(endpoint, dealer.unreachable)
    finally:
        dealer.close()
    raise ConnectFailed(
        f"no answer at {endpoint} within {timeout:g} s; check that it is the admin socket of a job broker"
    )
