"""What becomes of the wakes by which the library tells itself of news; a user's notifies arrive as ever."""

from collections.abc import Callable, Iterable
from typing import Literal

import pytest

from alkstore_trio._wake import Bell, Hub

__all__ = ["Wakes", "meddle"]

Wakes = Literal["as they come", "dropped", "spurious"]


def meddle(patch: pytest.MonkeyPatch, wakes: Callable[[], Wakes]) -> None:
    """Have nothing that waits be woken where they are dropped, and everything by each where they are spurious."""
    wake, fire = Bell.wake, Hub.fire

    def waking(bell: Bell, channel: str) -> None:
        if wakes() != "dropped":
            wake(bell, channel)

    def firing(hub: Hub, channels: Iterable[str]) -> None:
        fire(hub, channels)
        if channels and wakes() == "spurious":
            for wakers in tuple(hub.channels.values()):
                for bell in [waker for waker in wakers if isinstance(waker, Bell)]:
                    bell.ring()

    patch.setattr(Bell, "wake", waking)
    patch.setattr(Hub, "fire", firing)
