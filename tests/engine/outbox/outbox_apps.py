"""Apps with a subscriber that keeps its messages."""

from __future__ import annotations

from typing import Any

from redrive import Message, Redrive


class Box:
    """A subscriber that keeps messages in the order of their arrival."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def topics(self) -> list[str]:
        return [message.topic for message in self.messages]

    @property
    def ids(self) -> set[str]:
        return {message.id for message in self.messages}


def new_app(topics: str = "*", **settings: Any) -> tuple[Redrive, Box]:
    """Return an app and the box that receives its messages."""
    app, box = Redrive(**settings), Box()

    @app.subscribe(topics)
    async def keep(message: Message) -> None:
        box.messages.append(message)

    return app, box
