"""A change of the models that is refused changes nothing: `/models` stays byte for byte."""

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from asgi_tools import SOLVED
from bundle_tools import archived, restate
from echo_bundle import BROKEN_STEP, ECHO_STEP, GROWING_STEP, write_echo_bundle
from files import edited
from service_tools import AS_USER, Server, upload_server

pytestmark = pytest.mark.process

NAN_STEP = ECHO_STEP.replace(
    "q_halt_B = Identity (halt_margin_B)",
    "less_B = Sub (halt_margin_B, halt_margin_B)\n  q_halt_B = Div (less_B, less_B)",
)
RENAMED_STEP = ECHO_STEP.replace("q_halt_B", "q_stop_B")
TAR = {"content-type": "application/x-tar"}


class Change(NamedTuple):
    """A change that the server must refuse with one of these statuses."""

    statuses: tuple[int, ...] = (422,)
    method: str = "PUT"
    name: str = "second"
    content: bytes = b""
    headers: dict[str, str] = TAR
    message: str = ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundles"
    folder.mkdir()
    (folder / "empty.bundle").mkdir()
    for name, step in (
        ("good", ECHO_STEP),
        ("growing", GROWING_STEP),
        ("failing", BROKEN_STEP),
        ("nan", NAN_STEP),
        ("renamed", RENAMED_STEP),
    ):
        write_echo_bundle(folder / f"{name}.bundle", name="second", step=step)
    for name in (
        "changed", "garbage", "truncated", "hollow", "puzzle", "linked", "size", "hash", "outside",
    ):  # fmt: skip
        shutil.copytree(folder / "good.bundle", folder / f"{name}.bundle")
    restate(folder / "size.bundle", hidden_size=5)
    restate(folder / "outside.bundle", name="../out")
    with edited(folder / "hash.bundle" / "manifest.json") as fields:
        fields["files"]["puzzle_table.npy"]["sha256"] = "0" * 64
    (folder / "changed.bundle" / "step.fp32.onnx").write_bytes(b"another graph")
    (folder / "garbage.bundle" / "step.fp32.onnx").write_bytes(b"not a graph")
    restate(folder / "garbage.bundle")
    manifest = folder / "truncated.bundle" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    (folder / "hollow.bundle" / "puzzle_table.npy").unlink()
    manifest = folder / "puzzle.bundle" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("sudoku-4x4", "sudoku-5x5"))
    table = folder / "linked.bundle" / "puzzle_table.npy"
    table.unlink()
    table.symlink_to(Path("..") / "good.bundle" / "puzzle_table.npy")
    return folder


def changes(folder: Path) -> Iterator[Change]:
    yield from wrong_bundles(folder)
    yield from wrong_requests(archived(folder / "good.bundle"))
    yield from wrong_uploads(folder)
    for key, status in ((AS_USER["x-api-key"], 403), ("wrong", 401), ("", 401)):
        headers = {**TAR, "x-api-key": key}
        yield Change(headers=headers, statuses=(status,))
        yield Change(method="DELETE", name="first", headers=headers, statuses=(status,))
    yield Change(method="DELETE", name="first", statuses=(409,))
    yield Change(method="DELETE", name="nowhere", statuses=(404,))
    for name in ("first%0a", "x" * 300):
        yield Change(method="DELETE", name=name, statuses=(404, 422))


def wrong_bundles(folder: Path) -> Iterator[Change]:
    for name in (
        "empty", "changed", "garbage", "truncated", "hollow", "puzzle", "linked", "failing", "nan",
        "renamed", "size", "outside",
    ):  # fmt: skip
        yield Change(content=tar_with(folder / f"{name}.bundle"))
    yield Change(content=tar_with(folder / "hash.bundle"), message="have the SHA-256")
    yield Change(content=tar_with(folder / "growing.bundle"), statuses=(507,))


def wrong_requests(body: bytes) -> Iterator[Change]:
    for content_type in ("application/json", "text/plain", "application/gzip"):
        yield Change(content=body, headers={"content-type": content_type}, statuses=(415,))
    yield Change(content=body, headers={**TAR, "content-encoding": "gzip"}, statuses=(415,))
    yield Change(content=b'{"bundle": "good"}')
    yield Change(content=body, method="POST", statuses=(405,))
    for name in ("first", "%2e%2e", "..", ".hidden", "a b", "a%0ab", "a%2fb", "%2e%2e%2fout"):
        yield Change(content=body, name=name, statuses=(404, 405, 422))
    yield Change(content=body, name="x" * 300, statuses=(404, 422))


def wrong_uploads(folder: Path) -> Iterator[Change]:
    body = archived(folder / "good.bundle")
    middle = len(body) // 2
    flipped = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    pax = tar_with(folder / "good.bundle", member("x" * 150), kind=tarfile.PAX_FORMAT)
    for content in (b"", b"x" * 700, body[:300], body[:middle], body[:-1024], flipped, pax):
        yield Change(content=content)
    for hostile in HOSTILE:
        content = tar_with(folder / "good.bundle", hostile)
        yield Change(content=content, message="cannot be unpacked")


def tar_with(bundle: Path, *members: tarfile.TarInfo, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """A bundle's files and further members, as `tar` writes them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for file in sorted(bundle.iterdir()):
            tar.add(file, file.name)
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


HOSTILE = (
    member("../out", size=3),
    member("/tmp/out", size=3),
    member("folder", tarfile.DIRTYPE),
    member("folder/file", size=3),
    member(".hidden", size=3),
    member("link", tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("link", tarfile.LNKTYPE, linkname="manifest.json"),
    member("device", tarfile.CHRTYPE),
    member("sparse", tarfile.GNUTYPE_SPARSE),
    member("manifest.json", size=3),
    member("more.bin", size=3),
)


def models(server: Server) -> bytes:
    return server.http.get("/models").content


def test_a_refused_change_leaves_the_models_byte_for_byte(tmp_path: Path, folder: Path):
    first = write_echo_bundle(tmp_path / "first.bundle", name="first")
    uploads = tmp_path / "uploads"
    num_changes = 0
    with upload_server(tmp_path, first, "--slots=4", "--memory-budget=200MiB") as server:
        before = models(server)
        on_disk = sorted(path.name for path in uploads.iterdir())
        for change in changes(folder):
            num_changes += 1
            answer = server.http.request(
                change.method,
                f"/models/{change.name}",
                content=change.content,
                headers=change.headers,
            )
            assert answer.status_code in change.statuses, (change, answer.text)
            assert answer.json()["error"]["remedy"], change
            assert str(tmp_path) not in answer.text, change
            assert change.message in answer.text, (change, answer.text)
            assert models(server) == before, change
            assert sorted(path.name for path in uploads.iterdir()) == on_disk, change
        assert server.solve(SOLVED).json()["model"] == "first"
        assert server.engine["losses"] == 0
        assert server.http.get("/readyz").json()["state"] == "ready"
    assert num_changes >= 57
