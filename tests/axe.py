"""axe-core: finds defects of a page for people who cannot see it, or see it badly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Page


def violations(page: Page, *, without: Sequence[str] = ()) -> list[str]:
    """Return the defects that axe-core finds in the page, a line for each element.

    ``without`` are selectors of elements that are not checked, because they are not ours.
    """
    # A colour in the middle of a transition is neither the one before nor the one after.
    page.evaluate("Promise.allSettled(document.getAnimations().map(animation => animation.finished))")
    context: dict[str, Any] = {"exclude": [[selector] for selector in without]}
    found = Axe().run(page, context if without else None, {"resultTypes": ["violations"]})
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:200]} ({node['failureSummary']})"
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]
