"""The server's key: from a file, or from the environment.

There is no option for the key itself, because every user can read command lines.
"""

import os
from pathlib import Path

KEY_VARIABLE = "HRM_API_KEY"
MAX_KEY_FILE = 4096  # characters


def key_of_environment() -> str | None:
    return os.environ.get(KEY_VARIABLE) or None


def read_key(path: Path | None) -> str | None:
    """Read the key from a file's first line, or from the environment without a file."""
    if path is None:
        return key_of_environment()
    try:
        with path.open(encoding="utf-8-sig") as stream:
            words = stream.read(MAX_KEY_FILE).split()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "write the server's key into it"
        raise ValueError(f"the key file {path} cannot be read ({error}): {remedy}.") from error
    if not words:
        raise ValueError(f"the key file {path} is empty: write the server's key into it.")
    return words[0]
