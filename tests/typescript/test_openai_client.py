"""OpenAI's client for JavaScript runs all operations of docs/guides/openai-conversations.md in node."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.guides import test_openai_conversations as guide
from tests.guides.test_openai_conversations import bearer
from tests.typescript import compiler

__all__ = ["bearer"]

SCRIPT = """
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const { conversations } = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const { items } = conversations;
const { id } = await conversations.create({ metadata: { topic: "demo" } });
assert.deepEqual((await conversations.update(id, { metadata: { topic: "new" } })).metadata, { topic: "new" });
const texts = [...Array(20).keys()].map(String);
const input = texts.map((content) => ({ type: "message", role: "user", content }));
const made = await items.create(id, { items: input, include: ["message.input_image.image_url"] });
const seen = [];
for await (const item of items.list(id, { order: "asc", limit: 3, include: ["code_interpreter_call.outputs"] }))
  seen.push(item);
assert.deepEqual(seen, made.data);
assert.deepEqual(seen.map((item) => item.content[0].text), texts);
const last = { conversation_id: id };
assert.deepEqual(await items.retrieve(made.last_id, last), seen[19]);
await items.delete(made.last_id, last);
await assert.rejects(items.retrieve(made.last_id, last), OpenAI.NotFoundError);
assert.equal((await conversations.delete(id)).deleted, true);
await assert.rejects(conversations.retrieve(id), OpenAI.NotFoundError);
"""


@pytest.mark.django_db(transaction=True)
def test_the_client_for_javascript_runs_all_operations(live_server: Any) -> None:
    command = ["node", "--input-type=module", "-", f"{live_server}/v1", guide.key_of("ann")]
    subprocess.run(command, cwd=compiler.PROGRAMS.parents[1], input=SCRIPT, text=True, check=True)
