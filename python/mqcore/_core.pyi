"""The Rust core. Import these names from `mqcore`, not from here.

Longer than 600 lines because an extension module has one stub.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer

from mqcore.broker import QueueStats
from mqcore.client.arguments import Confirmation, Outcome
from mqcore.client.models import (
    ChannelInformation,
    ClientCounters,
    ClientInformation,
    Event,
    NodeInformation,
    QueueInformation,
    RouterInformation,
    RouterTest,
    State,
)
from mqcore.client.options import ClientOptions
from mqcore.config import Binding, BrokerConfig, ChannelOptions, QueueOptions, QueueStatus, RouterOptions
from mqcore.handlers import PutBack, SendAck
from mqcore.tls import TLSConfig

__all__ = [
    "Acknowledgement",
    "AsyncClient",
    "AsyncThrottrClient",
    "AuthorityReply",
    "AuthorityStore",
    "BackupArchive",
    "BlockingClient",
    "BlockingThrottrClient",
    "Broker",
    "ChannelView",
    "ClientView",
    "ClusterMember",
    "Consumer",
    "Decision",
    "Decisions",
    "Delivery",
    "EventStream",
    "ExtensionFrames",
    "ExtensionReply",
    "Frame",
    "Headers",
    "History",
    "HistoryRows",
    "Incoming",
    "JournalHistory",
    "JournalMessages",
    "JournalSelection",
    "LimitRule",
    "LimitStore",
    "Membership",
    "Message",
    "MessageBatch",
    "MessageColumn",
    "NodeFrame",
    "NodeView",
    "ObjectFiles",
    "PendingAnswers",
    "PullStream",
    "Pulled",
    "QueueView",
    "Received",
    "ReceivedBatch",
    "States",
    "Verdict",
    "ZmtpCodec",
    "ZstdReader",
    "ZstdWriter",
    "__version__",
    "cluster_force_new",
    "cluster_promote",
    "cluster_status",
    "cron_mistake",
    "end_delivering",
    "hash_password",
    "history_columns",
    "join_leaked_threads",
    "journal_accept_loss",
    "journal_compact",
    "journal_inspect",
    "lock_descriptors",
    "object_archive_bytes",
    "object_archive_manifest",
    "policies",
    "policy_decision",
    "time_zones",
    "tmqp_decode",
    "tmqp_encode",
]

__version__: str

_D = TypeVar("_D")

@final
class Message:
    """A published message: frozen, and shared with the broker, not copied."""

    @property
    def id(self) -> str:
        """Its id; empty if it has none."""
    @property
    def source(self) -> str | None:
        """The id of the client that produced it, if known."""
    @property
    def headers(self) -> Headers:
        """Its headers, parsed on access."""
    @property
    def body(self) -> bytes:
        """Its body. Copied once; ``memoryview(message)`` copies nothing."""
    @property
    def high_priority(self) -> bool:
        """Whether it goes before all messages that are not."""
    @property
    def pending_acknowledge(self) -> bool:
        """Whether its producer waits for an acknowledgement."""
    @property
    def pending_response(self) -> bool:
        """Whether its producer waits for a response."""
    @property
    def content_type(self) -> int:
        """The queue's id, or what sender and receiver agreed on."""
    @property
    def saved(self) -> bool:
        """Whether the broker has saved it. Only in handlers and `TestBroker`."""
    @property
    def attempt(self) -> int:
        """How often it was delivered, including the delivery that a handler is asked about."""
    @property
    def received_at(self) -> float | None:
        """When the first queue of the broker took it, in Unix time; ``None`` if none has yet."""
    @property
    def hops(self) -> int:
        """How many more hops it may take."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Headers:
    """Headers of a message. Keys compare without regard to ASCII case; a key may repeat."""

    def __getitem__(self, key: str, /) -> str: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def get(self, key: str) -> str | None: ...
    @overload
    def get(self, key: str, default: _D) -> str | _D: ...
    def get_all(self, key: str) -> list[str]:
        """Every value of a key, in their order."""
    def keys(self) -> list[str]:
        """Return the keys as they were first written, each once."""
    def values(self) -> list[str]:
        """Return the first value of each key."""
    def items(self) -> list[tuple[str, str]]:
        """Return each key with its first value."""

@final
class Decision:
    """The answer of a delivery handler. Immutable, compared by value."""

    def __new__(
        cls,
        allow: bool = True,
        save: bool = False,
        *,
        put_back: PutBack | None = None,
        acknowledge: SendAck | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Decision: ...
    @property
    def allow(self) -> bool:
        """Continue with the next step; false ends the processing of the message."""
    @property
    def save(self) -> bool:
        """Save the message if it is not saved yet."""
    @property
    def put_back(self) -> PutBack:
        """Return it to its queue."""
    @property
    def acknowledge(self) -> SendAck:
        """Tell its producer."""
    @property
    def headers(self) -> dict[str, str]:
        """Headers that the broker adds to the message, in `DeliveryHandler.received_from_producer` and
        `DeliveryHandler.begin_send`. They take precedence over the producer's."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Decisions:
    """One decision for each message of a `MessageBatch`, as an index into a few different ones. Immutable.

    ``index`` has one byte for each message: a buffer such as a NumPy array of ``bool`` or ``uint8``, or a sequence of
    numbers. The number is the place of the decision in ``choices``. Raises `ValueError` if there is no such place, and
    `TypeError` for a buffer with larger items.

    >>> keep, drop = mqcore.Decision(), mqcore.Decision(allow=False)
    >>> len(mqcore.Decisions((keep, drop), [0, 1, 0]))
    3
    """

    def __new__(cls, choices: Sequence[Decision], index: Buffer | Sequence[int]) -> Decisions: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Decision: ...

