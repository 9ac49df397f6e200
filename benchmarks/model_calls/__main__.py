"""Measures the model calls and tokens for summaries of LoCoMo's conversations: ``python -m benchmarks.model_calls``.

All contenders have the same limit and vocabulary, and receive the same summary as every answer. The conversations are
not part of this project. ``CONVMEMORY_DATA`` names their folder.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
CONTENDERS = {
    "django_convmemory": "ours",
    "LangChain ConversationSummaryBufferMemory": "langchain_buffer",
    "tinygent BufferSummaryChatMemory": "tinygent_buffer",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_calls", description=__doc__.split("\n")[0])
    parser.add_argument("--limits", type=int, nargs="+", default=[1000, 2000, 4000], help="max_token_limit")
    parser.add_argument("--peers", required=True, help="the Python of an environment with operations/peers.txt")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/model_calls.json")
    arguments = parser.parse_args()
    from tests import dialogues

    if not dialogues.FOLDER.is_dir():
        print(f"Skipped: there are no conversations in {dialogues.FOLDER}. Set CONVMEMORY_DATA to their folder.")
        return
    conversations = [turns for _, turns in dialogues.locomo()]
    messages = sum(map(len, conversations))
    results = []
    for limit in arguments.limits:
        print(f"\nmax_token_limit {limit:,}, for 1 000 messages (mean of {messages:,} messages)")
        for title, module in CONTENDERS.items():
            python = sys.executable if module == "ours" else arguments.peers
            order = {"limit": limit, "conversations": conversations}
            result = {"contender": title, "limit": limit, "messages": messages} | run(
                python, module, order, dialogues.FOLDER / "tiktoken"
            )
            results.append(result)
            calls, prompts = (result[name] / messages * 1000 for name in ("calls", "prompt_tokens"))
            print(f"  {title:<44} {calls:7.1f} calls {prompts:12,.0f} prompt tokens")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


def run(python: str, module: str, order: dict[str, Any], vocabulary: pathlib.Path) -> dict[str, int]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT) if module == "ours" else "",
        "TIKTOKEN_CACHE_DIR": str(vocabulary),
    }
    command = [python, str(HERE / f"{module}.py")]
    process = subprocess.run(
        command, input=json.dumps(order), env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    counts: dict[str, int] = json.loads(process.stdout)
    return counts


if __name__ == "__main__":
    main()
