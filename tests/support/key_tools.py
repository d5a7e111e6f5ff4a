"""A key file with a user and an admin, and a server that takes uploads."""

from contextlib import AbstractContextManager
from pathlib import Path

from service_tools import Server, hrm_serve

from hrm_edge_server.auth import Key, hash_of, new_secret, write_keys

USER = new_secret()
ADMIN = new_secret()
AS_USER = {"x-api-key": USER}
AS_ADMIN = {"x-api-key": ADMIN}


def write_key_file(folder: Path, *more: Key) -> Path:
    user = Key(label="kitchen", sha256=hash_of(USER))
    admin = Key(label="office", role="admin", sha256=hash_of(ADMIN))
    write_keys(folder / "keys", [user, admin, *more])
    return folder / "keys"


def upload_server(folder: Path, *arguments: object) -> AbstractContextManager[Server]:
    """Run `hrm-serve`, which takes the models of the admin, its client, into a folder here."""
    rights = (f"--keys={write_key_file(folder)}", f"--upload-dir={folder}/uploads")
    return hrm_serve(*arguments, *rights, key=ADMIN)
