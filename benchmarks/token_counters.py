"""Compares the default token counter with tiktoken's o200k_base, on many kinds of text.

``python benchmarks/token_counters.py [FOLDER]`` prints a row for each kind:

- the exact number of tokens;
- ``ratio``: the estimated total by the exact total;
- ``low``: the share of texts of at least 20 tokens that are estimated at less than 0.9 times the exact count;
- ``MB/s``: UTF-8 megabytes that one core counts in a second.

``before`` is the estimate called ``utf8``, which took only the bytes of each class into account. The vocabulary is read
from FOLDER/tiktoken, or else from the folder that TIKTOKEN_CACHE_DIR names. Kinds of real conversations are left out if
FOLDER has none.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import string
import sys
import timeit
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

Counter = Callable[[str], int]

_PROSE = (string.ascii_letters + " ").encode()
_DIGITS = string.digits.encode()
_ASCII = bytes(range(128))


def before(text: str) -> int:
    """Return the estimate that was called ``utf8``."""
    data = text.encode()
    not_prose = data.translate(None, _PROSE)
    symbols = not_prose.translate(None, _DIGITS)
    wide = len(symbols.translate(None, _ASCII))
    estimate = (
        (len(data) - len(not_prose)) / 4.6
        + (len(not_prose) - len(symbols)) / 2.0
        + (len(symbols) - wide) / 1.6
        + wide / 3.6
    )
    return max(1, math.ceil(estimate))


def quality(count: Counter, texts: Sequence[str], exact: Sequence[int]) -> tuple[float, float]:
    """Return the ratio of the totals, and the share of texts that are counted too low."""
    counts = [count(text) for text in texts]
    low = [estimated < 0.9 * tokens for estimated, tokens in zip(counts, exact, strict=True) if tokens >= 20]
    return sum(counts) / sum(exact), sum(low) / max(1, len(low))


def seconds(count: Counter, text: str, calls: int = 1) -> float:
    """Return the time of a call, the best of many, because other processes interrupt some."""
    return min(timeit.repeat(lambda: count(text), number=calls, repeat=40)) / calls


def megabytes_per_second(count: Counter, texts: Sequence[str]) -> float:
    text = "\n".join(texts)
    text *= 1 + 50_000 // len(text)
    return len(text.encode()) / seconds(count, text) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder",
        type=pathlib.Path,
        nargs="?",
        default=os.environ.get("CONVMEMORY_DATA", "."),
        help="the folder of real conversations, with the vocabulary in tiktoken/ (default: CONVMEMORY_DATA)",
    )
    folder = parser.parse_args().folder
    os.environ["CONVMEMORY_DATA"] = str(folder)
    if (folder / "tiktoken").is_dir():
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder / "tiktoken")
    from benchmarks import kinds_of_text
    from django_convmemory import tokens

    exact = tokens.TiktokenCounter("o200k_base")
    if exact.problem:
        parser.error(f"{exact.problem}.")
    counters = {"before": before, "after": tokens.Utf8TokenCounter().count_text}
    print(f"{'':27}", *(f"{name:^23}" for name in counters))
    print(f"{'':20}{'tokens':>7}", *(f"{'ratio':>9}{'low':>6}{'MB/s':>8}" for _ in counters))
    for kind, texts in kinds_of_text.kinds().items():
        checked = kinds_of_text.checked(texts)
        truth = [exact.count_text(text) for text in checked]
        row = f"{kind:20}{sum(truth):7}"
        for count in counters.values():
            ratio, low = quality(count, checked, truth)
            row += f"{ratio:10.2f}{low:6.0%}{megabytes_per_second(count, checked):8.0f}"
        print(row, flush=True)
    for name, text in (
        ("English", "Where is my order? I sent it on Monday. "),
        ("Polish", "Gdzie jest moje zamówienie? "),
    ):
        times = ", ".join(
            f"{seconds(count, (text * 4)[:100], 100) * 1e6:.1f} µs {at}" for at, count in counters.items()
        )
        print(f"100 characters of {name}: {times}")


if __name__ == "__main__":
    main()