@final
class MessageBatch:
    """Messages of one queue that arrived together, for `DeliveryHandler.received_many`. Immutable.

    ``batch[0]`` and iteration give each `Message`. The numbers are memory views, which NumPy reads without a copy, and
    ``pyarrow.record_batch(batch)`` has the columns ``id``, ``source``, ``body``, ``size``, ``priority`` and
    ``received_at``. Bodies of more than 12 bytes are not copied.
    """

    @property
    def sizes(self) -> memoryview:
        """The size of each body in bytes; format ``Q``."""
    @property
    def priorities(self) -> memoryview:
        """The priority of each message, 0 to 255; format ``B``."""
    @property
    def received_at(self) -> memoryview:
        """When the first queue of the broker took each message, in Unix seconds, 0 if none has yet; format ``d``."""
    @property
    def bodies(self) -> MessageColumn:
        """The bodies; ``binary_view``."""
    @property
    def ids(self) -> MessageColumn:
        """The ids; ``string_view``."""
    @property
    def sources(self) -> MessageColumn:
        """The ids of the producing clients, null where unknown; ``string_view``."""
    def header(self, key: str) -> MessageColumn:
        """Return the first value of a header of each message, null where it is missing; ``string_view``."""
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the columns for the C data interface of Arrow."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Message: ...
    def __iter__(self) -> Iterator[Message]: ...

@final
class MessageColumn:
    """A column of a `MessageBatch`: ``pyarrow.array(column)`` and ``polars.Series(column)`` read it."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the values for the C data interface of Arrow."""
    def __len__(self) -> int: ...

@final
class QueueView:
    """A queue at the moment of the question."""

    @property
    def channel(self) -> str:
        """The channel's name."""
    @property
    def id(self) -> int:
        """The queue's id within its channel."""
    @property
    def address(self) -> str:
        """Both: ``orders/1001``."""
    @property
    def status(self) -> QueueStatus:
        """How it delivers messages."""
    @property
    def stats(self) -> QueueStats:
        """Its options, counts and consumers.

        In an event, as they were at that moment. Otherwise the current ones, which the broker is asked for at each
        access, in some microseconds. Raises `mqcore.errors.NotFound` if the queue was removed.
        """

@final
class ChannelView:
    """A channel at the moment of an event."""

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def clients(self) -> int:
        """Clients that joined it."""
    @property
    def client_limit(self) -> int:
        """Maximum number of such clients; 0: no limit."""
    @property
    def queues(self) -> tuple[int, ...]:
        """Ids of its queues, ascending."""

@final
class NodeView:
    """Another broker at the moment of an event."""

    @property
    def id(self) -> str:
        """Its id; empty if it sends none."""
    @property
    def name(self) -> str:
        """Its name; the address for an upstream broker that sends none."""
    @property
    def host(self) -> str:
        """Its host; empty if unknown."""
    @property
    def downstream(self) -> bool:
        """Whether it connected to this broker, and forwards to it."""

@final
class ClientView:
    """A client that is, or was, connected."""

    @property
    def id(self) -> str:
        """Unique among connected clients; empty if unknown."""
    @property
    def name(self) -> str | None:
        """Not unique."""
    @property
    def kind(self) -> str | None:
        """The kind of program."""
    @property
    def protocol(self) -> str | None:
        """Its protocol: ``tmqp``, ``mqks``, ... ``None`` if it is connected to another node."""
    @property
    def properties(self) -> Mapping[str, str]:
        """Connection data: what it sent in its handshake beside its id, name, type and credentials, up to 4,096 bytes.
        Keys are spelled as sent."""
    @property
    def path(self) -> str | None:
        """The path of its handshake, in TMQP."""
    @property
    def method(self) -> str | None:
        """The method of its handshake, in TMQP."""
    @property
    def admin(self) -> bool:
        """Whether it may administer."""

@final
class NodeFrame:
    """A frame that a node forwards, the argument of `NodeFilter.decide`."""

    @property
    def kind(self) -> Literal["queue", "router", "direct", "acknowledge", "response"]:
        """The kind of frame."""
    @property
    def channel(self) -> str | None:
        """The channel of a queue message, or of its acknowledgement."""
    @property
    def queue(self) -> int | None:
        """The id of its queue."""
    @property
    def topic(self) -> str | None:
        """The topic that a message is published to; its kind is ``queue``."""
    @property
    def router(self) -> str | None:
        """The router of a router message."""
    @property
    def to(self) -> str | None:
        """To whom something goes from client to client: an id, ``@name:NAME`` or ``@type:TYPE``."""
    @property
    def message(self) -> Message:
        """The message; of an acknowledgement its id, source and headers."""
    @property
    def producer(self) -> ClientView:
        """Its producer. An upstream broker knows only its id."""
    @property
    def node(self) -> str | None:
        """The name of the node that passes it on; ``None`` on that node itself."""

@final
class Delivery:
    """One attempt to hand one message to one consumer."""

    @property
    def message(self) -> Message:
        """What."""
    @property
    def consumer(self) -> ClientView:
        """To whom."""
    @property
    def attempt(self) -> int:
        """Which attempt for this message it is, from 1."""

