"""axe-core: finds defects of a page for people who cannot see it, or see it badly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from axe_playwright_python.base import AXE_SCRIPT

if TYPE_CHECKING:
    from playwright.sync_api import Page


def violations(page: Page, *, rules: Sequence[str] = (), without: Sequence[str] = ()) -> list[str]:
    """Return the defects that axe-core finds in the page, a line for each element.

    ``rules`` are the only rules to check, if there are any: a page in other colours needs "color-contrast" alone.
    ``without`` are selectors of elements that are not checked, because they are not ours.
    """
    # A colour in the middle of a transition is neither the one before nor the one after.
    page.evaluate("Promise.allSettled(document.getAnimations().map(animation => animation.finished))")
    if page.evaluate("typeof axe === 'undefined'"):
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    context = {"include": [["html"]], "exclude": [[selector] for selector in without]}
    found = page.evaluate("([context, options]) => axe.run(context, options)", [context, options])
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:200]} ({node['failureSummary']})"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
