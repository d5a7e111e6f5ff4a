"""The folder of uploaded bundles, which one server owns.

<folder>/.hrm-uploads           the marker of the folder, locked by the server that uses it
<folder>/NAME.bundle            a link to the version that is served; a restart serves it again
<folder>/NAME.<12 digits>/      the version; it holds a marker
<folder>/.upload-*/             an upload that has not ended; it holds a marker

The server removes only what it has marked.
"""

import os
import secrets
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from hrm_host import atomic, system

MARKER = ".hrm-uploads"
PREFIX = ".upload-"
SUFFIX = ".bundle"


class UploadFolder:
    """Raises ValueError for a folder of other files, or one that another server uses."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / MARKER
        if not marker.exists() and any(self.path.iterdir()):
            raise ValueError(
                f"{path} holds other files, so it is not a folder for uploads: give an empty or "
                "new one as --upload-dir."
            )
        self._lock = atomic.try_lock(marker)
        if self._lock is None:
            raise ValueError(
                f"another server uses {path} for its uploads: give this one its own --upload-dir."
            )
        self.clean()

    def kept(self) -> dict[str, Path]:
        """The versions to serve at the start, by name."""
        versions: dict[str, Path] = {}
        for link in sorted(self.path.glob(f"*{SUFFIX}")):
            if link.is_symlink():
                versions[link.name.removesuffix(SUFFIX)] = link.resolve()
        return versions

    @contextmanager
    def temporary(self) -> Generator[Path]:
        """A marked directory that vanishes after the block."""
        folder = Path(mkdtemp(prefix=PREFIX, dir=self.path))
        (folder / MARKER).touch()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, name: str, files: Path) -> Path:
        """Move a directory of files here as a new version, which `keep` or `clean` follows."""
        version = self.path / f"{name}.{secrets.token_hex(6)}"
        (files / MARKER).touch()
        atomic.publish(files, version)
        return version

    def keep(self, name: str, version: Path) -> None:
        """Make a version the one that a restart serves."""
        link = self.path / f".{name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(version.name, target_is_directory=True)
        os.replace(link, self.path / f"{name}{SUFFIX}")

    def forget(self, name: str) -> None:
        """Let a restart serve no version of this name."""
        link = self.path / f"{name}{SUFFIX}"
        if link.is_symlink():
            link.unlink()

    def clean(self) -> None:
        """Remove unfinished uploads, and versions that are not kept."""
        system.sync(self.path)
        kept = set(self.kept().values())
        for folder in self._made():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _made(self) -> Iterator[Path]:
        """The directories that a server made here."""
        for path in self.path.iterdir():
            if not path.is_symlink() and (path / MARKER).is_file():
                yield path
