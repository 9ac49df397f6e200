"""Compares the token counters with tiktoken's o200k_base, on real conversations.

``python benchmarks/token_counters.py [FOLDER]`` prints two figures for each counter: the ratio of its total to
tiktoken's, and the share of messages whose count is within a quarter of tiktoken's.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder",
        type=pathlib.Path,
        nargs="?",
        default=os.environ.get("CONVMEMORY_DATA", "."),
        help="the folder of the conversations, with the vocabulary in tiktoken/ (default: CONVMEMORY_DATA)",
    )
    folder = parser.parse_args().folder
    if not (folder / "tiktoken").is_dir():
        parser.error(f"There is no folder {folder}/tiktoken.")
    os.environ["CONVMEMORY_DATA"] = str(folder)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder / "tiktoken")
    from django_convmemory import tokens
    from tests import dialogues

    texts = {
        "English chat (LoCoMo)": [turn["content"] for _, turns in dialogues.locomo() for turn in turns],
        "English chat (tau-bench)": [
            turn["content"]
            for _, turns in dialogues.taubench()
            for turn in turns
            if turn["role"] in ("user", "assistant") and turn["content"]
        ],
        "JSON tool results": [
            turn["content"] for _, turns in dialogues.taubench() for turn in turns if turn["role"] == "tool"
        ],
        "JSON arguments": [
            call["function"]["arguments"]
            for _, turns in dialogues.taubench()
            for turn in turns
            for call in turn.get("tool_calls") or ()
        ],
        "Chinese chat (CrossWOZ)": [turn["content"] for _, turns in dialogues.crosswoz() for turn in turns],
        "Python source": [path.read_text() for path in sorted((ROOT / "django_convmemory").glob("*.py"))],
    }
    exact = tokens.TiktokenCounter("o200k_base")
    counters = [tokens.Utf8TokenCounter(), tokens.SummaryBufferEstimate()]
    print(f"{'':26}{'tokens':>9}", *(f"{counter.name:>26}" for counter in counters))
    for name, group in texts.items():
        truth = [exact.count_text(text) for text in group if text]
        row = f"{name:26}{sum(truth):9}"
        for counter in counters:
            counted = [counter.count_text(text) for text in group if text]
            near = sum(abs(a - b) <= max(2, b / 4) for a, b in zip(counted, truth, strict=True)) / len(truth)
            row += f"{sum(counted) / sum(truth):14.2f} ({near:4.0%} near)"
        print(row)


if __name__ == "__main__":
    main()
