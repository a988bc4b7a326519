"""Which tests run in which process, and what happens to them when a process dies."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Tests that must not run beside each other, by what they share: a Spark session (one serves all tests of a group),
# memory for programs that start a Spark of their own, environments that are installed once, and interfaces of the
# machine. Folders, files and tests, relative to this folder; the first match decides.
GROUPS = {
    "spark programs": (
        "spark/test_cluster.py",
        "spark/test_connect.py::test_connect_reads_follows_and_writes",
        "spark/test_jvm.py",
        "spark/test_kills.py",
        "spark/test_program.py::test_the_program_runs",
        "spark/test_versions.py",
    ),
    # These need no session.
    "spark ledger": (
        "spark/test_admission.py",
        "spark/test_charts.py",
        "spark/test_engine.py",
        "spark/test_ledger.py",
        "spark/test_ledger_publisher.py",
        "spark/test_options.py",
        "spark/test_origin.py",
        "spark/test_readers.py",
        "spark/test_reports.py",
        "spark/test_restarts.py",
        "spark/test_rows.py",
        "spark/test_subscription.py",
        "spark/test_tls.py",
    ),
    # Two sessions, each for half of the remaining time.
    "spark pipelines": ("spark/test_pipeline", "spark/test_bundle.py"),
    "spark": ("spark/",),
    "eventmq original": (
        "jobs/test_original_router.py",
        "protocols/test_eventmq_libzmq.py",
        "protocols/test_eventmq_original.py",
    ),
    # A cluster and catalogs that take long to start.
    "cluster faults": ("test_cluster_faults.py",),
    "catalogs": ("test_iceberg_catalogs.py",),
    "network and disks": ("test_nodes_netns.py", "test_disk_full.py"),
}


class GroupScheduling(LoadScopeScheduling):
    """Runs each group in one process, and all other tests wherever there is time. Groups begin first.

    When a process dies, for example because a test exceeded its timeout, LoadScopeScheduling assigns finished groups
    and the failed test again, and the run can wait forever for a process that has nothing to run.
    """

    def _split_scope(self, nodeid: str) -> str:
        place = nodeid.removeprefix("tests/")
        return next((group for group, places in GROUPS.items() if place.startswith(places)), nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a process has not run to the others. Returns the test during which it died, if any."""
        groups = self.assigned_work.pop(node)
        died_in = next((test for tests in groups.values() for test, done in tests.items() if not done), None)
        if died_in is not None:
            groups[self._split_scope(died_in)][died_in] = True
        self.workqueue.update({name: tests for name, tests in groups.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process tests. It runs one only when it knows the next one, or that there is none."""
        if node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
            try:
                self._assign_work_unit(node)
            except OSError:
                # The process has died, which its own report says later: then `remove_node` assigns this again.
                return
        if not self.workqueue:
            node.shutdown()
