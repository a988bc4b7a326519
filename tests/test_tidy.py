"""Rules that keep the house in order, as tests: walls between crates, stubs, links, locks, first lines."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from served import ROOT

CRATES = sorted(path.parent for path in ROOT.glob("rust/*/Cargo.toml"))

# Names that the crates below the server must not use; only the journal may use files.
NO_RUNTIME_NO_CLOCK = r"tokio|pyo3|std::net|std::thread|std::process|std::env|Instant|SystemTime|println!|eprintln!"
FORBIDDEN = {
    "mqcore-wire": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-broker": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-session": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-authority": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-limiter": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-scheduler": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-journal": rf"\b({NO_RUNTIME_NO_CLOCK})\b",
    "mqcore-archive": rf"\b({NO_RUNTIME_NO_CLOCK})\b",
    # It sends requests to object stores, and its readers have a runtime for them.
    "mqcore-lake": r"\b(pyo3|std::fs|std::net|std::thread|std::process|Instant|SystemTime|println!|eprintln!)\b",
    "mqcore-cluster": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-consensus": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-state": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
    "mqcore-tls": rf"\b({NO_RUNTIME_NO_CLOCK})\b",
    "mqcore-simulator": rf"\b({NO_RUNTIME_NO_CLOCK}|std::fs)\b",
}

# Which of our crates each crate may depend on. Everything points down; what is not listed may depend on none.
MAY_KNOW = {
    "mqcore-wire": set(),
    "mqcore-broker": set(),
    "mqcore-journal": set(),
    "mqcore-archive": {"mqcore-broker", "mqcore-journal"},
    "mqcore-lake": {"mqcore-archive", "mqcore-journal"},
    "mqcore-authority": set(),
    "mqcore-cluster": {"mqcore-wire"},
    "mqcore-consensus": {"mqcore-journal"},
    "mqcore-replication": {"mqcore-consensus", "mqcore-journal", "mqcore-tls"},
    "mqcore-limiter": set(),
    "mqcore-scheduler": set(),
    "mqcore-tls": set(),
    "mqcore-testkit": set(),
    "mqcore-session": {"mqcore-wire", "mqcore-broker", "mqcore-cluster", "mqcore-limiter"},
    "mqcore-state": {"mqcore-broker", "mqcore-journal", "mqcore-limiter", "mqcore-scheduler", "mqcore-session"},
    "mqcore-server": {
        "mqcore-wire",
        "mqcore-broker",
        "mqcore-session",
        "mqcore-state",
        "mqcore-journal",
        "mqcore-archive",
        "mqcore-lake",
        "mqcore-replication",
        "mqcore-cluster",
        "mqcore-authority",
        "mqcore-limiter",
        "mqcore-scheduler",
        "mqcore-tls",
    },
    "mqcore-client": {"mqcore-wire", "mqcore-tls"},
    "mqcore-simulator": {
        "mqcore-wire",
        "mqcore-broker",
        "mqcore-session",
        "mqcore-state",
        "mqcore-journal",
        "mqcore-limiter",
        "mqcore-scheduler",
        "mqcore-testkit",
    },
    "mqcore-python": {
        "mqcore-wire",
        "mqcore-broker",
        "mqcore-session",
        "mqcore-server",
        "mqcore-replication",
        "mqcore-client",
        "mqcore-limiter",
    },
}

# External crates that only these crates may use.
ONLY_IN = {
    "tokio": {"mqcore-lake", "mqcore-replication", "mqcore-server", "mqcore-client", "mqcore-python"},
    "axum": {"mqcore-server"},
    "rustls": {"mqcore-tls", "mqcore-lake"},
    "sqlx": {"mqcore-lake"},
    "tokio-rustls": {"mqcore-replication", "mqcore-server", "mqcore-client"},
    "pyo3": {"mqcore-python"},
    "pyo3-asyncio": {"mqcore-python"},
}


def tracked(*suffixes: str) -> list[Path]:
    """Files of the project: those that git knows, or would if they were added; all of them outside a clone."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        files = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        files = [path for path in ROOT.rglob("*") if not {"target", ".venv", ".git"} & set(path.parts)]
    return sorted(path for path in files if path.suffix in suffixes and path.is_file())


def crate_name(crate: Path) -> str:
    return str(tomllib.loads((crate / "Cargo.toml").read_text())["package"]["name"])


