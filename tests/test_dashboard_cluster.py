"""The page Cluster of the dashboard, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster_nodes import running_cluster
from test_dashboard import browser, page, pytestmark, serious_findings, serving  # noqa: F401 (fixtures and marks)

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_page_lists_the_nodes_and_names_one_that_is_away(page: Page, tmp_path: Path) -> None:  # noqa: F811
    with running_cluster(tmp_path) as cluster:
        cluster.wait_until_all_follow()
        leader, (follower, lost) = cluster.leader(), cluster.followers()
        page.goto(f"{follower.admin}/#/cluster")
        page.get_by_role("heading", name="Cluster tests").wait_for()
        rows = page.get_by_role("row")
        for node in cluster.nodes:
            shown = rows.filter(has_text=node.address)
            shown.get_by_text("leading" if node is leader else "following").wait_for()
            shown.get_by_text("connected").wait_for()
        assert serious_findings(page) == []
        lost.kill()
        rows.filter(has_text=lost.address).get_by_text("down").wait_for()
        page.get_by_text(f"start the node, and check the network to {lost.address}").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.get_by_role("link", name="Cluster").wait_for()
        assert page.url.endswith("#/")


def test_one_broker_has_no_such_page(page: Page) -> None:  # noqa: F811
    with serving("--admin", "http://127.0.0.1:0") as broker:
        page.goto(str(broker.admin_url))
        page.get_by_text("Nothing needs attention.").wait_for()
        page.wait_for_function("performance.getEntriesByType('resource').some(each => each.name.endsWith('/access'))")
        assert page.get_by_role("link", name="Cluster").count() == 0