@final
class Acknowledgement:
    """A consumer's acknowledgement of a delivery."""

    @property
    def message_id(self) -> str:
        """The acknowledged message's id."""
    @property
    def positive(self) -> bool:
        """Whether the consumer took it."""
    @property
    def reason(self) -> str | None:
        """Why it did not."""

@final
class PendingAnswers:
    """Answers of a handler that have to be awaited. For `mqcore.handlers` alone."""

    def __len__(self) -> int: ...
    def awaitable(self, index: int) -> Awaitable[object]: ...
    def method(self, index: int) -> str: ...
    def decide(self, index: int, result: object) -> bool: ...
    def recover(self, index: int, result: object) -> bool: ...
    def thrown(self, index: int, exception: Exception) -> bool | Awaitable[object]: ...
    def fail(self, index: int) -> bool: ...
    def flush(self) -> None: ...
    def abandon(self) -> None: ...

@final
class AuthorityReply:
    """The way back for one answer of an authority."""

    @property
    def method(self) -> str: ...
    def settle(self, result: object) -> None: ...
    def fail(self) -> None: ...

@final
class ExtensionReply:
    """The way back for one answer of an extension's handler."""

    @property
    def name(self) -> str: ...
    def settle(self, result: object) -> None: ...
    def raised(self, exception: BaseException) -> None: ...
    def fail(self) -> None: ...

@final
class AuthorityStore:
    """The file of users and tokens of a broker, stopped or running."""

    def __new__(cls, path: str | os.PathLike[str]) -> AuthorityStore: ...
    @staticmethod
    def of_data_dir(directory: str | os.PathLike[str]) -> AuthorityStore: ...
    @property
    def path(self) -> Path: ...
    def show(self) -> str: ...
    def add_user(self, user: str, password: str | None = None) -> None: ...
    def set_password(self, name: str, password: str) -> None: ...
    def remove_user(self, name: str) -> None: ...
    def add_token(self, token: str) -> tuple[str, str]: ...
    def remove_token(self, id: str) -> None: ...  # noqa: A002

def hash_password(password: str) -> str:
    """Return the hash of a password, as configurations hold it."""

@final
class Broker:
    """The core of `mqcore.Broker`."""

    def __new__(cls, config: BrokerConfig, *, manual_clock: bool = False) -> Broker: ...
    def start(self) -> None: ...
    def stop(self, grace: float) -> list[str]: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def listeners(self) -> list[str]: ...
    @property
    def admin_url(self) -> str | None: ...
    def set_handler(
        self,
        key: str,
        name: str,
        methods: list[tuple[str, Callable[..., object]]],
        policy: str,
        timeout: float,
        fallback: Decision,
        submit: Callable[[PendingAnswers], None],
    ) -> None: ...
    def set_authority(
        self,
        authenticate: Callable[..., object] | None,
        authorize: Callable[..., object] | None,
        timeout: float,
        cache: float,
        submit: Callable[[list[tuple[Awaitable[object], AuthorityReply]]], None],
    ) -> None: ...
    def set_extension(
        self,
        name: str,
        received: Callable[..., object],
        timeout: float,
        submit: Callable[[list[tuple[Awaitable[object], ExtensionReply]]], None],
    ) -> None: ...
    def reload_authority(self) -> None: ...
    def set_router(self, options: RouterOptions) -> None: ...
    def remove_router(self, name: str) -> None: ...
    def declare(self, kind: str, name: str, options: object) -> bool: ...
    def certificates(self) -> list[dict[str, Any]]: ...
    def reload_tls(self) -> None: ...
    def backup(self) -> BackupArchive: ...
    def take_spans(self, limit: int) -> tuple[list[dict[str, Any]], int]: ...
    def metrics(self) -> str | None: ...
    def failures(self, limit: int) -> list[dict[str, Any]]: ...
    def schedules(self, limit: int) -> tuple[int, list[dict[str, Any]]]: ...
    def end_schedule(self, schedule_id: str) -> None: ...
    def survey(self) -> dict[str, Any]: ...
    def waiting(self, queue: str, limit: int) -> list[tuple[Message, int, int, bool]] | None: ...
    def send_custom(self, to: str, body: bytes, content_type: int, headers: list[tuple[str, str]]) -> int: ...
    def disconnect(self, to: str) -> int: ...
    def advance(self, seconds: float) -> None: ...
    def settle(self, timeout: float) -> None: ...

