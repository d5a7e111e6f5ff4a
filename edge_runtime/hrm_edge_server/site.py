"""The command `hrm site`: the page as static files that solve in the browser of their reader."""

import base64
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_host.command import Command

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

SUDOKUS = ("sudoku", "sudoku-6x6", "sudoku-4x4")  # the page has their proofs, and those of mazes
DEFAULT_BUNDLES = ("sudoku", "maze-8x8")
NUM_BOARDS = 12  # of each level: a static site makes no others
RUNTIME = "onnxruntime-web/-/onnxruntime-web-1.30.0.tgz"
RUNTIME_SHA512 = (
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
RUNTIME_SCRIPT = "package/dist/ort.wasm.bundle.min.mjs"
RUNTIME_BINARY = "package/dist/ort-wasm-simd-threaded.wasm"
PATIENCE_S = 300.0  # for 33 MB

main = Command("hrm site")


@main.command(epilog="Example: hrm site public --bundle sudoku-6x6")
def write_site(
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            help="Bundle of Sudokus or mazes; may be repeated. Default: sudoku and maze-8x8."
        ),
    ] = None,
    registry: Annotated[
        str,
        typer.Option(
            help="npm registry that has onnxruntime-web.",
            envvar=["npm_config_registry", "NPM_CONFIG_REGISTRY"],
        ),
    ] = "https://registry.npmjs.org",
) -> None:
    """Write the page as static files that solve in the browser, also offline."""
    from hrm_host import atomic

    bundles = [open_bundle(name) for name in bundle or DEFAULT_BUNDLES]
    for opened in bundles:
        kind = opened.puzzle.name
        if kind not in SUDOKUS and kind.partition("-")[0] != "maze":
            raise ValueError(
                f"{opened.manifest.name} solves {kind}, which the page cannot check in a browser; "
                "choose bundles of Sudokus or mazes"
            )
    atomic.require_free(out)
    package = _package(f"{registry.rstrip('/')}/{RUNTIME}")
    with atomic.new_directory(out) as folder:
        _write_page(folder)
        _write_runtime(folder / "web" / "js" / "browser", package)
        _write_models(folder, bundles)
        _write_offline(folder)
    print(f"{out} is ready for any static host; to try it: python3 -m http.server -d {out}")


def _write_page(folder: Path) -> None:
    """Copy the page without what only a server has, and mark it as answered by the browser."""
    from hrm_edge_server.pages import PAGE_HEADERS, WEB

    unused = shutil.ignore_patterns("*.html", "docs.*", "offline.js")
    shutil.copytree(WEB, folder / "web", ignore=unused)
    policy = PAGE_HEADERS["Content-Security-Policy"]
    policy = policy.replace("frame-ancestors 'none'; ", "")  # browsers ignore it in a page
    policy = policy.replace("trusted-types 'none'", "trusted-types site")
    head = '<meta charset="utf-8">'
    policed = f'{head}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    text = (WEB / "index.html").read_text(encoding="utf-8").replace(head, policed)
    text = text.replace("<html", '<html data-answers="browser"', 1)
    (folder / "index.html").write_text(text, encoding="utf-8")


def _write_runtime(folder: Path, package: bytes) -> None:
    """Write two files of onnxruntime-web: its script, and its WebAssembly packed with gzip."""
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as files:
        script = files.extractfile(RUNTIME_SCRIPT)
        binary = files.extractfile(RUNTIME_BINARY)
        assert script is not None
        assert binary is not None
        (folder / "ort.mjs").write_bytes(script.read())
        packed = gzip.compress(binary.read(), compresslevel=6, mtime=0)
        (folder / "ort.bin").write_bytes(packed)


def _package(url: str) -> bytes:
    """Download onnxruntime-web; raises OSError unless it is the pinned package."""
    import httpx

    remedy = "pass a --registry that has it"
    try:
        answer = httpx.get(url, follow_redirects=True, timeout=PATIENCE_S).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).partition("\n")[0]
        raise OSError(f"{url} cannot be downloaded ({reason}); {remedy}.") from error
    digest = hashlib.sha512(answer.content).digest()
    if base64.b64encode(digest).decode() != RUNTIME_SHA512:
        raise OSError(f"{url} is not the package that npm published; {remedy}.")
    return answer.content


def _write_models(folder: Path, bundles: "list[Bundle]") -> None:
    """Write the graphs, and the answers of the routes /models, /kinds and /puzzle."""
    from hrm_edge_server import pages

    graphs = folder / "models"
    graphs.mkdir()
    models: list[dict[str, Any]] = []
    for bundle in bundles:
        models.append(_model_view(bundle))
        graph = bundle.graph_path("fp32", device="cpu")
        shutil.copyfile(graph, graphs / f"{bundle.manifest.name}.onnx")
    names = {bundle.puzzle.name for bundle in bundles}
    kinds = [kind for kind in pages.kinds() if kind.kind in names]
    answers = {
        "models": {"models": models},
        "kinds": {"kinds": [kind.model_dump(mode="json") for kind in kinds]},
        "puzzle": [board for kind in kinds for board in _boards(kind.kind, kind.difficulties)],
    }
    for name, answer in answers.items():
        (folder / f"{name}.json").write_text(json.dumps(answer), encoding="utf-8")


def _model_view(bundle: "Bundle") -> dict[str, Any]:
    """The entry in /models, for one attempt without hypotheses, and the row of the puzzle table."""
    from hrm_edge_runtime.api.served_model import ServedModel

    model = ServedModel.of(bundle, precision="fp32", num_slots=1, max_attempts=1)
    view = model.view().model_dump(mode="json")
    provenance = view["provenance"]
    provenance.pop("solved_16_attempts", None)
    curve = bundle.manifest.curves.get("fp32")
    if curve is not None and bundle.manifest.attempt_kind == "hypotheses":
        provenance["held_out"] = curve.num_puzzles
        provenance["solved"] = max(point.proven for point in curve.points)
    return {**view, "state": "ready", "puzzle_vector": bundle.puzzle_table[0].tolist()}


def _boards(kind: str, difficulties: list[str]) -> Iterator[dict[str, Any]]:
    from hrm_edge_runtime.api.schema import FreshRequest
    from hrm_edge_server.pages import fresh_puzzle

    for difficulty, seed in product(difficulties, range(NUM_BOARDS)):
        wanted = FreshRequest(kind=kind, difficulty=difficulty, seed=seed, held_out=True)
        yield fresh_puzzle(wanted).model_dump(mode="json")


def _write_offline(folder: Path) -> None:
    """Write the service worker with the list of all files and a hash of their contents."""
    from hrm_edge_server.pages import WEB

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    version = hashlib.sha256()
    for path in files:
        version.update(path.read_bytes())
    names = [path.relative_to(folder).as_posix() for path in files]
    site = {"version": version.hexdigest(), "files": ["./", *names]}
    script = (WEB / "offline.js").read_text(encoding="utf-8")
    text = f"const SITE = {json.dumps(site)};\n{script}"
    (folder / "offline.js").write_text(text, encoding="utf-8")
