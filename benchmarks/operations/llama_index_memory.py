"""LlamaIndex: ``Memory``, a queue of messages in an SQL database."""

from __future__ import annotations

from typing import Any

from contender import MESSAGES, TOKENS, Contender
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.sql import MessageStatus
from sqlalchemy.ext.asyncio import create_async_engine


class Queue(Contender):
    """``Memory.from_defaults`` with a limit of 2 000 tokens."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        url = (
            place.replace("postgresql:", "postgresql+asyncpg:")
            if self.postgresql
            else f"sqlite+aiosqlite:///{place}/li.sqlite3"
        )
        self.engine = create_async_engine(url)

    def session(self, name: str) -> Any:
        return Memory.from_defaults(
            session_id=name,
            token_limit=TOKENS,
            chat_history_token_ratio=1.0,
            token_flush_size=TOKENS // 10,
            table_name="llama_message",
            async_engine=self.engine,
        )

    async def fill(self, name: str, texts: list[str]) -> None:
        memory = self.session(name)
        await memory.areset()
        messages = [ChatMessage(role="user", content=text) for text in texts]
        # As its own queue does: the newest messages are active, the others archived.
        old, new = messages[:-MESSAGES], messages[-MESSAGES:]
        for at in range(0, len(old), 500):
            await memory.sql_store.add_messages(name, old[at : at + 500], MessageStatus.ARCHIVED)
        await memory.sql_store.add_messages(name, new, MessageStatus.ACTIVE)

    async def append(self, session: Any, role: str, text: str) -> None:
        await session.aput(ChatMessage(role=role, content=text))

    async def load(self, session: Any) -> list[Any]:
        return [message.content for message in await session.aget()]
