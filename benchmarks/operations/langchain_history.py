"""LangChain: its history in an SQL database, cut to the budget by ``trim_messages``."""

from __future__ import annotations

import warnings
from typing import Any

warnings.filterwarnings("ignore")

from contender import TOKENS, Contender  # noqa: E402
from langchain_community.chat_message_histories import SQLChatMessageHistory  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, trim_messages  # noqa: E402
from sqlalchemy import create_engine  # noqa: E402


class History(Contender):
    """``SQLChatMessageHistory``."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        url = (
            place.replace("postgresql:", "postgresql+psycopg:") if self.postgresql else f"sqlite:///{place}/lc.sqlite3"
        )
        self.engine = create_engine(url)

    def session(self, name: str) -> Any:
        return SQLChatMessageHistory(name, connection=self.engine, table_name="langchain_message")

    def fill(self, name: str, texts: list[str]) -> None:
        history = self.session(name)
        history.clear()
        history.add_messages([HumanMessage(text) for text in texts])

    def append(self, session: Any, role: str, text: str) -> None:
        session.add_message(HumanMessage(text) if role == "user" else AIMessage(text))

    def load(self, session: Any) -> list[Any]:
        # "approximate" is its cheapest counter.
        messages = trim_messages(session.messages, max_tokens=TOKENS, strategy="last", token_counter="approximate")
        return [message.content for message in messages]
