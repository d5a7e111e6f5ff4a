"""A key file with a user and an admin."""

from pathlib import Path

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