@final
class Frame:
    """One TMQP/2.0 frame, its parts as bytes."""

    def __new__(
        cls,
        kind: int,
        *,
        id: bytes = b"",  # noqa: A002
        source: bytes = b"",
        target: bytes = b"",
        headers: bytes = b"",
        payload: bytes = b"",
        content_type: int = 0,
        first_acquirer: bool = False,
        high_priority: bool = False,
        pending_response: bool = False,
        pending_acknowledge: bool = False,
        hops: int = 16,
    ) -> Frame: ...
    @property
    def kind(self) -> int:
        """The message type."""
    @property
    def id(self) -> bytes:
        """Message id."""
    @property
    def source(self) -> bytes:
        """Its sender."""
    @property
    def target(self) -> bytes:
        """Channel, client, router or event."""
    @property
    def headers(self) -> bytes:
        """Header text as it stands."""
    @property
    def header_pairs(self) -> list[tuple[bytes, bytes]]:
        """Keys and values of the header text, in their order."""
    @property
    def payload(self) -> bytes:
        """The body."""
    @property
    def content_type(self) -> int:
        """Queue id, operation or status code."""
    @property
    def first_acquirer(self) -> bool:
        """The flag of this name."""
    @property
    def high_priority(self) -> bool:
        """The flag of this name."""
    @property
    def pending_response(self) -> bool:
        """The flag of this name."""
    @property
    def pending_acknowledge(self) -> bool:
        """The flag of this name."""
    @property
    def hops(self) -> int:
        """Remaining hops, as on the wire."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ZmtpCodec:
    """Decoder of the messages and commands after a ZMTP 3.0 greeting, and encoders of both."""

    def __new__(cls) -> ZmtpCodec: ...
    def feed(self, data: bytes) -> tuple[list[list[bytes]], list[bytes]]:
        """Decode more bytes. Return the messages and the bodies of commands that are now complete.

        Raises `BadFrame`, and `TooLarge` for a message over 64 MiB or 64 frames, or a command over 64 KiB.
        """
    @staticmethod
    def greeting() -> bytes: ...
    @staticmethod
    def has_greeting(data: bytes) -> bool:
        """Whether `data` contains the whole greeting. Raises `BadFrame` for another protocol or mechanism."""
    @staticmethod
    def message(frames: Sequence[bytes]) -> bytes: ...
    @staticmethod
    def ready(kind: bytes, identity: bytes, token: bytes) -> bytes: ...
    @staticmethod
    def pong(context: bytes) -> bytes: ...
    @staticmethod
    def command(body: bytes) -> tuple[str, bytes]:
        """Name and argument of READY (none), ERROR (reason) or PING (context); empty for others. Raises `BadFrame`."""

def tmqp_decode(
    data: bytes, *, frame_bytes_max: int | None = None, header_bytes_max: int | None = None
) -> tuple[Frame | None, int]: ...
def tmqp_encode(frame: Frame) -> bytes: ...
def policy_decision(policy: str, step: str, *, positive: bool = True) -> Decision: ...
def policies() -> list[str]: ...
def cron_mistake(expression: str, zone: str) -> str | None:
    """Why a broker would reject a schedule with this cron expression and zone; an empty zone is UTC."""

def time_zones() -> list[str]:
    """The names of all time zones that a broker knows."""

# journal

@final
class BackupArchive:
    """A tar archive that is made while it is read."""

    @staticmethod
    def of_stopped(path: str) -> BackupArchive: ...
    @property
    def file_bytes(self) -> int:
        """Total bytes of its files."""
    def read(self, size: int) -> bytes: ...
    def close(self) -> None:
        """Let the broker remove files again."""

@final
class ObjectFiles:
    """The objects below a URL, such as ``s3://bucket/backups``."""

    def __new__(cls, url: str) -> ObjectFiles: ...
    def send(self, name: str, path: str, progress: Callable[[int, int], object]) -> int: ...
    def receive(self, name: str, path: str, progress: Callable[[int, int], object]) -> int: ...
    def names(self) -> list[str]: ...
    def restore_points(self) -> list[int]: ...
    def restore_point(self, number: int) -> tuple[int, int, int]:
        """Return the number, the moment in Unix milliseconds, and the bytes of a restore point."""
    def find_restore_point(self, numbers: list[int], time_ms: int) -> tuple[int, int, int] | None: ...
    def receive_restore_point(self, number: int, directory: str, progress: Callable[[int, int], object]) -> None: ...
    def delete(self, name: str) -> None: ...

@final
class ZstdWriter:
    """Writes a compressed file."""

    def __new__(cls, path: str) -> ZstdWriter: ...
    def write(self, data: bytes) -> None: ...
    def finish(self) -> None:
        """End the file and make it durable."""

@final
class ZstdReader:
    """Reads a compressed file."""

    def __new__(cls, path: str) -> ZstdReader: ...
    def read(self, size: int) -> bytes: ...

def journal_accept_loss(
    path: str, shard: int | None, progress: Callable[[int, int, int], object]
) -> list[tuple[str, int, str, str]]: ...
def lock_descriptors() -> list[int]: ...

@final
class ClusterMember:
    def __new__(
        cls, config: BrokerConfig, secret: bytes, restart: list[str], environment: dict[str, str]
    ) -> ClusterMember: ...
    def status(self) -> str: ...
    def wait(self, seen: str, timeout: float) -> str: ...
    def lead(self, broker: Broker) -> bool: ...
    def stop_broker(self) -> None: ...
    def resign(self, timeout: float) -> None: ...

def cluster_force_new(data_dir: str, name: str, node: int, changes: bool) -> tuple[int, int, int, bool]: ...
def cluster_promote(
    address: str, name: str, secret: bytes, tls: tuple[str, str, str] | None, node: int
) -> str | None: ...
def cluster_status(address: str, name: str, secret: bytes, tls: tuple[str, str, str] | None) -> str: ...
def journal_compact(
    path: str, drop_quarantined: bool, progress: Callable[[int, int, int], object]
) -> list[tuple[int, int, int, int, int, list[str], int, int, str | None]]: ...
def journal_inspect(path: str, progress: Callable[[int, int, int], object], thorough: bool) -> dict[str, Any]: ...

