"""A model of LlamaIndex that gives the replies of a script, and notes what it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ContentBlock,
    LLMMetadata,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import PrivateAttr

from integration_tests.agent_scripts import Step


class ScriptedLLM(FunctionCallingLLM):
    """Calls have no ids if ``has_ids`` is false, as with some providers: the name of the tool stands for them."""

    has_ids: bool = True

    _replies: Iterator[Step] = PrivateAttr(default_factory=lambda: iter(()))
    _sent: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    def script(self, steps: Sequence[Step]) -> None:
        self._replies = iter(steps)

    @property
    def sent(self) -> list[list[ChatMessage]]:
        return self._sent

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._sent.append([message.model_copy(deep=True) for message in messages])
        step = next(self._replies)
        blocks: list[ContentBlock] = [ThinkingBlock(content=step.thought)] if step.thought else []
        blocks += [TextBlock(text=step.text)] if step.text else []
        for call in step.calls:
            call_id = call.id if self.has_ids else None
            arguments = {"word": call.word, "fails": call.fails}
            blocks.append(ToolCallBlock(tool_call_id=call_id, tool_name="look_up", tool_kwargs=arguments))
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks))

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self.chat(messages)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def stream() -> ChatResponseAsyncGen:
            yield self.chat(messages)

        return stream()

    def _prepare_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return {"messages": [*(chat_history or []), *([user_msg] if user_msg else [])]}

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        return [
            ToolSelection(
                tool_id=block.tool_call_id or block.tool_name, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs
            )
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock) and isinstance(block.tool_kwargs, dict)
        ]

    def _not_scripted(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("The agents of these tests do not complete texts, and stream only asynchronously.")

    complete = stream_chat = stream_complete = _not_scripted

    async def _anot_scripted(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._not_scripted()

    acomplete = astream_complete = _anot_scripted
