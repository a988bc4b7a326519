"""Log lines on stderr, as text for people or as JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
import time

__all__ = ["set_up"]


def set_up(style: str | None) -> None:
    """Write all log records from level INFO to stderr, in the style `console` or `json`.

    `None` chooses `console` if stderr is a terminal, else `json`.
    """
    chosen = style or ("console" if sys.stderr.isatty() else "json")
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if chosen == "json" else _Console())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class _Console(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s  %(message)s", "%H:%M:%S")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
