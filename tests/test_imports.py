"""Layers and cycles: reads the imports of every Rust and Python file, refuses large cycles and upward imports.

`python tests/test_imports.py` prints what it finds; it needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A facade and two files that it owns may know each other. Anything larger cannot be understood from what lies below it.
CYCLE_FILES_MAX = 3

# Larger cycles that are still being taken apart. These numbers only ever shrink; the aim is an empty table.
LARGER_FOR_NOW: dict[str, int] = {}

# Each line of the registry names the folder of a protocol, here and in `mqcore-wire`.
PROTOCOLS = set(
    re.findall(r"^ +\w+ = (\w+)::\w+,$", (ROOT / "rust/mqcore-session/src/registry.rs").read_text(), re.MULTILINE)
)

# The layers inside a crate, lowest first; a file may import from its own layer and from those before it. An entry is a
# path below `src`, without its suffix: a file, or a folder with everything in it.
LAYERS: dict[str, list[set[str]]] = {
    "mqcore-broker": [{"model"}, {"history"}, {"spans"}, {"context"}, {"queue", "routing"}, {"shard"}],
    "mqcore-journal": [
        {"error", "options", "stats", "varint"},
        {"format", "record", "storage"},
        {"catalog", "identity", "index", "notes", "scan", "writer"},
        {"following", "relocation", "state"},
        {"recovery"},
        {"journal"},
        {"compaction", "maintenance", "reading", "snapshot"},
        {"checking", "inspection"},
    ],
    "mqcore-wire": [
        {"error", "codec"},
        (PROTOCOLS | {"zmtp"}) - {"eventmq"},
        {"eventmq"},  # travels inside ZMTP
    ],
    "mqcore-session": [
        # Interfaces between sessions, the broker and the server.
        {"extension", "job_figures", "listener", "message_id", "node", "permission", "request_error", "session"},
        # One folder for each protocol, and the interface that each implements.
        PROTOCOLS | {"protocol", "forwards", "jobs", "schedules", "uplink"},
        {"registry", "any"},
    ],
    "mqcore-client": [
        {"counters", "error", "models", "random", "received", "state", "micromessage", "mqks"},
        {"address", "mailbox", "message_id"},
        {"config", "consumption", "request", "throttr/address", "throttr/pushes"},
        # Protocols as state machines, without a socket, and how to reach a server.
        {"confirmations", "conversation", "dial", "route", "socket_writer", "standing", "waiter"}
        | {"micromessage/greeting", "mqks/greeting"}
        | {"micromessage/conversation", "mqks/conversation", "throttr/conversation"},
        {"dialogue", "throttr"},
        {"shared", "immediate", "lingering", "membership", "pending", "post"},
        {"connection"},
        {"client"},
        # Operations of a client.
        {"admin", "consume", "direct", "event", "publish", "publish_now", "pull", "pull_stream"}
        | {"micromessage/operations", "mqks/operations"},
    ],
    "mqcore-server": [
        # Modules without imports, and configuration.
        {"runtime", "spans", "shard/count", "stats/counter", "stats/failures", "stats/tasks", "stats/totals"}
        | {"attention/finding", "attention/text"}
        | {"config/error", "config/address", "config/backup", "config/history"},
        {
            "storage/loss",
            "storage/manifest",
            "storage/parts",
            "storage/data_dir",
            "authority/audit",
            "authority/port",
            "authority/store",
            "authority/config",
        },
        {"nodes/filter", "nodes/config", "net/guard", "extension", "handler", "server/error", "config"},
        # State that all tasks share, and the hub that holds it.
        {"stats/counters", "net/outbox", "net/registry", "net/handshakes", "net/input_budget", "net/tls", "shard/inbox"}
        | {"authority/state", "shard/statistics", "attention/state", "attention/rates"}
        | {"shard/program", "schedules/end", "schedules/port"}
        | {"storage/inspection", "storage/backup", "nodes/store", "nodes/forwarder", "nodes/membership"},
        {"hub"},
        # Tasks and threads.
        {"attention", "authority", "limits", "nodes", "schedules", "stats", "storage"},
        {"shard"},
        {"net"},
        {"admin"},
        # Tests of connections start a server.
        {"server", "net/connection/tests"},
    ],
}

Graph = dict[str, set[str]]


def rust_code(path: Path) -> str:
    """A Rust file without comments, strings' contents and its test modules."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    return re.split(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([a-z]+\))?\s+)?mod \w+ \{", text, maxsplit=1)[0]


def rust_modules(source: Path) -> dict[tuple[str, ...], Path]:
    """Every module of a crate by its path: `("tmqp", "publish")` for `src/tmqp/publish.rs`."""
    modules: dict[tuple[str, ...], Path] = {}
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[-1] in {"mod", "lib", "main"}:
            parts = parts[:-1]
        modules[parts] = path
    return modules


def use_paths(code: str) -> Iterator[str]:
    """Each path that a file names, `use` trees expanded: `use crate::{a::B, c}` gives `crate::a::B` and `crate::c`."""

    def expand(prefix: str, tree: str) -> Iterator[str]:
        depth, start = 0, 0
        for place, character in enumerate(tree + ","):
            depth += (character == "{") - (character == "}")
            if character != "," or depth:
                continue
            item = tree[start:place].strip()
            start = place + 1
            head, brace, rest = item.partition("{")
            if brace:
                yield from expand(prefix + head, rest.rsplit("}", 1)[0])
            elif item:
                yield prefix + re.split(r"\s+as\s+", item)[0]

    for tree in re.findall(r"\buse\s+((?:crate|super|self)::[^;]+);", code):
        yield from expand("", re.sub(r"\s+", " ", tree).replace(" ", ""))
    yield from re.findall(r"\b((?:crate|super)(?:::\w+)+)", re.sub(r"\buse\s+[^;]+;", "", code))


