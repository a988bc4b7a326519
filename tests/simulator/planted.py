"""Reintroduces repaired bugs one by one, and looks how many seeds of the simulator find each: `make simulate-planted`.

It copies the project, adds all bugs to the copy, each behind a condition on an environment variable, and builds the
simulator there once. The sources of the project stay as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from promises.planted import VARIABLE, Bug, copied, plant

SEEDS: Final = 10_000
"""Seeds within which each bug has to be found."""

BUGS: Final = (
    Bug(
        "unsynced-confirmation",
        "the broker confirms a message that is written and not synced",
        "rust/mqcore-broker/src/context/commits.rs",
        "let list = if durability == Durability::Fsync { &mut self.synced }",
        "let list = if durability == Durability::Fsync && !CONDITION { &mut self.synced }",
    ),
    Bug(
        "unsynced-name",
        "the journal writes to a new segment whose name is not synced",
        "rust/mqcore-journal/src/journal/append.rs",
        "self.sync_directory()?;\n        Ok(Spare {",
        "if !CONDITION { self.sync_directory()?; }\n        Ok(Spare {",
    ),
    Bug(
        "forgotten-redelivery",
        "the broker drops what a lost consumer had in flight",
        "rust/mqcore-broker/src/queue/settlement.rs",
        "if outcome.retry() == Some(Retry::Never) {",
        "if outcome.retry() == Some(Retry::Never)\n"
        "|| (CONDITION && matches!(outcome, DeliveryOutcome::ConsumerLost)) {",
    ),
    Bug(
        "forgotten-settlement",
        "the broker does not record that a message was settled",
        "rust/mqcore-broker/src/queue/requeue.rs",
        "context.record(Record::Settle(entry.sequence));\n        }\n        notify_dequeued",
        "if !CONDITION { context.record(Record::Settle(entry.sequence)); }\n        }\n        notify_dequeued",
    ),
    Bug(
        "credit-leak",
        "a settled message keeps its place in the prefetch of its consumer",
        "rust/mqcore-broker/src/queue/delivery.rs",
        "self.unreserve(&delivery.consumer);\n        if !self.extended",
        "if !CONDITION || delivery.serial % 8 != 0 { self.unreserve(&delivery.consumer); }\n        if !self.extended",
    ),
    Bug(
        "ignored-prefetch",
        "the broker ignores the prefetch of consumers",
        "rust/mqcore-broker/src/queue/members.rs",
        "let terms = Terms { window: prefetch, ..Terms::default() };",
        "let terms = Terms { window: if CONDITION { 0 } else { prefetch }, ..Terms::default() };",
    ),
    Bug(
        "forgotten-record",
        "a restart forgets one of several saved messages",
        "rust/mqcore-broker/src/model/recovery.rs",
        "self.messages.sort_unstable_by_key(|message| message.sequence);\n        self.messages.dedup",
        "self.messages.sort_unstable_by_key(|message| message.sequence);\n"
        "        if CONDITION && self.messages.len() > 2 {\n            self.messages.remove(1);\n        }\n"
        "        self.messages.dedup",
    ),
    Bug(
        "forgotten-delay",
        "a restart delivers a delayed message at once",
        "rust/mqcore-broker/src/queue/admission.rs",
        "let not_before = progress.not_before.max(terms.not_before);",
        "let not_before = if CONDITION { progress.not_before } else { progress.not_before.max(terms.not_before) };",
    ),
    Bug(
        "forgotten-dead-letter",
        "a queue forgets its dead letter before the dead-letter queue has saved it",
        "rust/mqcore-broker/src/queue/arriving.rs",
        "context.state.commits.wait(Durability::Fsync, Awaiting::Transfer(Box::new(end)));",
        "if CONDITION { context.effects.push(Effect::Transferred(Box::new(end))); }\n"
        "else { context.state.commits.wait(Durability::Fsync, Awaiting::Transfer(Box::new(end))); }",
    ),
    Bug(
        "ignored-expiry",
        "the broker ignores when a message expires",
        "rust/mqcore-broker/src/queue/admission.rs",
        "self.deadline(now.max(terms.not_before(now))).min(terms.expires(now))",
        "if CONDITION { return self.deadline(now); }\n"
        "        self.deadline(now.max(terms.not_before(now))).min(terms.expires(now))",
    ),
    Bug(
        "early-topic-confirmation",
        "a topic is confirmed when the first of its queues has saved its copy",
        "rust/mqcore-broker/src/context/confirmations.rs",
        "if pending.copies_left > 0 {\n            return None;",
        "if pending.copies_left > 0 && !CONDITION {\n            return None;",
    ),
    Bug(
        "unsaved-binding",
        "the broker does not record that a queue was bound to a topic",
        "rust/mqcore-broker/src/shard/requests.rs",
        "context.record(Record::BindTopic(pattern, queue));",
        "if !CONDITION { context.record(Record::BindTopic(pattern, queue)); }",
    ),
    Bug(
        "second-route",
        "a router that chooses one binding continues after a queue took the message",
        "rust/mqcore-broker/src/model/route.rs",
        "if took && self.plan.method != RouterMethod::Distribute {",
        "if took && self.plan.method != RouterMethod::Distribute && !CONDITION {",
    ),
    Bug(
        "forgotten-id",
        "a restart forgets the ids by which a queue recognizes duplicates",
        "rust/mqcore-broker/src/queue/recent.rs",
        "if until > context.now && self.remembers_ids() {",
        "if until > context.now && self.remembers_ids() && !CONDITION {",
    ),
    Bug(
        "forgotten-step",
        "a restart forgets jobs of flows that were not confirmed",
        "rust/mqcore-state/src/jobs/ledger.rs",
        "self.begun.push_back(job);\n        }\n        for number in self.flows.numbers()",
        "if !CONDITION { self.begun.push_back(job); }\n        }\n        for number in self.flows.numbers()",
    ),
    Bug(
        "forgotten-cancellation",
        "a restart forgets which jobs are cancelled",
        "rust/mqcore-state/src/jobs/ledger.rs",
        "for kept in self.results.values().filter(|kept| kept.result.end == JobEnd::Cancelled) {",
        "for kept in self.results.values().filter(|kept| kept.result.end == JobEnd::Cancelled && !CONDITION) {",
    ),
    Bug(
        "replaced-result",
        "another run of a job that has succeeded replaces its result",
        "rust/mqcore-state/src/jobs/ledger.rs",
        "kept.result.end != JobEnd::Failed && kept.result.queue",
        "kept.result.end != JobEnd::Failed && !(CONDITION && kept.result.end == JobEnd::Done) && kept.result.queue",
    ),
    Bug(
        "unsaved-result",
        "clients hear results that are not saved yet",
        "rust/mqcore-state/src/schedules/rounds.rs",
        "if self.has_failed { Ok(()) } else { self.keeper.sync() }",
        "if self.has_failed || CONDITION { Ok(()) } else { self.keeper.sync() }",
    ),
    Bug(
        "lost-job",
        "a guaranteed job is lost with its worker",
        "rust/mqcore-session/src/eventmq/job.rs",
        "self.wishes.guarantee || self.wishes.retry_count > 0",
        "(self.wishes.guarantee && !CONDITION) || self.wishes.retry_count > 0",
    ),
    Bug(
        "clock-expires",
        "a clock that was set forward by more than an hour expires messages that have no expiry",
        "rust/mqcore-broker/src/queue/admission.rs",
        "paged_out.deadline = self.deadline(since).min(terms.expires);",
        "paged_out.deadline = self.deadline(since).min(terms.expires);\n"
        "        if CONDITION { paged_out.deadline = since.after(std::time::Duration::from_secs(3600)); }",
    ),
    Bug(
        "unsynced-limits",
        "limits are written and not synced",
        "rust/mqcore-state/src/limits.rs",
        "if std::mem::take(&mut self.is_unsynced) {",
        "if std::mem::take(&mut self.is_unsynced) && !CONDITION {",
    ),
    Bug(
        "forgotten-limit",
        "only the first state of each limit is saved",
        "rust/mqcore-state/src/limits.rs",
        "                EntryChange::Put(kept) => {\n",
        "                EntryChange::Put(kept) if CONDITION && self.places.contains_key(&kept.sequence) => {}\n"
        "                EntryChange::Put(kept) => {\n",
    ),
    Bug(
        "unsaved-limit-after-jump",
        "limits are not saved after a start with a clock that was set back",
        "rust/mqcore-state/src/limits.rs",
        "if was_set_back {\n            // All entries",
        "if was_set_back && !CONDITION {\n            // All entries",
    ),
    Bug(
        "unsaved-run",
        "a run of a schedule is sent to its queue and not saved, so that a crash sends it again as another one",
        "rust/mqcore-state/src/schedules/keeper.rs",
        "Some(state) if current => store.touch(run.schedule, &state)?,",
        "Some(state) if current && !CONDITION => store.touch(run.schedule, &state)?,",
    ),
    Bug(
        "forgotten-run",
        "a start forgets the runs that no queue has confirmed",
        "rust/mqcore-state/src/schedules/keeper.rs",
        "keeper.send(kept.number, kept.run);",
        "if !CONDITION { keeper.send(kept.number, kept.run); }",
    ),
    Bug(
        "stuck-clock",
        "schedules do not follow a clock that is set back while the broker runs",
        "rust/mqcore-state/src/schedules/rounds.rs",
        "self.keeper.set_back(terms.system_ms);",
        "if !CONDITION { self.keeper.set_back(terms.system_ms); }",
    ),
    Bug(
        "endless-question",
        "the broker waits for ever for a delivery handler that does not decide",
        "rust/mqcore-broker/src/shard/work.rs",
        "while let Some(question) = context.state.questions.overdue(context.now) {",
        "while let Some(question) = context.state.questions.overdue(context.now).filter(|_| !CONDITION) {",
    ),
    Bug(
        "forgotten-number",
        "a restart forgets which messages of downstream brokers are saved",
        "rust/mqcore-broker/src/shard/recovery.rs",
        "context.state.intake.restore_saved(ticket);",
        "if !CONDITION { context.state.intake.restore_saved(ticket); }",
    ),
    Bug(
        "confirmed-deferral",
        "the broker confirms a downstream broker's message that a full disk refuses",
        "rust/mqcore-broker/src/context/mod.rs",
        "rejection.filter(|rejection| rejection.kind == RejectionKind::Busy)",
        "rejection.filter(|rejection| rejection.kind == RejectionKind::Busy && !CONDITION)",
    ),
    Bug(
        "hidden-damage",
        "a start does not report records that the disk has damaged",
        "rust/mqcore-journal/src/recovery/report.rs",
        "pub fn is_alarming(&self) -> bool {",
        "pub fn is_alarming(&self) -> bool {\n        if CONDITION { return false; }",
    ),
)


def build(project: Path) -> Path:
    """Build the simulator of a copy, and return its path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
    command = ["cargo", "build", "--locked", "--package", "mqcore-simulator"]
    subprocess.run(command, cwd=project, env={**os.environ, "CARGO_TARGET_DIR": str(target)}, check=True)
    built = project / "simulate"
    built.write_bytes((target / "debug" / ("simulate.exe" if os.name == "nt" else "simulate")).read_bytes())
    built.chmod(0o755)
    return built


def search(simulator: Path, bug: Bug, seeds: int) -> tuple[bool, str]:
    """Run seeds until one finds the bug; whether one did, and the line that reports it."""
    done = subprocess.run(
        [simulator, "--first", "0", "--seeds", str(seeds)],
        env={**os.environ, VARIABLE: bug.name},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    finding = next((line for line in lines if line.startswith("seed ")), lines[-1] if lines else "no output")
    return done.returncode == 1 and finding.startswith("seed "), finding


def run(bugs: tuple[Bug, ...] = BUGS, seeds: int = SEEDS) -> list[str]:
    """Look for bugs, and return the names of those that no seed finds."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="simulator-planted-") as directory:
        project = copied(Path(directory))
        plant(project, bugs)
        simulator = build(project)
        for bug in bugs:
            began = time.monotonic()
            found, line = search(simulator, bug, seeds)
            print(f"{bug.name}: {'found' if found else 'MISSED'} after {time.monotonic() - began:.1f} s: {line}")
            sys.stdout.flush()
            missed += [] if found else [bug.name]
    return missed


if __name__ == "__main__":
    sys.exit(1 if run() else 0)
