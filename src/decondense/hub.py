"""The hub of models and datasets: whether it can be reached, what its errors say, and uploads to it."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


def hub_reachable() -> bool:
    """Whether the hub's host name can be resolved. Without this check a machine with no network spends half a minute
    on retries for every file. Behind a proxy the name need not resolve here, so then the answer is yes."""
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


def check_repo(repo: str) -> None:
    """Refuse a name that no repository of the hub can have, before anything is trained for it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(f"--push-to-hub must be a hub id, OWNER/NAME, got {repo!r}: {first_line(error)}.") from None


def push(folder: Path, repo: str) -> str:
    """Upload a saved model with its tokenizer and card, as transformers' Trainer does: create the repository if there
    is none, commit the folder at once, and return the repository's address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    network: Any = HfHubHTTPError.__bases__  # with the error of the client's HTTP library, which differs by version

    api = HfApi()
    try:
        made = api.create_repo(repo, exist_ok=True).repo_id
        api.upload_folder(repo_id=made, folder_path=folder, commit_message="Trained with decondense")
    except (*network, OSError) as error:
        raise OSError(
            f"the model is in {str(folder)!r}, but the hub did not take it as {repo!r}: {first_line(error)}; log in "
            "with `hf auth login`, and repeat the command with --resume."
        ) from error
    return f"{api.endpoint}/{made}"