def rust_graph(source: Path) -> Graph:
    """Which files of a crate import which. Declaring a module imports nothing."""
    modules = rust_modules(source)
    graph: Graph = {str(path.relative_to(source)): set() for path in modules.values()}
    for module, path in modules.items():
        name = str(path.relative_to(source))
        for used in use_paths(rust_code(path)):
            parts = used.split("::")
            base: tuple[str, ...] = ()
            while parts and parts[0] in {"crate", "self", "super"}:
                step = parts.pop(0)
                if step == "crate":
                    base = ()
                elif step == "self":
                    base = module
                else:
                    base = (base or module)[:-1]
            full = base + tuple(part for part in parts if part not in {"*", "self"})
            target = next((full[:n] for n in range(len(full), -1, -1) if full[:n] in modules), ())
            found = modules.get(target)
            if found is not None and found != path:
                graph[name].add(str(found.relative_to(source)))
    return graph


def python_graph(package: Path) -> Graph:
    """Which modules of a package import which, those inside functions and for type checking included."""
    base = package.parent
    modules: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        dotted = ".".join(path.relative_to(base).with_suffix("").parts)
        modules[dotted.removesuffix(".__init__")] = str(path.relative_to(package))
    # The extension module is compiled: importing it from its package does not import the package's front page.
    compiled = {".".join(path.relative_to(base).with_suffix("").parts) for path in package.rglob("*.pyi")}
    graph: Graph = {name: set() for name in modules.values()}
    for dotted, name in modules.items():
        for node in ast.walk(ast.parse((package / name).read_text())):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                targets = [
                    joined if (joined := f"{node.module}.{alias.name}") in modules else node.module
                    for alias in node.names
                    if f"{node.module}.{alias.name}" not in compiled
                ]
            graph[name] |= {modules[target] for target in targets if target in modules and target != dotted}
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of files that all reach each other (Tarjan's algorithm), largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            place = stack.index(node)
            group, stack[place:] = stack[place:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(groups, key=len, reverse=True)


def layer_of(name: str, layers: list[set[str]]) -> int | None:
    """The number of the layer that a file is in; `None` for files, such as `lib.rs`, that are in none."""
    parts = Path(name).with_suffix("").parts
    for length in range(len(parts), 0, -1):  # the entry that names the file most exactly
        for number, entries in enumerate(layers):
            if "/".join(parts[:length]) in entries:
                return number
    return None


def upward_imports(graph: Graph, layers: list[set[str]]) -> list[str]:
    """Imports from a lower layer of a higher one, and files of a layered crate that are in no layer."""
    found = []
    for name, targets in sorted(graph.items()):
        own = layer_of(name, layers)
        if own is None:
            if name != "lib.rs":
                found.append(f"{name} is in no layer")
            continue
        for target in sorted(targets):
            other = layer_of(target, layers)
            if other is not None and other > own:
                found.append(f"{name} imports {target}, which is above it")
    return found


@functools.cache
def graphs() -> dict[str, Graph]:
    """The import graph of each crate and of each Python package."""
    crates = sorted(path.parent for path in ROOT.glob("rust/*/Cargo.toml"))
    found = {crate.name: rust_graph(crate / "src") for crate in crates}
    found["python/mqcore"] = python_graph(ROOT / "python" / "mqcore")
    return found


def large_cycles(allowed: Mapping[str, int]) -> list[str]:
    """A line for each cycle that exceeds its limit."""
    return [
        f"{place}: {len(group)} files import each other: {', '.join(group)}"
        for place, graph in graphs().items()
        for group in cycles(graph)
        if len(group) > allowed.get(place, CYCLE_FILES_MAX)
    ]


def test_import_cycles_stay_small() -> None:
    assert not large_cycles(LARGER_FOR_NOW)


def test_lower_layers_do_not_import_higher_ones() -> None:
    known = graphs()
    assert not [
        f"{place}: {problem}" for place, layers in LAYERS.items() for problem in upward_imports(known[place], layers)
    ]


def test_the_reader_finds_planted_cycles_and_upward_imports(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "lib.rs").write_text("mod a;\nmod b;\nmod d;\n")
    (tmp_path / "a.rs").write_text("use crate::{b::c::X, d::{self, Y}};\n")
    (tmp_path / "b" / "mod.rs").write_text("pub mod c;\n// use crate::d::Hidden;\n")
    (tmp_path / "b" / "c.rs").write_text("use super::super::d::Y;\nfn f() { crate::a::g() }\n")
    (tmp_path / "d.rs").write_text("#[cfg(test)]\nmod tests {\n    use crate::a::g;\n}\n")
    graph = rust_graph(tmp_path)
    assert graph == {
        "lib.rs": set(),
        "a.rs": {"b/c.rs", "d.rs"},
        "b/mod.rs": set(),
        "b/c.rs": {"d.rs", "a.rs"},
        "d.rs": set(),
    }
    assert cycles(graph) == [["a.rs", "b/c.rs"]]
    layers = [{"b"}, {"a", "d"}]
    assert upward_imports(graph, layers) == [
        "b/c.rs imports a.rs, which is above it",
        "b/c.rs imports d.rs, which is above it",
    ]


if __name__ == "__main__":
    found = [f"{cycle}\n" for cycle in large_cycles({})]
    for place, layers in LAYERS.items():
        found += [f"{place}: {problem}" for problem in upward_imports(graphs()[place], layers)]
    for line in found:
        sys.stdout.write(f"{line}\n")
    sys.exit(bool(found))
