"""The result backend: keeps results in the broker's Throttr store until they expire, and notifies callers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import unquote, urlsplit

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import ImproperlyConfigured
from kombu.utils.functional import retry_over_time

from mqcore import errors
from mqcore.celery.chords import Chords
from mqcore.celery.endpoint import Endpoint, tls_context
from mqcore.celery.store import Store, Subscription

__all__ = ["DEFAULT_PORT", "Backend"]

DEFAULT_PORT: Final = 9000
"""The port of Throttr listeners."""

_RETRIES: Final[Mapping[str, float]] = {
    "max_retries": 20,
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 1,
}
_QUERY_OPTIONS: Final = frozenset(["request_timeout", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"])

_T = TypeVar("_T")


def _endpoint(url: str, settings: Mapping[str, Any]) -> Endpoint:
    """Read a URL. Raises `ImproperlyConfigured`."""
    parts = urlsplit(url)
    query = dict(pair.partition("=")[::2] for pair in parts.query.split("&") if pair)
    if unknown := sorted(set(query) - _QUERY_OPTIONS):
        raise ImproperlyConfigured(
            f"unknown options {', '.join(unknown)} in result_backend; use {', '.join(sorted(_QUERY_OPTIONS))}"
        )
    try:
        secure = parts.scheme == "mqcores"
        given = {name: unquote(value) for name, value in query.items() if name.startswith("ssl_")}
        tls, server_name = tls_context({**settings.get("ssl", {}), **given} or True) if secure else (None, None)
        return Endpoint(
            parts.hostname or "localhost",
            parts.port or DEFAULT_PORT,
            tls=tls,
            server_name=server_name,
            request_timeout=float(query.get("request_timeout", 15.0)),
        )
    except ValueError as error:
        raise ImproperlyConfigured(f"result_backend: {error}") from error


class ResultConsumer(BaseResultConsumer):
    """Waits for results that others store.

    A result that is there already is read once. Only for the others, the consumer subscribes to the channel of the
    result's key, and reads them once more, because they may have been stored in between.
    """

    _connection_errors = (errors.TransportError,)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._subscription: Subscription | None = None
        self._keys: set[bytes] = set()
        self._subscribed: set[bytes] = set()
        # Filled without the lock: the garbage collector may call `cancel_for` anywhere.
        self._dropped: deque[bytes] = deque()
        self._is_waiting = False

    def on_after_fork(self) -> None:
        """Start with a connection of this process."""
        self._reset()

    def start(self, initial_task_id: str, **_options: object) -> None:
        """Take the first result into account."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        """Listen no longer."""
        with self._changed:
            self._disconnect()
            self._keys.clear()

    def consume_from(self, task_id: str) -> None:
        """Take a result into account."""
        with self._changed:
            self._drop()
            self._keys.add(self.backend.get_key_for_task(task_id))
            if self._is_waiting:
                # The thread that waits must get this one too.
                self._subscribe()

    def cancel_for(self, task_id: str) -> None:
        """Take a result into account no longer."""
        self._dropped.append(self.backend.get_key_for_task(task_id))

    def on_wait_for_pending(self, result: Any, **_options: object) -> None:
        """Read the results that are there already."""
        nodes = getattr(result, "results", None) or [result]
        self._read([self.backend.get_key_for_task(node.id) for node in nodes])

    def on_state_change(self, meta: Mapping[str, Any], message: object) -> None:
        """Hand on a result."""
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for results that come."""
        limit = 1.0 if timeout is None else timeout
        with self._changed:
            self._drop()
            if self._subscribe():
                return
            if self._is_waiting:
                self._changed.wait(limit)
                return
            self._is_waiting, subscription = True, self._subscription
        payloads: list[bytes | None] = []
        try:
            # Without the lock, so that other threads can subscribe.
            if subscription is not None and subscription.is_readable(limit):
                with self._changed:
                    payloads = subscription.take()
        except errors.TransportError:
            with self._changed:
                self._disconnect()
        finally:
            with self._changed:
                self._is_waiting = False
                self._changed.notify_all()
        if None in payloads:
            self._read(list(self._subscribed))
        for payload in payloads:
            if payload is not None:
                self.on_state_change(self.backend.decode_result(payload), None)

    def _subscribe(self) -> bool:
        """Subscribe to what is new, and return whether a result was there meanwhile."""
        new = self._keys - self._subscribed
        if not new and self._subscription is not None:
            return False
        self.backend.ensure(self._subscribe_once)
        return self._read(list(new))

    def _subscribe_once(self) -> None:
        try:
            if self._subscription is None:
                self._subscription = Subscription(self.backend.endpoint)
            new = self._keys - self._subscribed
            self._subscription.change(new, ())
            self._subscribed |= new
        except errors.TransportError:
            self._disconnect()
            raise

    def _drop(self) -> None:
        dropped = set()
        while self._dropped:
            dropped.add(self._dropped.popleft())
        self._keys -= dropped
        known = dropped & self._subscribed
        self._subscribed -= known
        if known and self._subscription is not None:
            try:
                self._subscription.change((), known)
            except errors.TransportError:
                self._disconnect()

    def _disconnect(self) -> None:
        subscription, self._subscription = self._subscription, None
        self._subscribed.clear()
        if subscription is not None:
            subscription.close()

    def _read(self, keys: list[bytes]) -> bool:
        values = [value for value in self.backend.mget(keys) if value is not None]
        for value in values:
            meta = self.backend.decode_result(value)
            self.on_state_change(meta, None)
            if meta["status"] in states.READY_STATES:
                # A result that nothing waited for any more would stay in this buffer.
                self._forget_buffered(meta["task_id"])
        return bool(values)

    def _forget_buffered(self, task_id: str) -> None:
        buffered = self.backend._pending_messages
        messages = buffered.pop(task_id, None)
        if messages is not None:
            buffered.total -= len(messages)