@final
class JournalHistory:
    """Steps of messages' lives, of one queue or of all."""

    def __new__(cls, path: str, queue: str | None, progress: Callable[[int, int, int], object]) -> JournalHistory: ...
    @property
    def damaged(self) -> bool:
        """Whether steps may be missing here."""
    @property
    def blocks(self) -> int:
        """Blocks of steps in the journals."""
    def write(self, path: str, table_format: str, progress: Callable[[int], object]) -> tuple[int, bool]: ...

@final
class JournalMessages:
    """Saved messages of one queue: its address, the message, attempts, and when it was received, in Unix ms."""

    def __new__(cls, path: str, queue: str, progress: Callable[[int, int, int], object]) -> JournalMessages: ...
    @property
    def damaged(self) -> bool:
        """Whether messages may be missing here."""
    @property
    def count(self) -> int:
        """How many there were at first."""
    def write(self, path: str, table_format: str, progress: Callable[[int], object]) -> int: ...
    def __iter__(self) -> JournalMessages: ...
    def __next__(self) -> tuple[str, Message, int, int]: ...

@final
class JournalSelection:
    """Saved messages of some queues: shard, number, queue, message, and when it was received, in Unix ms."""

    def __new__(
        cls, path: str, queues: str, since_ms: int, until_ms: int, progress: Callable[[int, int, int], object]
    ) -> JournalSelection: ...
    @property
    def damaged(self) -> bool:
        """Whether messages may be missing here."""
    @property
    def count(self) -> int:
        """How many there were at first."""
    @property
    def fingerprint(self) -> int:
        """The same for the same messages in the same order."""
    @property
    def queues(self) -> list[tuple[str, int, int]]:
        """Their queues, each with its number of messages and the bytes of their bodies."""
    def skip(self, count: int) -> None:
        """Skip the next ones."""
    def __iter__(self) -> JournalSelection: ...
    def __next__(self) -> tuple[int, int, str, Message, int]: ...

# history

_Ends: TypeAlias = tuple[int, str, int, int]
_Piece: TypeAlias = tuple[int, str, int, int, list[int], int, int, tuple[str | None, str | None] | None]
_Store: TypeAlias = tuple[list[str], list[tuple[str, str]]]
"""Settings ``name=value`` of an object store, and environment variables of another process."""

def history_columns(name: str) -> list[tuple[str, str, str]]:
    """Return the columns of a view: name, Spark type, and when it is shown."""

def object_archive_bytes(url: str, options: list[str]) -> int:
    """Return the size in bytes of all objects of an archive, also of metadata and of earlier snapshots."""

def object_archive_manifest(url: str, options: list[str]) -> str | None:
    """Return the files of an archive on object storage as JSON, or `None` if there are no tables."""

@final
class History:
    """The history in a data directory, whether a broker runs on it or not, or the archived part on object storage."""

    def __new__(cls, path: str, store: _Store = ...) -> History: ...
    @staticmethod
    def of_archive(url: str, store: _Store) -> History:
        """Open an archive on object storage. Sends no request. Raises `ConfigError` for an invalid URL or setting."""
    def archived_queues(self) -> set[str]:
        """Return queues in the archive on object storage that its metadata contains."""
    def archived_from(self) -> list[tuple[int, int]]:
        """Return for each shard in the archive on object storage the sequence at which it begins."""
    def ends(self) -> list[_Ends]:
        """Return for each shard: its number, its journal, the earliest sequence, and that behind the latest."""
    def pieces(self, request: str, stretches: list[tuple[int, int, int]], target_bytes: int) -> list[_Piece]:
        """Split ranges into pieces of about this many bytes."""
    def advance(self, request: str, stretches: list[tuple[int, int, int]], rows: int, fail_on_loss: bool) -> list[int]:
        """Return the end of the next rows of the ranges."""
    def read(self, request: str, piece: _Piece, fail_on_loss: bool) -> HistoryRows:
        """Read a piece."""

