"""Chords: parts are counted in the broker, each once, and the last one starts the body.

For a chord with the group id G, the store has these keys, beside the group's own result: the size (``G.s``), the
counter of parts (``G.c``), their outcomes (``G.j.TASK``), tasks that were added later (``G.t``), and the task that
starts the body (``G.b``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result

if TYPE_CHECKING:
    from mqcore.celery.backend import Backend

__all__ = ["Chords"]

_LOG: Final = logging.getLogger("mqcore.celery")


class Chords:
    """The chords of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def set_size(self, group_id: str, size: int) -> None:
        """Store the number of parts, before the last one is sent."""
        self._put(group_id, ".s", str(size).encode())

    def add(self, group_id: str, task_id: str) -> None:
        """Add a part to a chord that has begun."""
        number = self._count(group_id, ".t", task_id)
        self._put(group_id, f".t.{number}", task_id.encode())

    def part_returned(self, request: Any, state: str, result: object) -> None:
        """Store the outcome of a part; after the last one, start the body."""
        group_id, task_id = request.group, request.id
        if not group_id or not task_id:
            return
        backend = self._backend
        outcome = backend.encode([task_id, state, backend.encode_result(result, state)])
        self._put(group_id, f".j.{task_id}", outcome.encode() if isinstance(outcome, str) else outcome)
        count = self._count(group_id, ".c", task_id)
        size = self._get(group_id, ".s")
        if size is None:
            # Parts are still being sent; or this is a second delivery, after the body was started.
            return
        added = [self._get(group_id, f".t.{number}") for number in range(1, 1 + self._peek(group_id, ".t"))]
        if count < int(size) + len(added):
            return
        # If the worker dies from here on, its task is delivered again, and starts the body then.
        if self._count(group_id, ".b", task_id) == 1:
            self._start_body(request, [each.decode() for each in added if each is not None])

    def _start_body(self, request: Any, added: Sequence[str]) -> None:
        backend, group_id = self._backend, request.group
        body = maybe_signature(request.chord, app=backend.app)
        header = GroupResult.restore(group_id, backend=backend, app=backend.app)
        try:
            if header is None:
                raise ChordError(f"GroupResult {group_id} no longer exists")
            results = self._results(group_id, header, added)
        except Exception as error:
            _LOG.exception("chord %s failed", group_id)
            cause = error if isinstance(error, ChordError) else ChordError(f"Join error: {error!r}")
            backend.chord_error_from_stack(body, cause)
        else:
            try:
                body.delay(results)
            except Exception as error:
                _LOG.exception("the body of chord %s was not sent", group_id)
                backend.chord_error_from_stack(body, ChordError(f"Callback error: {error!r}"))
        parts = [] if header is None else [node.id for node in header.results]
        self._forget(group_id, [*parts, *added], len(added))

    def _results(self, group_id: str, header: GroupResult, added: Sequence[str]) -> list[object]:
        backend = self._backend
        if any(isinstance(node, GroupResult) for node in header.results):
            # Its structure has to be kept. All parts have returned, so this does not wait.
            header.on_ready()
            with allow_join_result():
                results: list[object] = header.join_native(
                    timeout=backend.app.conf.result_chord_join_timeout, propagate=True
                )
            return results
        ids = [*(node.id for node in header.results), *added]
        outcomes = backend.mget([self._key(group_id, f".j.{task_id}") for task_id in ids])
        return [self._result(task_id, outcome) for task_id, outcome in zip(ids, outcomes, strict=True)]

    def _result(self, task_id: str, outcome: bytes | None) -> object:
        if outcome is None:
            raise ChordError(f"the result of part {task_id} has expired; set result_chord_expires")
        _, state, result = self._backend.decode(outcome)
        if state in states.EXCEPTION_STATES:
            result = self._backend.exception_to_python(result)
        if state in states.PROPAGATE_STATES:
            raise ChordError(f"Dependency {task_id} raised {result!r}") from result
        return result

    # --- keys ------------------------------------------------------------------------------------------------------

    def _key(self, group_id: str, suffix: str) -> bytes:
        key: bytes = self._backend.get_key_for_group(group_id, suffix)
        return key

    def _put(self, group_id: str, suffix: str, value: bytes) -> None:
        backend = self._backend
        expires = backend.chord_expires or None
        backend.ensure(backend.store.put, self._key(group_id, suffix), value, expires, False)

    def _get(self, group_id: str, suffix: str) -> bytes | None:
        return self._backend.get(self._key(group_id, suffix))

    def _count(self, group_id: str, suffix: str, event: str) -> int:
        backend = self._backend
        expires = backend.chord_expires or None
        return backend.ensure(backend.store.count, self._key(group_id, suffix), event.encode(), expires)

    def _peek(self, group_id: str, suffix: str) -> int:
        backend = self._backend
        return backend.ensure(backend.store.counted, self._key(group_id, suffix))

    def _forget(self, group_id: str, parts: Sequence[str], added: int) -> None:
        suffixes = [".s", ".t", *(f".j.{task_id}" for task_id in parts), *(f".t.{n}" for n in range(1, 1 + added))]
        for suffix in ["", *suffixes]:
            self._backend.delete(self._key(group_id, suffix))
