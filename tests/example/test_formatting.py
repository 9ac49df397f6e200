"""Replies in Markdown: what they look like, and that nothing in them runs or loads."""

from __future__ import annotations

import html.parser
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, strategies as st

from tests import axe
from tests.example.conftest import answered, begin, window
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_example_project import PROJECT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REPLY = """\
# A plan

Two *things* to do, and one ~~not~~:

1. Read the [manual](https://example.org/manual "The manual").
2. Run this:

```python
def double(number):
    return number * 2  # <b>
```

| city | height |
| ---- | -----: |
| Graz | 353 m  |

> مرحبا بك

行程已确认。<script>document.title = "run"</script><img src=x onerror="document.title = 'run'">
![a picture](https://example.org/track.png) [no](javascript:alert(1))"""
NAMES = (
    "a blockquote br button code div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul"
)
ELEMENTS = set(NAMES.split())
ATTRIBUTES = {"class", "data-copy", "dir", "href", "rel", "start", "tabindex", "title", "type"}


@pytest.fixture(scope="module")
def html_of() -> Iterator[Callable[[str], str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT)
        yield importlib.import_module("chat.formatting").html_of


class Elements(html.parser.HTMLParser):
    """Collects the elements, their attributes and the addresses of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name == "href"]


def test_markdown_becomes_html(html_of: Callable[[str], str]) -> None:
    shown = html_of(REPLY)
    for piece in (
        '<h1 dir="auto">A plan</h1>',
        "<em>things</em>",
        "<s>not</s>",
        '<a href="https://example.org/manual" title="The manual" rel="nofollow noopener noreferrer">manual</a>',
        '<span class="hl-k">def</span>',
        "# &lt;b&gt;",
        '<td dir="auto">Graz</td>',
        '<p dir="auto">مرحبا بك</p>',
        "&lt;script&gt;",
    ):
        assert piece in shown, piece
    assert Elements(shown).addresses == ["https://example.org/manual", "https://example.org/track.png"]


PIECES = """\
<script> </pre> <pre <img\tsrc=x\tonerror=alert(1)> javascript: ]( [ ![ ``` ```html\n <a\thref='data:text/html,x'> \
|-|-|\n ` &lt; &#106;avascript: <style> style= " x data-copy <svg\tonload=x> >\t 1.\t vbscript: \u202e \
https://a.b <https://a.b> \n \0"""
hostile = st.lists(st.sampled_from(PIECES.split(" ")), max_size=30).map("".join)


@given(text=hostile | st.text(max_size=200))
@example(text='[x](https://a.example "<pre onclick=alert(1) y=")')
@example(text="[x](<https://a.example/<pre>)")
@example(text='```py"<pre\nx')
def test_whatever_a_model_writes_nothing_of_it_can_run(html_of: Callable[[str], str], text: str) -> None:
    shown = Elements(html_of(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))
    assert shown.names <= ELEMENTS
    assert shown.attributes <= ATTRIBUTES
    assert all(
        address.startswith(("http:", "https:", "mailto:", "#", "/")) or ":" not in address
        for address in shown.addresses
    )


@pytest.mark.parametrize("text", ["[" * 50_000, "![" * 25_000, "*" * 50_000, "`" * 50_000, "> " * 25_000, "<" * 50_000])
def test_the_longest_hostile_reply_is_shown(html_of: Callable[[str], str], text: str) -> None:
    # Without a bound on brackets, the first two would take minutes.
    assert Elements(html_of(text)).names <= ELEMENTS


@pytest.mark.parametrize("language", ["java", "makefile", "csharp", "cpp", "typescript"])
def test_hostile_code_is_shown_without_colours(html_of: Callable[[str], str], language: str) -> None:
    # To colour all of it would take these lexers from ten seconds to minutes.
    code = {"csharp": "a\n\n", "cpp": "\n ", "typescript": "a.", "java": "a a "}.get(language, "a&") * 9_000
    blocks = f"```{language}\n{code[:19_000]}\n```\n" * 2
    shown = html_of(f"{blocks}\nThe end.")
    assert "hl-" not in shown
    assert "The end." in shown
    # Another text has its own time.
    assert "hl-" in html_of(f"```{language}\nint number = 1\n```")


def test_code_whose_lexer_cannot_be_stopped_has_no_colours(html_of: Callable[[str], str]) -> None:
    assert "hl-" not in html_of(f"```ini\n{': ' * 9_500}\n```")


def test_a_reply_is_formatted_and_its_code_can_be_copied(modelled: str, model: OpenAIServer, page: Page) -> None:
    model.queue(Behaviour(text=REPLY))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    begin(page, modelled, "What shall we do?")
    answered(page, "What shall we do?")
    assert page.locator("#messages .formatted h1").inner_text() == "A plan"
    page.click("text=Copy >> visible=true")
    page.wait_for_selector("text=Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "def double(number):\n    return number * 2  # <b>\n"
    assert page.title() != "run"
    assert all(address.startswith(modelled) for address in asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1360, 390])
def test_everybody_can_use_the_page(
    modelled: str, model: OpenAIServer, browser: Browser, scheme: Any, width: int
) -> None:
    for page in window(browser, viewport={"width": width, "height": 844}, color_scheme=scheme):
        page.goto(modelled)
        assert axe.violations(page) == []
        model.queue(Behaviour(text=REPLY))
        begin(page, modelled, "What shall we do?")
        answered(page, "What shall we do?")
        assert axe.violations(page) == []
        tree = page.locator("#messages").aria_snapshot()
        assert "You:" in tree
        assert "Assistant:" in tree
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
