"""The version of aiokafka whose source was read. Every other module of this package imports this
one, directly or through another."""

from __future__ import annotations

from typing import Final

import aiokafka

from gateway.errors import StopForOperator

KNOWN_VERSION: Final = "0.14."


def check_version(installed: str) -> None:
    """Raise StopForOperator unless the version is the known one: another version may behave
    differently without any error."""
    if not installed.startswith(KNOWN_VERSION):
        raise StopForOperator(
            f"aiokafka {installed} is installed, but the gateway relies on internals of {KNOWN_VERSION}x",
            hint=f"pip install 'aiokafka=={KNOWN_VERSION}*'",
        )


check_version(aiokafka.__version__)
