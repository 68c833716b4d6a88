"""The hub of models and datasets: whether it can be reached, and what its clients' many errors mean."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request

__all__ = ["first_line", "hub_reachable"]


def hub_reachable() -> bool:
    """Whether the hub's name can be looked up. Without this a machine with no network waits half a minute in
    retries for every file. Behind a proxy the name need not be known here, so then the answer is yes."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop: part of a sentence of ours."""
    lines = str(error).strip().splitlines()
    return (lines[0].strip() if lines else type(error).__name__).rstrip(".")
