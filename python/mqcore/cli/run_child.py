"""A process of `mqcore run --workers N`. The first line of its stdin is the JSON of its settings."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the app, and exit with the exit code of `mqcore run`."""
    from mqcore.cli.program import reporting

    line = sys.stdin.readline()
    if not line:
        # The parent was killed before it could write the settings.
        return
    settings: dict[str, Any] = json.loads(line)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.exit(reporting(lambda: _serve(settings)))


def _serve(settings: dict[str, Any]) -> int:
    from mqcore.cli import log
    from mqcore.cli.run import load, serve

    log.set_up(settings["log_format"])
    app = load(settings["app"])
    return serve(app, broker=settings["broker"], token=settings["token"], drain_timeout=settings["drain_timeout"])


def _stop_with_parent() -> None:
    """Drain when the other end of stdin closes, which it does if the parent is killed."""
    # The buffered reader would hold a lock that Python needs when it ends.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
