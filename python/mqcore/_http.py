"""The one HTTP client of the package: requests to a broker's admin side, with TLS, proxies and timeouts.

::

    admin = AdminClient("https://broker.example:2627?ca=/etc/ca.pem", token="secret", timeout=15.0)
    answer = admin.ask("GET", "/errors?limit=10")
    with admin.stream("GET", "/backup", {"Mqcore-Request": "backup"}) as body:
        first = body.read(65_536)

Every request has a connection of its own, is sent once, and follows no redirect: an admin side sends none, and a token
must not reach another host. Proxies come from ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``; loopback
addresses are always reached directly.
"""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import ssl
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mqcore import credentials, errors
from mqcore.config import Duration, seconds
from mqcore.tls import TLSConfig

if TYPE_CHECKING:
    import urllib3

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_URL",
    "REFUSALS",
    "AdminClient",
    "Body",
    "GatewayAnswer",
    "Rejections",
    "query",
    "queue_path",
    "reading",
]

DEFAULT_PORT: Final = 2627
"""The port of an admin side whose URL names none."""
DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
"""The default URL of an admin side."""

_ERROR_BYTES_MAX: Final = 1 << 20
_TLS_OPTIONS: Final = ("ca", "cert", "key", "server_name")
_OK: Final = 200
_GATEWAY: Final = frozenset({502, 503, 504})
_LOG: Final = logging.getLogger("mqcore.admin")

Rejections: TypeAlias = Mapping[str, Callable[[str], errors.MqcoreError]]
"""Error codes of the admin side, each with what makes its message an exception."""

_REJECTIONS: Final[Rejections] = {
    "unauthorized": lambda message: errors.Unauthorized(message, 401),
    "forbidden": lambda message: errors.Unauthorized(message, 401),
    "not-found": lambda message: errors.NotFound(message, 404),
    "busy": lambda message: errors.Busy(message, 503),
    "not-saved": lambda message: errors.Nacked(message, "not-saved"),
    "stopping": lambda message: errors.ConnectionLost(message, sent=False),
    # Answers of a node of a cluster that cannot pass the request on.
    "no-leader": errors.ConnectFailed,
    "leader-unreachable": errors.ConnectFailed,
}

REFUSALS: Final[Rejections] = {
    "bad-request": lambda message: errors.BadRequest(message, 400),
    "already-exists": lambda message: errors.AlreadyExists(message, 481),
    "limit-exceeded": lambda message: errors.LimitExceeded(message, 482),
    "unacceptable": lambda message: errors.Unacceptable(message, 406),
    "queue-stopped": lambda message: errors.Unacceptable(message, 406),
}
"""Errors of requests with parameters or a body, for the argument `rejections`."""


class GatewayAnswer(errors.BadAnswer):
    """A proxy answered, because it cannot reach the broker at present."""


class Body(io.RawIOBase):
    """The body of an answer, read piece by piece. If the connection ends early, reading raises `ConnectionLost`."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str) -> None:
        self._response = response
        self._url = url
        self.headers: Mapping[str, str] = response.headers
        """The headers of the answer; names compare without regard to case."""

    def readable(self) -> bool:
        """Return true."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer only at the end; all that are left if it is negative."""
        import urllib3

        try:
            return self._response.read(None if size is None or size < 0 else size)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise errors.ConnectionLost(f"the answer of {self._url} broke off: {_reason(error)}") from error


