"""The OpenAI Agents SDK: its sessions. A load reads the newest items."""

from __future__ import annotations

from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from contender import MESSAGES, Contender
from sqlalchemy.ext.asyncio import create_async_engine


class Sessions(Contender):
    """``SQLiteSession``, or on PostgreSQL ``SQLAlchemySession``."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.engine = (
            create_async_engine(place.replace("postgresql:", "postgresql+asyncpg:")) if self.postgresql else None
        )
        self.opened: dict[str, Any] = {}

    def session(self, name: str) -> Any:
        # Each SQLiteSession opens a connection, so it is kept, as a site would keep it.
        if name not in self.opened:
            if self.engine is not None:
                self.opened[name] = SQLAlchemySession(name, engine=self.engine, create_tables=True)
            else:
                self.opened[name] = SQLiteSession(name, f"{self.place}/agents.sqlite3")
        return self.opened[name]

    async def fill(self, name: str, texts: list[str]) -> None:
        session = self.session(name)
        await session.clear_session()
        for at in range(0, len(texts), 1000):
            await session.add_items([{"role": "user", "content": text} for text in texts[at : at + 1000]])

    async def append(self, session: Any, role: str, text: str) -> None:
        await session.add_items([{"role": role, "content": text}])

    async def load(self, session: Any) -> list[Any]:
        return [item["content"] for item in await session.get_items(limit=MESSAGES)]
