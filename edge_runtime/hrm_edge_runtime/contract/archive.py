"""A bundle as one stream of bytes: an uncompressed tar file in the plain ustar format.

The reader trusts nothing. It takes regular files with plain names, in the sizes that their headers
state, and reads one header of 512 bytes or one piece at a time. Links, folders, devices, sparse
files, extended headers and names with a slash are errors.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hrm_edge_runtime.contract.manifest import (
    MANIFEST_NAME,
    BundleError,
    Manifest,
    is_plain_name,
    read_manifest,
)

BLOCK = tarfile.BLOCKSIZE  # 512 bytes: the size of a header; files are padded to a multiple
END = bytes(BLOCK)
MAX_FILES = 64  # a bundle of three precisions with unrolled graphs has twelve
PIECE_BYTES = 1 << 20


class Archive:
    """A bundle to send; `num_bytes` is the length of `pieces`. Raises BundleError."""

    def __init__(self, bundle: Path, *, name: str | None = None) -> None:
        """With `name`, the manifest that is sent gives the bundle this name."""
        self._bundle = bundle
        manifest = read_manifest(bundle)
        self.name = name or manifest.name
        named = manifest.model_copy(update={"name": self.name})
        self._manifest = named.model_dump_json(indent=2).encode()
        self._sizes = {file: entry.size_bytes for file, entry in manifest.files.items()}

    @property
    def num_bytes(self) -> int:
        sizes = [len(self._manifest), *self._sizes.values()]
        padded = sum(size + _num_padding(size) for size in sizes)
        return padded + BLOCK * len(sizes) + len(END) * 2

    def pieces(self) -> Iterator[bytes]:
        yield _header(MANIFEST_NAME, len(self._manifest))
        yield self._manifest
        yield bytes(_num_padding(len(self._manifest)))
        for name, size in self._sizes.items():
            yield _header(name, size)
            with (self._bundle / name).open("rb") as stream:
                yield from _pieces_of(stream, size)
            yield bytes(_num_padding(size))
        yield END * 2


def unpack(archive: Path, directory: Path) -> Manifest:
    """Write the files of an archive into an empty directory; they must match its manifest.

    Raises BundleError. Sizes and hashes are checked when the bundle is opened.
    """
    try:
        with archive.open("rb") as stream:
            names = _unpack_files(stream, directory)
    except (EOFError, tarfile.HeaderError, UnicodeError) as error:
        raise _damaged(f"it is not a whole tar file, {error}") from error
    manifest = read_manifest(directory)
    expected = {MANIFEST_NAME, *manifest.files}
    if names != expected:
        wrong = ", ".join(sorted(names ^ expected)[:3])
        raise _damaged(f"its files do not match its manifest, see {wrong}")
    return manifest


def _unpack_files(stream: BinaryIO, directory: Path) -> set[str]:
    names: set[str] = set()
    while True:
        header = _exactly(stream, BLOCK)
        if header == END:
            return names
        entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        is_plain = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not is_plain or not is_plain_name(entry.name) or entry.size < 0:
            raise _damaged(f"{entry.name[:200]!r} in it is not a plain file with a plain name")
        if entry.name in names or len(names) == MAX_FILES:
            raise _damaged(f"it holds {entry.name!r} twice, or more than {MAX_FILES} files")
        names.add(entry.name)
        with (directory / entry.name).open("xb") as file:
            for piece in _pieces_of(stream, entry.size):
                file.write(piece)
        _exactly(stream, _num_padding(entry.size))


def _pieces_of(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """The next `size` bytes; raises EOFError if there are fewer."""
    while size > 0:
        piece = _exactly(stream, min(size, PIECE_BYTES))
        size -= len(piece)
        yield piece


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends early")
    return content


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")


def _num_padding(size: int) -> int:
    return -size % BLOCK


def _damaged(problem: str) -> BundleError:
    return BundleError(f"the uploaded bundle cannot be unpacked ({problem}): send it again.")
