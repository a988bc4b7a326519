"""The program `mqcore`: one module per noun; each command imports only what it needs.

`mqcore --help` loads click and this package alone: neither rich, nor the network, nor the extension module. Modules
here import those inside the functions that use them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program with the arguments of this process and exit with its exit code."""
    from mqcore.cli.program import run

    sys.exit(run(sys.argv[1:]))
