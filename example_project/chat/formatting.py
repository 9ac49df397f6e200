"""Replies as HTML. Models write Markdown, and sometimes what somebody wants to run in a visitor's browser."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final

import nh3
import pygments
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

# Code that is longer, or in another language, is shown without colours. So is code whose colours take longer than this
# many seconds of the thread's own time: for some lexers, the time grows with the square of hostile code, or faster.
_LONGEST_CODE, _LONGEST_TIME = 20_000, 0.5
# The lexer of INI files is not among them: one step of it takes minutes for hostile code.
_CODE: Final = """
bash c cpp csharp css diff go html java javascript js json jsx kotlin makefile php py python rb ruby rust sh shell sql
swift toml ts tsx typescript xml yaml yml
"""
_LANGUAGES: Final = frozenset(_CODE.split())
# The time for links grows with the square of the brackets. A text with more of them has no links.
_MOST_BRACKETS: Final = 500
_COLOURS: Final = HtmlFormatter(nowrap=True, classprefix="hl-")
_NAMES: Final = """
a blockquote br button code div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul
"""
_TAGS: Final = set(_NAMES.split())
_ATTRIBUTES: Final[dict[str, set[str]]] = {
    "a": {"href", "title"},
    "button": {"data-copy", "type"},
    "div": {"class"},
    "code": {"class"},
    "ol": {"start"},
    "span": {"class"},
}
# Paragraphs may be in scripts that run in different directions. What scrolls can be reached by the keyboard.
_ADDED: Final[dict[str, dict[str, str]]] = {
    **{tag: {"dir": "auto"} for tag in ("blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "li", "p", "td", "th")},
    "pre": {"tabindex": "0"},
    "table": {"tabindex": "0"},
}


class _Colours:
    """The colours of the code in one text, as far as they take no more than ``_LONGEST_TIME`` together."""

    def __init__(self) -> None:
        self._left = _LONGEST_TIME

    def html_of(self, code: str, language: str, attributes: str) -> str:
        """Return the code as HTML with classes for its colours; "" if it gets no colours."""
        if self._left <= 0 or language.lower() not in _LANGUAGES or len(code) > _LONGEST_CODE:
            return ""
        began, tokens = time.thread_time(), []
        for token in get_lexer_by_name(language).get_tokens(code):
            if time.thread_time() - began > self._left:
                self._left = 0.0
                return ""
            tokens.append(token)
        self._left -= time.thread_time() - began
        coloured: str = pygments.format(tokens, _COLOURS)
        return coloured


# Images are not loaded from elsewhere, so they are shown as links. A line break in the text is one on the page.
def _reader(*without: str) -> MarkdownIt:
    options = {"html": False, "breaks": True, "highlight": _Colours().html_of}
    reader = MarkdownIt("js-default", options).disable(["image", *without])
    for name in ("code_block", "fence"):
        reader.renderer.rules[name] = _with_button(reader.renderer.rules[name])
    return reader


def _with_button(write: Callable[..., str]) -> Callable[..., str]:
    """Return what writes code as HTML with ``write``, with a button to copy it."""

    def written(*arguments: Any) -> str:
        return f'<div class="code"><button type="button" data-copy="">Copy</button>{write(*arguments)}</div>'

    return written


@functools.lru_cache(maxsize=200)
def html_of(text: str) -> SafeString:
    """Return a text in Markdown as HTML that runs nothing and loads nothing."""
    markdown = _reader() if text.count("[") <= _MOST_BRACKETS else _reader("link", "reference")
    clean = nh3.clean(
        markdown.render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        set_tag_attribute_values=_ADDED,
    )
    return mark_safe(clean)  # noqa: S308
