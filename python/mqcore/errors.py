"""Everything that mqcore raises, under one root.

.. code-block:: text

    MqcoreError
    ├── ConfigError (ValueError)               a setting that cannot work
    ├── InvalidArgument (ValueError)           an argument that cannot be said: a name, a header, an id
    ├── NotSupported (NotImplementedError)     something that the protocol of this client does not have
    ├── NotRunning (RuntimeError)              the embedded broker or the app is stopped
    │   └── Forked                             broker or client, made before fork()
    ├── AlreadyRunning (RuntimeError)          an app that was started twice
    ├── DataDirError                           DataDirBusy · DataDirDamaged · DataDirFull
    │                                          DataDirMissing (LookupError) · DataDirUnreadable
    │                                          ArchiveDenied (PermissionError) · ArchiveUnreachable
    │                                          HistoryLost
    ├── AuthorityError                         AuthorityMissing (LookupError)
    ├── TransportError (ConnectionError)       ConnectFailed · ConnectionLost · Draining · ListenFailed
    ├── HandshakeError                         VersionMismatch · AuthFailed (PermissionError) · NoAgreement
    │   └── TLSError                           CertificateError
    ├── ProtocolError                          BadFrame · TooLarge · BadAnswer
    ├── OperationError                         BadRequest 400 · Unauthorized 401 · NotFound 404 (LookupError)
    │                                          Unacceptable 406 · AlreadyExists 481 · LimitExceeded 482
    │                                          Busy 503 · SendError 581 · QueueStopped 401
    ├── Nacked                                 a negative acknowledgement, with its reason
    ├── ConfirmTimeout (TimeoutError)
    ├── RequestTimeout (TimeoutError)
    ├── RateLimited                            a limit is used up; when to try again
    ├── JobError                               JobFailed · JobTimeout (TimeoutError) · JobLost
    │                                          JobRefused (PermissionError) · JobCancelled · JobDuplicate
    └── BodyError (ValueError)                 a body that is not what was asked for

Leaf classes are also what a reader of the standard library expects (``ConnectionError``, ``TimeoutError``,
``LookupError``, ...), so that code that does not know mqcore can still react.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "AlreadyRunning",
    "ArchiveDenied",
    "ArchiveUnreachable",
    "AuthFailed",
    "AuthorityError",
    "AuthorityMissing",
    "BadAnswer",
    "BadFrame",
    "BadRequest",
    "BodyError",
    "Busy",
    "CertificateError",
    "ConfigError",
    "ConfirmTimeout",
    "ConnectFailed",
    "ConnectionLost",
    "DataDirBusy",
    "DataDirDamaged",
    "DataDirError",
    "DataDirFull",
    "DataDirMissing",
    "DataDirUnreadable",
    "Draining",
    "Forked",
    "HandshakeError",
    "HistoryLost",
    "InvalidArgument",
    "JobCancelled",
    "JobDuplicate",
    "JobError",
    "JobFailed",
    "JobLost",
    "JobRefused",
    "JobTimeout",
    "LimitExceeded",
    "ListenFailed",
    "MqcoreError",
    "Nacked",
    "NoAgreement",
    "NotFound",
    "NotRunning",
    "NotSupported",
    "OperationError",
    "ProtocolError",
    "QueueStopped",
    "RateLimited",
    "RequestTimeout",
    "SendError",
    "TLSError",
    "TooLarge",
    "TransportError",
    "Unacceptable",
    "Unauthorized",
    "VersionMismatch",
]


class MqcoreError(Exception):
    """The root: ``except mqcore.MqcoreError`` catches whatever mqcore raises on purpose."""


class ConfigError(MqcoreError, ValueError):
    """A setting cannot work; the text names it and says what it may be."""


class InvalidArgument(MqcoreError, ValueError):
    """An argument that cannot be said in the protocol: a name, a header, a message id."""


class NotSupported(MqcoreError, NotImplementedError):
    """The protocol of this client has no such thing; the text says which one has."""


class NotRunning(MqcoreError, RuntimeError):
    """The embedded broker or an app was asked for something while it was stopped."""


class AlreadyRunning(MqcoreError, RuntimeError):
    """An app was started while it runs."""


class Forked(NotRunning):
    """The broker was started before ``os.fork()`` and is used in the child, where its threads do not
    exist."""


class DataDirError(MqcoreError):
    """The data directory of a stopped broker could not be looked at, or not be compacted."""


class DataDirBusy(DataDirError):
    """A broker runs on it."""


class DataDirDamaged(DataDirError):
    """Something in it is not what was written."""


class DataDirFull(DataDirError):
    """There is no space on its disk for what should be done."""


class DataDirMissing(DataDirError, LookupError):
    """There is no such directory, or no such queue in it."""


class DataDirUnreadable(DataDirError):
    """The system refuses to read it, or it is of another version of mqcore."""


class ArchiveDenied(DataDirUnreadable, PermissionError):
    """The object store of an archive refuses the credentials, or there are none."""


class ArchiveUnreachable(DataDirUnreadable, ConnectionError):
    """The object store of an archive does not answer."""


class HistoryLost(DataDirError):
    """Part of the history that was asked for is gone: retention has removed it, or it was damaged."""


class TransportError(MqcoreError, ConnectionError):
    """Something between the peers failed, not the broker's answer."""


class ConnectFailed(TransportError):
    """No address took a connection."""


