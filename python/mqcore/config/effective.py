"""The settings that a broker uses, each with where its value comes from."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Any, Final

from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS
from mqcore.config import broker
from mqcore.config.broker import BrokerConfig, Layer
from mqcore.config.checking import place
from mqcore.config.convert import is_function, keys
from mqcore.config.queues import ChannelDeclaration, ChannelOptions, QueueDeclaration, QueueOptions
from mqcore.config.toml_lines import Path, key_lines, line_of

__all__ = ["HIDDEN", "Setting", "redacted", "settings"]

HIDDEN: Final = "***"
"""Shown instead of a secret."""

_INHERITED: Final = {
    ChannelOptions: {option.name: option.default for option in CHANNEL_OPTIONS},
    QueueOptions: {option.name: option.default for option in QUEUE_OPTIONS},
}
"""Defaults of the broker for options that nothing sets."""

_WRITTEN: Final = {"channels": "channel", "queues": "queue", "routers": "router", "bindings": "binding"}
"""Names in a file of fields that are lists of tables."""

_INNER_LISTS: Final = {"routers", "bindings"}
"""Those of them whose names `convert.build` replaces."""

_USER_INFORMATION: Final = re.compile(r"(?<=://)[^/?\s\"']*@")
_SECRET_PARAMETER: Final = re.compile(r"(?<=[?&])(token|password)=[^&\s\"']*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting and the origin of its value."""

    name: str
    """Its name in a file: ``channel_defaults.queue.status``."""
    value: Any
    """A plain value; ``***`` for a secret."""
    kind: str
    """``flag``, ``environment``, ``file`` or ``default``."""
    source: str | None
    """The flag, the variable or the file; ``None`` for a default."""
    line: int | None = None
    """The line in the file."""

    @property
    def origin(self) -> str:
        """The origin in one text: ``mqcore.toml:3``."""
        if self.source is None:
            return self.kind
        return self.source if self.line is None else f"{self.source}:{self.line}"


def settings(
    file: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    flag_names: Mapping[Path, str],
    default_listeners: tuple[str, ...],
) -> list[Setting]:
    """Return the settings of a broker that is started with a file, an environment and flags.

    `flag_names` has the flag for each path of a field. Raises `ConfigError`.
    """
    config = BrokerConfig.load(file, environ=environ, **flags)
    found = _Origins(file, broker.layers(file, environ, flags), flag_names)
    if not config.listen and not config.listener:
        config = dataclasses.replace(config, listen=default_listeners)
    return [found.setting(path, value) for path, value in _leaves(config, ())]


class _Origins:
    """Finds where a value comes from: in the last of the layers that has it."""

    def __init__(
        self, file: str | os.PathLike[str] | None, layers: tuple[Layer, ...], flag_names: Mapping[Path, str]
    ) -> None:
        self._file = None if file is None else os.fspath(file)
        self._layers = layers
        self._flag_names = flag_names
        self._lines = {} if file is None else key_lines(FilePath(file).read_text(encoding="utf-8"))

    def setting(self, path: Path, value: Any) -> Setting:
        """Return the setting of a field."""
        name = place(_in_file(path))
        for layer in reversed(self._layers):
            reached = _reached(layer.settings, path)
            if reached is None:
                continue
            if layer.kind == "flag":
                return Setting(name=name, value=value, kind="flag", source=self._flag(reached))
            written = _as_written(reached, layer)
            if layer.kind == "environment":
                return Setting(name=name, value=value, kind="environment", source=_variable(written))
            return Setting(name=name, value=value, kind="file", source=self._file, line=line_of(written, self._lines))
        return Setting(name=name, value=value, kind="default", source=None)

    def _flag(self, path: Path) -> str | None:
        return next(self._flag_names[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._flag_names)


def _leaves(options: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Return each value of options without inner ones, and what it shows."""
    if isinstance(options, ChannelDeclaration | QueueDeclaration):
        yield (*path, "name"), options.name
        # Options that are not given are inherited.
        yield from ((at, value) for at, value in _inner(options.options, path) if value is not None)
        return
    yield from _inner(options, path, is_declared=bool(path) and isinstance(path[-1], int))


def _inner(options: Any, path: Path, *, is_declared: bool = True) -> Iterator[tuple[Path, Any]]:
    known = keys(type(options))
    for entry in dataclasses.fields(options):
        if is_function(known[entry.name].hint):
            continue
        value, at = getattr(options, entry.name), (*path, entry.name)
        if dataclasses.is_dataclass(value):
            yield from _inner(value, at, is_declared=is_declared)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for position, inner in enumerate(value):
                yield from _leaves(inner, (*at, position))
        elif value is None and not is_declared:
            yield at, _INHERITED.get(type(options), {}).get(entry.name)
        else:
            yield at, _plain(value, is_secret=not entry.repr)


def _plain(value: Any, *, is_secret: bool) -> Any:
    if is_secret and value is not None:
        return HIDDEN
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple):
        return [_plain(each, is_secret=False) for each in value]
    return redacted(str(value)) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """Hide the credentials of URLs in a text."""
    return _SECRET_PARAMETER.sub(rf"\1={HIDDEN}", _USER_INFORMATION.sub(f"{HIDDEN}@", text))


def _reached(tree: Any, path: Path) -> Path | None:
    """Return the part of a path at which a layer has a value; `None` if it has none."""
    for number, key in enumerate(path):
        if isinstance(tree, Mapping):
            # The layers have the names of fields on top, and inside those that were written.
            name = _WRITTEN[str(key)] if key in _INNER_LISTS and key not in tree else key
            if name not in tree:
                return None
            tree = tree[name]
        elif isinstance(tree, list | tuple) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return path[:number]
    return path


def _as_written(path: Path, layer: Layer) -> Path:
    """Return a path with the names that a document uses."""
    if path[:2] == ("node", "upstreams") and "upstream" in layer.document:
        return ("upstream", *path[2:])
    if path[0] == "channel" and "channel_defaults" in layer.document:
        return ("channel_defaults", *path[1:])
    tree: Any = layer.document
    written: Path = ()
    for key in path:
        if isinstance(tree, Mapping) and key not in tree and key in _WRITTEN:
            key = _WRITTEN[str(key)]
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return (*written, key)
        written = (*written, key)
    return written


def _in_file(path: Path) -> Path:
    """Return a path with the names that files of this version use."""
    if path[:2] == ("node", "upstreams") and len(path) > 2:
        return ("upstream", *path[2:])
    first = "channel_defaults" if path[0] == "channel" else path[0]
    named = (first, *path[1:])
    is_list = [number + 1 < len(named) and isinstance(named[number + 1], int) for number in range(len(named))]
    return tuple(_WRITTEN.get(str(key), key) if several else key for key, several in zip(named, is_list, strict=True))


def _variable(path: Path) -> str:
    return "MQCORE_" + "__".join(str(key) for key in path if isinstance(key, str)).upper()