class AdminClient:
    """Sends requests to the admin side of one broker.

    `url` is ``http://HOST:PORT`` or ``https://HOST:PORT``; the default port is 2627. As in the URLs of clients, it may
    name who asks (``https://TOKEN@HOST``, ``https://USER:PASSWORD@HOST``) and TLS files
    (``?ca=FILE&cert=FILE&key=FILE&server_name=NAME``). `timeout` is the longest time to connect, and the longest
    silence while reading, in seconds or as text such as ``"30s"``. `context` has complete TLS settings, and replaces
    `tls`.

    Raises `ConfigError` for another URL, for a token that is given twice, and for TLS files that cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: Duration = 15.0,
        tls: TLSConfig | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        plain, named = credentials.split(url)
        try:
            parts = urllib.parse.urlsplit(plain)
            host, port = parts.hostname, parts.port or DEFAULT_PORT
        except ValueError as error:
            raise errors.ConfigError(f"{url} is not a URL of an admin side: {error}") from None
        if parts.scheme not in {"http", "https"} or not host:
            raise errors.ConfigError(
                f"{url} is not a URL of an admin side; write http://HOST:PORT, as in the ready line of the broker"
            )
        if named is not None and token is not None:
            raise errors.ConfigError("give the token in the URL of the admin side or as `token`, not both")
        self._host = host
        self._scheme = parts.scheme
        self._base = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self.url: Final = self._base
        """The URL without credentials and options, for messages."""
        self._tls = _tls(parts.query, tls)
        self._context = context
        if context is not None and self._tls is not None:
            raise errors.ConfigError("give TLS options in the URL of the admin side or as `context`, not both")
        if parts.scheme == "http" and (self._tls is not None or context is not None):
            raise errors.ConfigError(f"{self.url} is not TLS; write https:// to use TLS options")
        self._timeout = seconds(timeout)
        token = token if named is None else named
        self._headers = {} if token is None else {"Authorization": token if _is_basic(named) else f"Bearer {token}"}

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        bytes_max: int = 8 << 20,
        rejections: Rejections | None = None,
        otherwise: Callable[[str], errors.MqcoreError] | None = None,
    ) -> dict[str, Any]:
        """Send a request, with the JSON `body` if there is one, and return the JSON object of its answer.

        The answer may have at most `bytes_max` bytes.

        Raises `ConnectFailed` if the admin side cannot be reached, `BadAnswer` if the answer is larger or not
        that of an admin side, and what `stream` raises.
        """
        with self.stream(method, path, headers, body=body, rejections=rejections, otherwise=otherwise) as answer:
            text = answer.read(bytes_max + 1)
        if len(text) > bytes_max:
            raise errors.BadAnswer(f"{self.url} answers with more than {bytes_max} bytes")
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise errors.BadAnswer(f"{self.url} answers {_OK}, but not like the admin side of a broker") from error

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        rejections: Rejections | None = None,
        otherwise: Callable[[str], errors.MqcoreError] | None = None,
    ) -> Iterator[Body]:
        """Send a request and read its answer piece by piece while the block runs.

        An error of the admin side is raised as what `rejections` makes of its code: `Unauthorized`, `NotFound`,
        `Busy`, `Nacked`, `ConnectionLost` and `ConnectFailed` by default; for other codes as what `otherwise` makes
        of its message (`BadAnswer` by default).
        """
        import urllib3

        with self._pool() as pool:
            try:
                with self._unverified():
                    response = pool.urlopen(
                        method,
                        self._base + path,
                        body=body,
                        headers={**self._headers, **_type_of(body), **(headers or {})},
                        preload_content=False,
                        redirect=False,
                        retries=False,
                        timeout=urllib3.Timeout(connect=self._timeout, read=self._timeout),
                    )
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise errors.ConnectFailed(f"{self.url} does not answer: {_reason(error)}") from error
            try:
                answer = Body(response, self.url)
                if response.status != _OK:
                    text = answer.read(_ERROR_BYTES_MAX)
                    raise self._rejection(response.status, text, {**_REJECTIONS, **(rejections or {})}, otherwise)
                yield answer
            finally:
                response.close()

    @contextmanager
    def _unverified(self) -> Iterator[None]:
        """Log that any certificate is accepted, as the other clients do, where urllib3 would warn of it."""
        if self._tls is None or not self._tls.dangerously_accept_any_certificate:
            yield
            return
        from urllib3.exceptions import InsecureRequestWarning

        _LOG.warning("connected to %s without verifying its certificate", self.url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)
            yield

    def _rejection(
        self,
        status: int,
        text: bytes,
        rejections: Rejections,
        otherwise: Callable[[str], errors.MqcoreError] | None,
    ) -> errors.MqcoreError:
        try:
            content = json.loads(text)["error"]
            code, message = str(content["code"]), str(content["message"])
        except (ValueError, KeyError, TypeError):
            kind = GatewayAnswer if status in _GATEWAY else errors.BadAnswer
            return kind(f"{self.url} answers {status}, but not like the admin side of a broker")
        if code in rejections:
            return rejections[code](message)
        return errors.BadAnswer(f"{self.url}: {message}") if otherwise is None else otherwise(message)

    def _pool(self) -> urllib3.PoolManager:
        import urllib3

        options: dict[str, Any] = {}
        if self._scheme == "https":
            context = self._context
            options = _tls_options(self._tls or TLSConfig()) if context is None else {"ssl_context": context}
        proxy = _proxy(self._scheme, self._host)
        if proxy is None:
            return urllib3.PoolManager(1, **options)
        login = urllib.parse.urlsplit(proxy)
        headers = None
        if login.username is not None:
            user = f"{urllib.parse.unquote(login.username)}:{urllib.parse.unquote(login.password or '')}"
            headers = urllib3.make_headers(proxy_basic_auth=user)
        return urllib3.ProxyManager(proxy, 1, proxy_headers=headers, **options)


def _type_of(body: bytes | None) -> dict[str, str]:
    return {} if body is None else {"Content-Type": "application/json"}


def _is_basic(named: str | None) -> bool:
    return named is not None and named.startswith("Basic ")


def _tls(query: str, tls: TLSConfig | None) -> TLSConfig | None:
    """Return the TLS options of the URL, or those given beside it."""
    named = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    if not named:
        return tls
    if unknown := named.keys() - set(_TLS_OPTIONS):
        raise errors.ConfigError(
            f"the URL of an admin side has no option {min(unknown)!r}; it has {', '.join(_TLS_OPTIONS)}"
        )
    if tls is not None:
        raise errors.ConfigError("give TLS options in the URL of the admin side or as `tls`, not both")
    return TLSConfig(
        ca=named.get("ca"), cert=named.get("cert"), key=named.get("key"), server_name=named.get("server_name")
    )


def _tls_options(tls: TLSConfig) -> dict[str, Any]:
    """Return the arguments of urllib3 for `tls`."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"cannot load the TLS files of the admin side: {error}") from error
    options: dict[str, Any] = {"ssl_context": context}
    if tls.dangerously_accept_any_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        options["cert_reqs"] = ssl.CERT_NONE
    elif tls.server_name is not None:
        options |= {"server_hostname": tls.server_name, "assert_hostname": tls.server_name}
    return options


def _proxy(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host, if any."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None or _is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: BaseException) -> str:
    """Return the text of an error without the connection object that urllib3 names first."""
    text = str(error) or type(error).__name__
    _, separator, reason = text.partition(">: ")
    return reason if separator else text


def queue_path(queue: str) -> str:
    """Return the path of a queue, which is ``channel/id``."""
    channel, _, number = queue.rpartition("/")
    return f"/queues/{urllib.parse.quote(channel, safe='')}/{urllib.parse.quote(number, safe='')}"


def query(parameters: Mapping[str, object]) -> str:
    """Return the parameters as the query of a URL."""
    return urllib.parse.urlencode(parameters, quote_via=urllib.parse.quote)


@contextmanager
def reading(what: str, url: str) -> Iterator[None]:
    """Raise `BadAnswer` if the block finds that the answer has another form than this version's."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise errors.BadAnswer(f"{url} returns {what} in another form: {error}") from error