class Backend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Results, group results and chords in the Throttr store of a broker: ``mqcore://host:9000``."""

    ResultConsumer = ResultConsumer

    supports_autoexpire = True
    supports_native_join = True
    # Values are bytes.
    supports_result_compression = True

    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (errors.TransportError,)

    def __init__(self, url: str | None = None, **options: Any) -> None:
        """`url` is the setting ``result_backend``. Raises `ImproperlyConfigured` if it is wrong."""
        options.pop("host", None)
        super().__init__(expires_type=int, url=url, **options)
        settings = self.app.conf.get("result_backend_transport_options", {}) or {}
        self.endpoint = _endpoint(url or "mqcore://", settings)
        self.store = Store(self.endpoint)
        self._retries = {**_RETRIES, **(settings.get("retry_policy") or {})}
        self.chords = Chords(self)
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL; it has no password."""
        return str(self.url or f"mqcore://{self.endpoint}")

    def ensure(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function again while the broker is away, up to ``retry_policy`` of
        ``result_backend_transport_options``.
        """
        result: _T = retry_over_time(function, self.connection_errors, arguments, {}, **self._retries)
        return result

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether Celery may try again if ``result_backend_always_retry`` is set."""
        return isinstance(exc, errors.TransportError)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self.ensure(self.store.get, key)

    def mget(self, keys: Iterable[bytes]) -> Sequence[bytes | None]:
        """Return the values of several keys."""
        return self.ensure(self.store.get_many, list(keys))

    def set(self, key: bytes, value: bytes | str) -> None:
        """Store a value for ``result_expires``, and tell who waits for it."""
        data = value.encode() if isinstance(value, str) else value
        self.ensure(self.store.put, key, data, self.expires or None)

    def delete(self, key: bytes) -> None:
        """Remove a value."""
        self.ensure(self.store.remove, key)

    def expire(self, key: bytes, value: float) -> None:
        """Replace the time to live of a value; 0: it does not expire."""
        self.ensure(self.store.keep, key, value or None)

    # --- chords ----------------------------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: Sequence[Any], body: Any, **options: Any) -> None:
        """Store the structure of a chord's header."""
        self.ensure_chords_allowed()
        self.app.GroupResult(*header_result_args).save(backend=self)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Store the number of parts of a chord."""
        self.chords.set_size(group_id, chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Add a part to a chord that has begun."""
        self.chords.add(chord_id, result.id)

    def on_chord_part_return(self, request: Any, state: str, result: object, **options: Any) -> None:
        """Count a part of a chord, and start the body after the last one."""
        self.chords.part_returned(request, state, result)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})