@final
class HistoryRows:
    """Rows that a consumer of Arrow's C stream interface can take once."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

# client
#
# `tools/generate_sync.py` generates each blocking class from the asyncio one.

def end_delivering() -> None:
    """Join the thread that sets the results of awaitables, because Python is about to end."""

@final
class AsyncClient:
    """A connected client whose calls return awaitables of their results."""

    @staticmethod
    def connect(target: list[str] | Broker, options: ClientOptions) -> Awaitable[AsyncClient]: ...
    @property
    def id(self) -> str: ...
    @property
    def protocol(self) -> Literal["tmqp", "mqks", "mm2"]: ...
    @property
    def state(self) -> State: ...
    def states(self) -> States: ...
    @property
    def counters(self) -> ClientCounters: ...
    def close(self, drain: float | None = None) -> Awaitable[None]: ...
    def abort(self) -> None: ...
    def publish(
        self,
        queue: str,
        body: bytes,
        message_id: str | None = None,
        headers: list[tuple[str, str]] | None = None,
        high_priority: bool = False,
        confirm: bool = True,
        cc: list[tuple[str, str | None]] | None = None,
        timeout: float | None = None,
        retry: bool = False,
        terms: tuple[int | None, float | None, float | None] | None = None,
    ) -> Awaitable[Confirmation | None] | None: ...
    def abandon(self, awaitable: object) -> None: ...
    def publish_many(
        self,
        queue: str,
        bodies: list[bytes],
        *,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        confirm: bool = True,
        cc: list[tuple[str, str | None]] = ...,
        timeout: float | None = None,
        terms: tuple[int | None, float | None, float | None] = ...,
    ) -> Awaitable[list[Outcome]]: ...
    def publish_each(
        self,
        queue: str,
        messages: list[tuple[bytes, str | None, list[tuple[str, str]]]],
        *,
        high_priority: bool = False,
        confirm: bool = True,
        timeout: float | None = None,
        terms: tuple[int | None, float | None, float | None] = ...,
    ) -> Awaitable[list[Outcome]]: ...
    def consume(
        self,
        queue: str,
        prefetch: int,
        *,
        events: list[str] | None = None,
        add_events: list[str] = ...,
        delete_unused: float | None = None,
        filter: str | None = None,  # noqa: A002 (as in the protocol)
        manual_ack: bool = True,
    ) -> Awaitable[Consumer]: ...
    @property
    def extensions(self) -> list[tuple[str, list[tuple[str, str]]]]: ...
    def extension(self, name: str) -> ExtensionFrames: ...
    def send_extension(self, name: str, payload: bytes) -> Awaitable[None]: ...
    def rebind(
        self,
        queue: str,
        *,
        replace: list[str] | None = None,
        remove: list[str] = ...,
        remove_masks: list[str] = ...,
        add: list[str] = ...,
    ) -> Awaitable[None]: ...
    def statistic(self, expression: str) -> Awaitable[int]: ...
    def join(self, channel: str) -> Awaitable[Membership]: ...
    def pull(
        self,
        queue: str,
        count: int,
        *,
        lifo: bool = False,
        clear_high_priority: bool = False,
        clear_normal: bool = False,
        timeout: float | None = None,
    ) -> Awaitable[Pulled]: ...
    def pull_stream(
        self,
        queue: str,
        count: int,
        *,
        lifo: bool = False,
        clear_high_priority: bool = False,
        clear_normal: bool = False,
        timeout: float | None = None,
    ) -> Awaitable[PullStream]: ...
    def get_cached(self, queue: str, *, timeout: float | None = None) -> Awaitable[Received | None]: ...
    def send(
        self,
        target: str,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        only_first: bool = False,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> Awaitable[float | None]: ...
    def request(
        self,
        target: str,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        only_first: bool = False,
        timeout: float | None = None,
    ) -> Awaitable[Received]: ...
    def incoming(self, *, custom: bool = False) -> Incoming: ...
    def send_custom(
        self,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
    ) -> Awaitable[None]: ...
    def update_channel(self, channel: str, options: ChannelOptions) -> Awaitable[None]: ...
    def enable_router(self, router: str, enabled: bool) -> Awaitable[None]: ...
    def disconnect(self, client: str) -> Awaitable[None]: ...
    def respond(self, message: Received, status: int, body: bytes) -> Awaitable[None]: ...
    def acknowledge_direct(self, message: Received, refusal: str | None = None) -> Awaitable[None]: ...
    def subscribe_events(self, subscriptions: list[tuple[str, str | None, int | None]]) -> Awaitable[EventStream]: ...
    def create_channel(self, channel: str, options: ChannelOptions) -> Awaitable[None]: ...
    def remove_channel(self, channel: str) -> Awaitable[None]: ...
    def channel_information(self, channel: str) -> Awaitable[ChannelInformation]: ...
    def channels(self, pattern: str | None = None) -> Awaitable[list[ChannelInformation]]: ...
    def channel_consumers(self, channel: str) -> Awaitable[list[ClientInformation]]: ...
    def create_queue(self, queue: str, options: QueueOptions) -> Awaitable[None]: ...
    def update_queue(self, queue: str, options: QueueOptions) -> Awaitable[None]: ...
    def remove_queue(self, queue: str) -> Awaitable[None]: ...
    def clear_queue(self, queue: str, high_priority: bool, normal: bool) -> Awaitable[None]: ...
    def queue_information(self, queue: str) -> Awaitable[QueueInformation]: ...
    def queues(self, channel: str) -> Awaitable[list[QueueInformation]]: ...
    def clients(self, pattern: str | None = None) -> Awaitable[list[ClientInformation]]: ...
    def create_router(self, router: str, method: str) -> Awaitable[None]: ...
    def remove_router(self, router: str) -> Awaitable[None]: ...
    def routers(self, pattern: str | None = None) -> Awaitable[list[RouterInformation]]: ...
    def bindings(self, router: str) -> Awaitable[list[Binding]]: ...
    def add_binding(self, router: str, binding: Binding) -> Awaitable[None]: ...
    def remove_binding(self, router: str, binding: str) -> Awaitable[None]: ...
    def test_router(self, router: str, body: bytes, headers: list[tuple[str, str]]) -> Awaitable[RouterTest]: ...
    def nodes(self) -> Awaitable[list[NodeInformation]]: ...

# generated: BlockingClient

@final
class BlockingClient:
    """A connected client whose calls return their results."""

    @staticmethod
    def connect(target: list[str] | Broker, options: ClientOptions) -> BlockingClient: ...
    @property
    def id(self) -> str: ...
    @property
    def protocol(self) -> Literal["tmqp", "mqks", "mm2"]: ...
    @property
    def state(self) -> State: ...
    def states(self) -> States: ...
    @property
    def counters(self) -> ClientCounters: ...
    def close(self, drain: float | None = None) -> None: ...
    def abort(self) -> None: ...
    def publish(
        self,
        queue: str,
        body: bytes,
        message_id: str | None = None,
        headers: list[tuple[str, str]] | None = None,
        high_priority: bool = False,
        confirm: bool = True,
        cc: list[tuple[str, str | None]] | None = None,
        timeout: float | None = None,
        retry: bool = False,
        terms: tuple[int | None, float | None, float | None] | None = None,
    ) -> Confirmation | None: ...
    def abandon(self, awaitable: object) -> None: ...
    def publish_many(
        self,
        queue: str,
        bodies: list[bytes],
        *,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        confirm: bool = True,
        cc: list[tuple[str, str | None]] = ...,
        timeout: float | None = None,
        terms: tuple[int | None, float | None, float | None] = ...,
    ) -> list[Outcome]: ...
    def publish_each(
        self,
        queue: str,
        messages: list[tuple[bytes, str | None, list[tuple[str, str]]]],
        *,
        high_priority: bool = False,
        confirm: bool = True,
        timeout: float | None = None,
        terms: tuple[int | None, float | None, float | None] = ...,
    ) -> list[Outcome]: ...
    def consume(
        self,
        queue: str,
        prefetch: int,
        *,
        events: list[str] | None = None,
        add_events: list[str] = ...,
        delete_unused: float | None = None,
        filter: str | None = None,  # noqa: A002 (as in the protocol)
        manual_ack: bool = True,
    ) -> Consumer: ...
    @property
    def extensions(self) -> list[tuple[str, list[tuple[str, str]]]]: ...
    def extension(self, name: str) -> ExtensionFrames: ...
    def send_extension(self, name: str, payload: bytes) -> None: ...
    def rebind(
        self,
        queue: str,
        *,
        replace: list[str] | None = None,
        remove: list[str] = ...,
        remove_masks: list[str] = ...,
        add: list[str] = ...,
    ) -> None: ...
    def statistic(self, expression: str) -> int: ...
    def join(self, channel: str) -> Membership: ...
    def pull(
        self,
        queue: str,
        count: int,
        *,
        lifo: bool = False,
        clear_high_priority: bool = False,
        clear_normal: bool = False,
        timeout: float | None = None,
    ) -> Pulled: ...
    def pull_stream(
        self,
        queue: str,
        count: int,
        *,
        lifo: bool = False,
        clear_high_priority: bool = False,
        clear_normal: bool = False,
        timeout: float | None = None,
    ) -> PullStream: ...
    def get_cached(self, queue: str, *, timeout: float | None = None) -> Received | None: ...
    def send(
        self,
        target: str,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        only_first: bool = False,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> float | None: ...
    def request(
        self,
        target: str,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
        high_priority: bool = False,
        only_first: bool = False,
        timeout: float | None = None,
    ) -> Received: ...
    def incoming(self, *, custom: bool = False) -> Incoming: ...
    def send_custom(
        self,
        body: bytes,
        *,
        content_type: int = 0,
        message_id: str | None = None,
        headers: list[tuple[str, str]] = ...,
    ) -> None: ...
    def update_channel(self, channel: str, options: ChannelOptions) -> None: ...
    def enable_router(self, router: str, enabled: bool) -> None: ...
    def disconnect(self, client: str) -> None: ...
    def respond(self, message: Received, status: int, body: bytes) -> None: ...
    def acknowledge_direct(self, message: Received, refusal: str | None = None) -> None: ...
    def subscribe_events(self, subscriptions: list[tuple[str, str | None, int | None]]) -> EventStream: ...
    def create_channel(self, channel: str, options: ChannelOptions) -> None: ...
    def remove_channel(self, channel: str) -> None: ...
    def channel_information(self, channel: str) -> ChannelInformation: ...
    def channels(self, pattern: str | None = None) -> list[ChannelInformation]: ...
    def channel_consumers(self, channel: str) -> list[ClientInformation]: ...
    def create_queue(self, queue: str, options: QueueOptions) -> None: ...
    def update_queue(self, queue: str, options: QueueOptions) -> None: ...
    def remove_queue(self, queue: str) -> None: ...
    def clear_queue(self, queue: str, high_priority: bool, normal: bool) -> None: ...
    def queue_information(self, queue: str) -> QueueInformation: ...
    def queues(self, channel: str) -> list[QueueInformation]: ...
    def clients(self, pattern: str | None = None) -> list[ClientInformation]: ...
    def create_router(self, router: str, method: str) -> None: ...
    def remove_router(self, router: str) -> None: ...
    def routers(self, pattern: str | None = None) -> list[RouterInformation]: ...
    def bindings(self, router: str) -> list[Binding]: ...
    def add_binding(self, router: str, binding: Binding) -> None: ...
    def remove_binding(self, router: str, binding: str) -> None: ...
    def test_router(self, router: str, body: bytes, headers: list[tuple[str, str]]) -> RouterTest: ...
    def nodes(self) -> list[NodeInformation]: ...

# end generated: BlockingClient

@final
class Consumer:
    """Deliveries of a queue. `take` returns those that have come; waiting takes none, so cancelling it loses none."""

    def take(self, count: int) -> list[Received]: ...
    def take_next(self, count: int) -> list[Received]: ...
    def take_batch(self, count: int) -> ReceivedBatch | None: ...
    def wait_batch_async(self, count: int, fill: float, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_batch_blocking(self, count: int, fill: float, timeout: float | None = None) -> bool: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...
    @property
    def waiting(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class PullStream:
    """Messages of a pull as they arrive. After the last one, `end` returns the number of remaining messages of high and
    of normal priority, and whether the broker ended the pull."""

    def take(self, count: int) -> list[Received]: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...
    def end(self) -> tuple[tuple[int, int] | None, bool]: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Incoming:
    """Direct messages to a client."""

    def take(self, count: int) -> list[Received]: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class ExtensionFrames:
    """Frames of a vendor's extension."""

    def take(self, count: int) -> list[bytes]: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class EventStream:
    """Events of the broker."""

    def take(self, count: int) -> list[Event]: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class States:
    """States of a client's connection."""

    def take(self) -> State | None: ...
    def wait_async(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def wait_blocking(self, timeout: float | None = None) -> bool: ...

@final
class Membership:
    """Keeps a channel joined."""

    def leave(self) -> None: ...

@final
class Received:
    """A message that a client received."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str | None: ...
    @property
    def target(self) -> str: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def body(self) -> bytes: ...
    @property
    def content_type(self) -> int: ...
    @property
    def first_acquirer(self) -> bool: ...
    @property
    def high_priority(self) -> bool: ...
    @property
    def wants_acknowledge(self) -> bool: ...
    @property
    def wants_response(self) -> bool: ...
    @property
    def is_settled(self) -> bool: ...
    def ack(self) -> Literal["sent", "not-asked", "stale", "already", "late"]: ...
    def nack(
        self, reason: str, delay: float | None = None
    ) -> Literal["sent", "not-asked", "stale", "already", "late"]: ...
    def working(self) -> Literal["sent", "not-asked", "stale", "already", "late"]: ...
    @property
    def attempt(self) -> int | None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class ReceivedBatch:
    """Messages of a consumer or a pull that came together. Settling them settles those that are not settled."""

    def messages(self) -> list[Received]: ...
    def bodies(self) -> list[bytes]: ...
    def ack(self) -> int: ...
    def nack(self, reason: str, delay: float | None = None) -> int: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class Pulled:
    """The result of a pull. If it is dropped before `take`, the next pull returns its messages, or the broker requeues
    those that need an acknowledgement."""

    def take(self) -> ReceivedBatch: ...
    @property
    def remaining(self) -> tuple[int, int] | None: ...
    @property
    def complete(self) -> bool: ...

def join_leaked_threads(timeout: float) -> int: ...

# limits

@final
class Verdict:
    """The result of a check. True in a condition if it was allowed."""

    def __new__(
        cls,
        allowed: bool,
        limit: int,
        remaining: int,
        retry_after: float = 0.0,
        reset_after: float = 0.0,
        available: bool = True,
    ) -> Verdict: ...
    @property
    def allowed(self) -> bool:
        """Whether there was enough."""
    @property
    def limit(self) -> int:
        """How much may be taken in a period."""
    @property
    def remaining(self) -> int:
        """How much can be taken now."""
    @property
    def retry_after(self) -> float:
        """Seconds until the same cost is allowed without other checks: 0 if it was allowed, infinity if it never
        is."""
    @property
    def reset_after(self) -> float:
        """Seconds until the whole limit is available without other checks."""
    @property
    def available(self) -> bool:
        """Whether the limiter was reachable; false if `on_unavailable` decided."""
    def __bool__(self) -> bool: ...

@final
class LimitRule:
    """A limit of a store, made ready."""

    def check(self, key: str | bytes, cost: int = 1) -> Verdict:
        """Take `cost` from the quota of `key`, if there is enough."""
    def apply(self, key: str | bytes, cost: int, number: int) -> Verdict: ...

@final
class LimitStore:
    """A store of this process."""

    def __new__(cls, keys_max: int, bytes_max: int) -> LimitStore: ...
    def rule(self, number: int, limit: int, period: int) -> LimitRule: ...
    def apply_all(self, parts: list[tuple[str | bytes, LimitRule, int]], number: int) -> tuple[bool, list[Verdict]]: ...
    def purge(self, key: str | bytes) -> bool: ...
    def __len__(self) -> int: ...

@final
class AsyncThrottrClient:
    """A client of a Throttr listener. It sends many requests, tuples, at once; answers are plain values."""

    def __new__(
        cls, url: str, tls: TLSConfig | None, connect_timeout: float, request_timeout: float
    ) -> AsyncThrottrClient: ...
    @property
    def value_max(self) -> int: ...
    @property
    def protocol(self) -> str: ...
    @property
    def dropped(self) -> int: ...
    @property
    def connects(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def ask(self, requests: list[tuple[Any, ...]], timeout: float | None = None) -> Awaitable[list[Any]]: ...
    def take(self, count: int) -> list[tuple[bytes | None, bytes]]: ...
    def wait(self, timeout: float | None = None) -> Awaitable[bool]: ...
    def close(self) -> None: ...

# generated: BlockingThrottrClient

@final
class BlockingThrottrClient:
    """A client of a Throttr listener. It sends many requests, tuples, at once; answers are plain values."""

    def __new__(
        cls, url: str, tls: TLSConfig | None, connect_timeout: float, request_timeout: float
    ) -> BlockingThrottrClient: ...
    @property
    def value_max(self) -> int: ...
    @property
    def protocol(self) -> str: ...
    @property
    def dropped(self) -> int: ...
    @property
    def connects(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def ask(self, requests: list[tuple[Any, ...]], timeout: float | None = None) -> list[Any]: ...
    def take(self, count: int) -> list[tuple[bytes | None, bytes]]: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def close(self) -> None: ...

# end generated: BlockingThrottrClient
