"""Draws the results of the benchmarks in build/bench: ``python -m benchmarks.plots [--output FOLDER]``."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections import defaultdict
from typing import Any

import matplotlib as mpl

mpl.use("svg")
# The same figures give the same bytes.
mpl.rcParams["svg.hashsalt"] = "convmemory"

from matplotlib import pyplot as plt  # noqa: E402  after mpl.use()

ROOT = pathlib.Path(__file__).parents[1]
OURS, DRIVERS = "#1f6feb", "#8b949e"
PEERS = ["#d29922", "#a371f7", "#3fb950", "#f85149"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--input", type=pathlib.Path, default=ROOT / "build/bench")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench")
    arguments = parser.parse_args()
    for name, draw in (("operations", draw_operations), ("model_calls", draw_model_calls)):
        file = arguments.input / f"{name}.json"
        if file.exists():
            draw(json.loads(file.read_text()), arguments.output)
        else:
            print(f"{file} does not exist. Make it with: python -m benchmarks.{name}")


def draw_operations(operations: list[dict[str, Any]], output: pathlib.Path) -> None:
    for database in ("postgresql", "sqlite"):
        save(lengths(operations, database), output / f"bench-{database}.svg")


def draw_model_calls(calls: list[dict[str, Any]], output: pathlib.Path) -> None:
    save(summaries(calls), output / "bench-summaries.svg")


def lengths(operations: list[dict[str, Any]], database: str) -> Any:
    """Draw the time of an append and of a load against the number of stored messages, for each contender."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for result in operations:
        if result["database"] == database:
            lines[result["operation"], result["contender"]].append((result["size"], result["p50"]))
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True, layout="constrained")
    colours: dict[str, str] = {}
    for axis, operation in zip(axes, ("append", "load"), strict=True):
        for (measured, contender), points in lines.items():
            if measured == operation:
                kind, _, variant = contender.partition(", ")
                axis.plot(
                    *zip(*sorted(points), strict=True),
                    marker="o",
                    markersize=4,
                    label=contender,
                    color=colours.setdefault(kind, colour(kind, len(colours))),
                    linewidth=2.4 if contender.startswith("django_convmemory") else 1.4,
                    linestyle={"": "-", "async": ":"}.get(variant, "--"),
                )
        axis.set(xscale="log", yscale="log", title=operation, xlabel="messages in the conversation")
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel("milliseconds, median")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def colour(contender: str, number: int) -> str:
    if contender.startswith("django_convmemory"):
        return OURS
    return DRIVERS if contender.startswith(("psycopg", "sqlite3")) else PEERS[number % len(PEERS)]


def summaries(calls: list[dict[str, Any]]) -> Any:
    """Draw the model calls and their prompt tokens against the limit, for each contender."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3), layout="constrained")
    contenders = list(dict.fromkeys(result["contender"] for result in calls))
    limits = sorted({result["limit"] for result in calls})
    for axis, column, title in (
        (axes[0], "calls", "calls for 1 000 messages"),
        (axes[1], "prompt_tokens", "prompt tokens for 1 000 messages"),
    ):
        for number, contender in enumerate(contenders):
            heights = [
                result[column] / result["messages"] * 1000
                for limit in limits
                for result in calls
                if (result["contender"], result["limit"]) == (contender, limit)
            ]
            positions = [group + (number - 1) * 0.27 for group in range(len(limits))]
            axis.bar(positions, heights, 0.25, label=contender, color=colour(contender, number))
        axis.set_xticks(range(len(limits)), [f"{limit:,}" for limit in limits])
        axis.set(title=title, xlabel="max_token_limit")
        axis.grid(visible=True, axis="y", alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def save(figure: Any, path: pathlib.Path) -> None:
    # White, because dark pages show it too.
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    print(path)


if __name__ == "__main__":
    main()