class ConnectionLost(TransportError):
    """There is no connection, or it ended before the answer came; whether the broker acted is unknown then."""

    def __init__(self, message: str = "", sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether anything was sent: if not, it is safe to try again."""


class Draining(TransportError):
    """The client is closing and takes nothing new."""


class AuthorityError(MqcoreError):
    """Users and tokens cannot be read or changed as asked."""


class AuthorityMissing(AuthorityError, LookupError):
    """There is no such user or token."""


class ListenFailed(TransportError):
    """An address could not be bound."""


class HandshakeError(MqcoreError):
    """The peers did not come to terms."""


class VersionMismatch(HandshakeError):
    """The other side speaks another protocol, or another version of it."""


class NoAgreement(HandshakeError):
    """One side requires an extension of the protocol that the other does not have; the text names it."""


class AuthFailed(HandshakeError, PermissionError):
    """The broker does not let this client in."""


class TLSError(HandshakeError):
    """The peers did not come to terms on TLS; the text says why, and what to do."""

    def __init__(self, message: str = "", reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason
        """One word: ``not-tls``, ``tls-wanted``, ``nothing-in-common``, ``closed``, ``other``, or one of
        `CertificateError`."""


class CertificateError(TLSError):
    """A certificate is what it failed on.

    `reason`, of the broker's certificate: ``unknown-authority``, ``expired``, ``not-yet-valid``, ``wrong-name``,
    ``bad-certificate``; of the client's: ``certificate-required``, ``certificate-refused``.
    """


class ProtocolError(MqcoreError):
    """Bytes that the protocol does not allow."""


class BadFrame(ProtocolError):
    """Malformed frame: no continuation can make these bytes valid."""


class TooLarge(ProtocolError):
    """A frame, or a part of one, exceeds its limit."""

    def __init__(self, message: str = "", limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        """The limit in bytes."""


class BadAnswer(ProtocolError):
    """An answer that does not have the form of the operation's answers."""


class OperationError(MqcoreError):
    """The broker rejected an operation. There is a subclass for each status code."""

    def __init__(self, message: str = "", code: int = 1, target: str = "") -> None:
        super().__init__(message)
        self.code = code
        """The status code of the answer."""
        self.target = target
        """The target of the operation: a queue, a channel, a client."""


class BadRequest(OperationError):
    """400: the request itself is wrong."""


class Unauthorized(OperationError):
    """401: this client may not do that."""


class NotFound(OperationError, LookupError):
    """404: no such channel, queue or client."""


class Unacceptable(OperationError):
    """406: understood, and impossible in the present state."""


class AlreadyExists(OperationError):
    """481: there is one of that name already."""


class LimitExceeded(OperationError):
    """482: a limit would be exceeded."""


class Busy(OperationError):
    """503: not now; later perhaps."""


class SendError(OperationError):
    """581: it could not be sent on."""


class QueueStopped(OperationError):
    """The queue has the status ``stopped`` and takes no messages.

    Its status code in TMQP is 401, as for `Unauthorized`. Brokers other than mqcore send only the code, and the client
    raises `Unauthorized` then.
    """


class Nacked(MqcoreError):
    """A negative acknowledgement came."""

    def __init__(self, message: str = "", reason: str = "none", target: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """``none``, ``refused`` (by a handler), ``timeout``, ``not-saved``, ``no-consumers`` (of a topic or router), or
        the consumer's text."""
        self.target = target
        """The queue or client that the message was for."""


class ConfirmTimeout(MqcoreError, TimeoutError):
    """No acknowledgement came in time; the message may have arrived all the same."""


class RequestTimeout(MqcoreError, TimeoutError):
    """No answer came in time."""


class RateLimited(MqcoreError):
    """A limit is used up."""

    def __init__(self, message: str = "", retry_after: float = 0.0, limit: int = 0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the same call is allowed if no other call uses the quota; infinity: never."""
        self.limit = limit
        """The quota of one period."""


class JobError(MqcoreError):
    """A job did not end with a result."""

    def __init__(self, message: str = "", job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        """Which job."""


class JobFailed(JobError):
    """A job raised an exception, in its last attempt."""

    def __init__(self, message: str = "", job_id: str = "", remote_type: str = "", remote_traceback: str = "") -> None:
        super().__init__(message, job_id)
        self.remote_type = remote_type
        """The exception's type by its full name, such as ``shop.errors.OutOfStock``; ``ValueError`` for a built-in."""
        self.remote_traceback = remote_traceback
        """Where it was raised, as Python prints it; empty if the worker did not say."""


class JobTimeout(JobError, TimeoutError):
    """A job took longer than its limit, and was ended."""


class JobLost(JobError):
    """The process that ran a job died, or was stopped before the job ended."""


class JobRefused(JobError, PermissionError):
    """The worker does not run this: no task has that name, and no pattern allows to import it. Or the broker does not
    let this client put jobs into that queue."""


class JobCancelled(JobError):
    """A job was cancelled. Also raised inside a running job that is cancelled, so that it can clean up."""


class JobDuplicate(JobError):
    """A job of the same unique key waits or runs already; this one was not taken."""


class BodyError(MqcoreError, ValueError):
    """A body cannot be decoded as the requested type."""

    def __init__(self, message: str = "", raw: bytes = b"", wanted: object = None, path: str = "") -> None:
        super().__init__(message)
        self.raw = raw
        """The bytes of the body."""
        self.wanted = wanted
        """The requested type."""
        self.path = path
        """Where in the body the trouble is, ``$.items[0].sku`` for example."""