def rust_code(path: Path) -> str:
    """A Rust file without its comments and its `#[cfg(test)]` modules, which may do what they like."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return text.split("#[cfg(test)]\nmod tests", maxsplit=1)[0]


@pytest.mark.parametrize("crate", sorted(FORBIDDEN))
def test_a_crate_below_the_server_names_no_runtime_no_socket_and_no_clock(crate: str) -> None:
    # Tests may use files.
    sources = sorted(path for path in (ROOT / "rust" / crate / "src").rglob("*.rs") if path.name != "tests.rs")
    assert sources
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in sources
        if (match := re.search(FORBIDDEN[crate], rust_code(path)))
    ]
    assert not found


def test_crates_depend_downwards_only() -> None:
    names = {crate_name(crate) for crate in CRATES}
    assert names == set(MAY_KNOW), "a new crate needs its place in the picture of ARCHITECTURE.md and a line here"
    for crate in CRATES:
        manifest = tomllib.loads((crate / "Cargo.toml").read_text())
        known = set(manifest.get("dependencies", {}))
        ours = known & names
        assert ours <= MAY_KNOW[crate_name(crate)], f"{crate.name} may not depend on {ours - MAY_KNOW[crate.name]}"
        for outsider, rooms in ONLY_IN.items():
            assert outsider not in known or crate.name in rooms, f"{crate.name} may not depend on {outsider}"


# Types whose name occurs twice although it has one meaning, and why.
SHARED_TYPE_NAMES = {
    # The client does not depend on the broker, so it defines its own half of what both say to each other.
    "both ends of one connection": {
        *("Binding", "ChannelInformation", "ChannelOptions", "Clear", "Client", "ClientInformation", "Event"),
        *("EventKind", "EventScope", "Interaction", "MessageId", "NodeInformation", "QueueAddress"),
        *("QueueInformation", "QueueOptions", "Request", "Subject", "Target"),
    },
    # Two protocols' documents use the word; code names the module: `tmqp::Frame`, `micromessage::Frame`.
    "one word of two protocols": {"Frame"},
    # The encoded form and the store's form of one value.
    "wire form and stored form": {"Rule", "Ttl"},
    # The class that Python programs see, and the type behind it.
    "Python class and its core": {"Broker"},
}


def test_a_public_type_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("rust/*/src/**/*.rs")):
        for name in re.findall(r"^pub (?:struct|enum|trait|type|union) (\w+)", path.read_text(), flags=re.MULTILINE):
            places.setdefault(name, []).append(str(path.relative_to(ROOT / "rust")))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    excepted = set[str]().union(*SHARED_TYPE_NAMES.values())
    assert not {name: where for name, where in twice.items() if name not in excepted}
    assert not excepted - twice.keys(), "an exception that is not needed any more"


def registered_protocols() -> dict[str, tuple[str, str]]:
    """The protocols of the registry: for each module its variant and the type that implements it."""
    registry = (ROOT / "rust/mqcore-session/src/registry.rs").read_text()
    lines = re.findall(r"^ +(\w+) = (\w+)::(\w+),$", registry, re.MULTILINE)
    return {module: (variant, factory) for variant, module, factory in lines}


def test_each_protocol_is_a_folder_a_codec_and_a_line_in_the_registry() -> None:
    protocols = registered_protocols()
    session = ROOT / "rust/mqcore-session/src"
    assert protocols.keys() == {path.parent.name for path in session.glob("*/mod.rs")}
    for module, (_, factory) in protocols.items():
        assert (ROOT / f"rust/mqcore-wire/src/{module}").is_dir(), f"{module} has no codec"
        assert f"impl ProtocolFactory for {factory}" in (session / module / "mod.rs").read_text()


def test_the_server_names_no_protocol() -> None:
    names = {name for module, (variant, _) in registered_protocols().items() for name in (variant, f"{module}::")}
    pattern = re.compile("|".join(sorted(names)))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(ROOT.glob("rust/mqcore-server/src/**/*.rs"))
        # Tests of connections need a protocol.
        if path.name != "tests.rs"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_protocols_do_not_know_each_other() -> None:
    protocols = registered_protocols()
    session = ROOT / "rust/mqcore-session/src"
    # Interfaces that one protocol provides for the rest of the program.
    interfaces = {"forwards.rs": "tmqp", "uplink.rs": "tmqp", "schedules.rs": "eventmq", "jobs.rs": "eventmq"}
    for path in sorted(session.rglob("*.rs")):
        place = path.relative_to(session)
        own = place.parts[0] if len(place.parts) > 1 else interfaces.get(place.name)
        if place.name in {"registry.rs", "lib.rs"}:
            continue
        for module in protocols.keys() - {own}:
            assert not re.search(rf"\b(crate|super|mqcore_wire)::{module}\b", path.read_text()), f"{place}: {module}"


def test_every_export_of_the_extension_module_is_in_its_stub() -> None:
    from mqcore import _core

    stub = ast.parse((ROOT / "python" / "mqcore" / "_core.pyi").read_text())
    documented = {
        name
        for node in stub.body
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
    }
    exported = {name for name in vars(_core) if not name.startswith("__")}
    assert exported
    assert exported <= documented


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_of_the_documentation_leads_somewhere() -> None:
    pages = tracked(".md")
    assert ROOT / "README.md" in pages
    broken = []
    for page in pages:
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            place = (page.parent / target).resolve() if target else page
            if not place.exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
            elif anchor and place.suffix == ".md" and anchor not in heading_anchors(place):
                broken.append(f"{page.relative_to(ROOT)}: {link} (no such heading)")
    assert not broken


def functions() -> set[str]:
    """Names of all Python and Rust functions; those of Python tests also without their prefix."""
    names = {
        name
        for path in tracked(".py", ".rs")
        for name in re.findall(r"^\s*(?:pub )?(?:async )?(?:def|fn) (\w+)", path.read_text(), flags=re.MULTILINE)
    }
    return names | {name.removeprefix("test_") for name in names}


def test_paths_named_in_the_documentation_exist() -> None:
    path_form = re.compile(r"`((?:rust|python|tests|docs|benches|fuzz|examples)/[\w./-]+)(?:::(\w+))?`")
    known = functions()
    missing = [
        f"{page.relative_to(ROOT)}: {match.group()}"
        for page in tracked(".md")
        for match in path_form.finditer(page.read_text())
        if not ((ROOT / match[1]).exists() or "NAME" in match[1]) or (match[2] and match[2] not in known)
    ]
    assert not missing


def test_each_failure_on_the_page_about_delivery_links_to_existing_tests() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text().partition("\n## Failures\n")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| failure |")]
    statuses = {"broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped"}
    assert statuses <= set(re.findall(r"`(\w+)`", "".join(row.split(" | ")[1] for row in rows)))
    link = re.compile(r"\[`((?:tests|rust)/[\w./-]+)::(\w+)`\]\(\.\./([\w./-]+)\)")
    for row in rows:
        links = link.findall(row.split(" | ")[-1])
        assert links, f"no test: {row}"
        for path, name, target in links:
            assert path == target, row
            assert re.search(rf"^(async )?(def|fn) {name}\b", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path}::{name}"
            )


@pytest.mark.parametrize("page", ["throttr", "mqks", "micromessage2"])
def test_conformance_tables_name_existing_tests(page: str) -> None:
    text = (ROOT / "docs" / "protocols" / f"{page}.md").read_text()
    rows = re.findall(r"^\| .+ \| (.+) \|$", text.partition("## Conformance")[2], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", row)}
    assert len(named) > 20
    # Dialogs of the vectors have names too.
    dialogs = (ROOT / "tests" / "vectors" / "throttr.jsonl").read_text()
    assert not {name for name in named - functions() if name not in dialogs}


def test_nothing_is_left_open_or_tied_to_one_machine() -> None:
    left_open = re.compile(
        r"\b(todo!|unimplemented!)|\b(TODO|FIXME|XXX)\b|#\[ignore|raise NotImplementedError|mark\.(skip|xfail)\b"
    )
    one_machine = re.compile(r"\.\./shared\b|/home/\w|/root/|/Users/\w|\bC:\\\\Users")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked(".rs", ".py", ".pyi", ".md", ".toml", ".yml", ".sh")
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if one_machine.search(line) or (path.suffix in {".rs", ".py", ".pyi"} and left_open.search(line))
    ]
    assert not found


def test_every_rust_file_opens_with_what_it_is_for() -> None:
    # An inner attribute such as `#![no_main]` may stand before.
    opening = re.compile(r"\A(#!\[.*\]\n|\s|// .*\n)*//! \S")
    silent = [str(path.relative_to(ROOT)) for path in tracked(".rs") if not opening.search(path.read_text())]
    assert not silent


def test_every_python_file_opens_with_what_it_is_for() -> None:
    files = tracked(".py")
    assert files
    silent = [str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_source_files_have_at_most_600_lines_or_state_why_not() -> None:
    """A longer file gives its reason in its first 15 lines; a generated one is exempt."""
    reason = re.compile(r"Longer than 600 lines because \w|[Gg]enerated (by|from)|DO NOT EDIT")
    sources = [
        *ROOT.glob("rust/*/src/**/*.rs"),
        *ROOT.glob("python/mqcore/**/*.py"),
        *ROOT.glob("python/mqcore/**/*.pyi"),
    ]
    assert sources
    lines = {str(path.relative_to(ROOT)): path.read_text().splitlines() for path in sources}
    assert not [
        f"{path}: {len(text)} lines"
        for path, text in sorted(lines.items())
        if len(text) > 600 and not reason.search(" ".join(line.lstrip("/!# ") for line in text[:15]))
    ]


def test_no_file_is_called_by_what_says_nothing() -> None:
    empty_words = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert not [path for path in tracked(".rs", ".py", ".ts") if path.stem in empty_words]


def test_locks_name_versions_and_hashes_and_no_address_to_download_from() -> None:
    names = ("test.lock", "peers.lock", "docs.lock")
    python_lock = "".join((ROOT / "requirements" / name).read_text() for name in names)
    assert "==" in python_lock
    assert "--hash=sha256:" in python_lock
    assert "://" not in python_lock
    for lock in (ROOT / "Cargo.lock", ROOT / "fuzz" / "Cargo.lock"):
        sources = set(re.findall(r'^source = "(.+)"$', lock.read_text(), flags=re.MULTILINE))
        # The registry's name is an identifier to cargo; whence crates come is each machine's configuration.
        assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}


def test_the_lock_of_the_fuzz_targets_names_every_dependency_of_our_crates() -> None:
    packages = tomllib.loads((ROOT / "fuzz" / "Cargo.lock").read_text())["package"]
    # A lock with several versions of a crate names the version, too.
    locked = {
        package["name"]: {dependency.split()[0] for dependency in package["dependencies"]}
        for package in packages
        if "dependencies" in package
    }
    missing = {}
    for crate in CRATES:
        manifest = tomllib.loads((crate / "Cargo.toml").read_text())
        needed = {
            name
            for name, terms in manifest.get("dependencies", {}).items()
            if not (isinstance(terms, dict) and terms.get("optional"))
        }
        if crate.name in locked and not locked[crate.name] >= needed:
            missing[crate.name] = needed - locked[crate.name]
    assert not missing, "run `cargo +nightly check` in fuzz"


def test_every_place_that_names_the_oldest_rust_names_the_same_one() -> None:
    oldest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"rustup toolchain install {oldest} " in workflow
    assert f"cargo +{oldest} check" in workflow
    assert set(re.findall(r"\b1\.\d\d\b", workflow)) == {oldest}
    assert f"Rust (stable, {oldest} or newer)" in (ROOT / "CONTRIBUTING.md").read_text()


def test_workflows_name_actions_by_commit_and_the_locked_maturin() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")))
    actions = re.findall(r"\buses: (.+)", text)
    assert actions
    assert not [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)]
    locked = re.findall(r"^maturin==(\S+)", (ROOT / "requirements" / "test.lock").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"maturin-version: v(\S+)", text)) == set(locked)


def test_pip_installs_a_module_without_debug_information() -> None:
    profile = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["profile"]
    settings = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"][profile]
    assert (settings["inherits"], settings["strip"], settings["debug"]) == ("release", True, False)


def test_the_extension_module_and_the_rust_tests_share_every_compiled_dependency() -> None:
    """A dependency with other features is compiled a second time, and everything above it too."""

    def features(*arguments: str) -> set[str]:
        command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {f}", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
        lines = {line.removesuffix(" (*)") for line in result.stdout.splitlines()}
        return {line for line in lines if not line.startswith("mqcore-python ")}

    extension = features("--package", "mqcore-python", "--features", "shared-with-tests", "--edges", "normal,build")
    assert extension - features("--edges", "normal,build,dev") == set()


def test_the_changelog_mentions_the_version() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_opens_with_the_two_commands() -> None:
    head = (ROOT / "README.md").read_text()[:600]
    assert "make demo" in head
    assert "make test" in head


@pytest.mark.parametrize("options", ["BrokerConfig", "ChannelOptions", "QueueOptions", "ClientOptions"])
def test_every_option_is_in_the_documentation_of_the_configuration(options: str) -> None:
    import dataclasses

    import mqcore.client

    text = (ROOT / "docs" / "configuration.md").read_text()
    inner = {"channel", "queue"}
    home = mqcore.client if options == "ClientOptions" else mqcore
    names = {field.name for field in dataclasses.fields(getattr(home, options))} - inner
    assert names
    assert not [name for name in sorted(names) if f"| `{name}` |" not in text]


def test_every_command_is_in_the_documentation_of_the_command_line() -> None:
    import click

    from mqcore.cli.program import root

    text = (ROOT / "docs" / "cli.md").read_text()
    program = root()
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert f"`mqcore {name}" in text, name
        for child in getattr(command, "commands", {}):
            assert f"`mqcore {name} {child}`" in text or f"`{child}`" in text or f"mqcore {name} {child} " in text
