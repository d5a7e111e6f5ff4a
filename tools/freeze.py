"""What a user of this product can see, as one JSON file, so that a refactoring can be compared with what was before it.

python tools/freeze.py --root . --out before.json
python tools/freeze.py --root . --out after.json --only help,served
python tools/freeze.py --diff before.json after.json --only help,served

Everything comes from commands, HTTP and files of the checkout at --root; no module of ours is imported here, so modules
may move freely. Paths and times are normalised: the same checkout on the same machine gives the same file. Digests of
weights and graphs and the sums of floats depend on the processor and on the versions of torch and ONNX Runtime, so
compare files of one machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

SHIPPED = ("sudoku", "sudoku-6x6", "maze-8x8", "logistics-6x6", "arc-7x7")
PUZZLES: dict[str, list[Any]] = json.loads((Path(__file__).parent / "puzzles.json").read_text(encoding="utf-8"))
SECONDS_TO_START = 120.0
CALL = "import sys; from importlib import import_module; sys.argv[0] = {!r}; import_module({!r}).{}()"
ANSWER = (
    "solution",
    "status",
    "solved",
    "verified",
    "segments",
    "halted_by",
    "model",
    "attempts",
    "total_segments",
    "votes",
)
PASSING = ("time", "date", "commit")  # fields of a bundle that tell of the moment and not of the model

TRAINING = (
    *(
        "--puzzle",
        "sudoku-4x4",
        "--data",
        "data/sudoku-4x4",
        "--run",
        "run",
        "--hw",
        "cpu",
        "--validation-puzzles",
        "20",
    ),
    *("--checkpoint-steps", "1", "--keep", "1"),  # a checkpoint a step, because each makes a line of metrics
    *("--set", "compile=false", "--set", "seed=7", "--set", "batch_size=16", "--set", "window=1"),
    *("--set", "total_samples=3200"),
)
EXPORT = (
    *("checkpoint", "--out", "exported.bundle", "--fp16", "--int8", "--calib", "sudoku", "--held-out", "24"),
    *("--max-loss", "100", "--golden", "4", "--max-segments", "8"),
)
REFUSED_EXPORTS: dict[str, tuple[str, ...]] = {
    "no checkpoint": (),
    "no checkpoint, but puzzles": ("--calib", "sudoku"),
    "missing directory": ("nowhere", "--out", "x.bundle"),
    "no weights": ("no-weights", "--out", "x.bundle"),
    "no configuration": ("no-config", "--out", "x.bundle"),
    "cut weights": ("cut-weights", "--out", "x.bundle"),
    "unknown field": ("unknown-field", "--out", "x.bundle"),
    "no puzzle": ("no-puzzle", "--out", "x.bundle"),
    "another puzzle": ("another-puzzle", "--out", "x.bundle"),
    "no number": ("checkpoint", "--max-loss", "little"),
    "a loss that no precision keeps": (
        *("checkpoint", "--out", "x.bundle", "--fp16", "--max-loss", "-100", "--held-out", "24", "--max-segments", "4"),
    ),
    "unknown puzzles": ("checkpoint", "--out", "x.bundle", "--int8", "--calib", "chess"),
    "puzzles of another kind": ("checkpoint", "--out", "x.bundle", "--int8", "--calib", "maze"),
    "unknown loop": ("checkpoint", "--out", "x.bundle", "--loop", "sideways"),
    "unknown policy": ("checkpoint", "--out", "x.bundle", "--policy", "never", "--held-out", "4"),
    "report without INT8": ("checkpoint", "--out", "x.bundle", "--report", "report"),
    "something is there": ("checkpoint", "--out", "checkpoint"),
    "no data set": ("checkpoint", "--out", "x.bundle", "--data", "nowhere"),
    "nothing held out": ("checkpoint", "--out", "x.bundle", "--held-out", "0"),
}  # fmt: skip

_SUDOKU = PUZZLES["sudoku-6x6"][0]
REFUSED_REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no JSON": ("POST", "/solve", {"content": b"{", "headers": {"content-type": "application/json"}}),
    "another type": ("POST", "/solve", {"content": b"x", "headers": {"content-type": "text/plain"}}),
    "no object": ("POST", "/solve", {"json": [1]}),
    "no puzzle": ("POST", "/solve", {"json": {}}),
    "unknown field": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "colour": "red"}}),
    "doubled field": (
        "POST", "/solve", {"content": b'{"puzzle": 1, "puzzle": 2}', "headers": {"content-type": "application/json"}},
    ),
    "unknown kind": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "kind": "chess"}}),
    "unknown model": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "model": "deep-thought"}}),
    "wrong length": ("POST", "/solve", {"json": {"puzzle": "12", "kind": "sudoku-6x6"}}),
    "a digit twice": ("POST", "/solve", {"json": {"puzzle": "11" + "." * 34, "kind": "sudoku-6x6"}}),
    "wrong character": ("POST", "/solve", {"json": {"puzzle": "x" + "." * 35, "kind": "sudoku-6x6"}}),
    "any notation": ("POST", "/solve", {"json": {"puzzle": {"a": 1}}}),
    "no segments": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "max_segments": 0}}),
    "too many attempts": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "attempts": 1000}}),
    "unknown policy": ("POST", "/solve", {"json": {"puzzle": _SUDOKU, "policy": "never"}}),
    "too large": ("POST", "/solve", {"json": {"puzzle": "." * 70_000}}),
    "stream of nothing": ("POST", "/solve/stream", {"json": {}}),
    "unknown order": (
        "POST", "/solve/batch?order=random", {"content": b"", "headers": {"content-type": "application/x-ndjson"}},
    ),
    "unknown path": ("GET", "/nothing", {}),
    "another method": ("GET", "/solve", {}),
    "no library of that": ("DELETE", "/models/nothing", {}),
    "another page": ("POST", "/solve", {"json": {"puzzle": _SUDOKU}, "headers": {"origin": "http://elsewhere.test"}}),
}  # fmt: skip


class Checkout:
    """The commands of one checkout, run in a directory of their own so that no path of this machine shows."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self.work = root.resolve(), work
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        self.commands = _table(text, "[project.scripts]")
        rooms = re.findall(r'^ +"(\w+)/hrm_\w+",$', text, re.M)
        plugins = self.work / "plugins"  # the environment's own entry points may be those of another checkout
        metadata = plugins / "hrm_edge-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hrm-edge\nVersion: 0\n")
        groups = re.findall(r'^\[project\.entry-points\."(.+)"\]$', text, re.M)
        tables = {group: _table(text, f'[project.entry-points."{group}"]') for group in groups}
        lines = [
            [f"[{group}]", *(f"{name} = {value}" for name, value in table.items())] for group, table in tables.items()
        ]
        (metadata / "entry_points.txt").write_text("\n".join(line for group in lines for line in group) + "\n")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HRM_", "PYTHON", "FORCE_"))}
        paths = [str(plugins), *(str(self.root / room) for room in rooms)]
        plain = {"COLUMNS": "100", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        self.environment = {**kept, **plain, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def line(self, command: str, *arguments: str) -> list[str]:
        module, _, function = self.commands[command].partition(":")
        return [sys.executable, "-c", CALL.format(command, module, function), *arguments]

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(command, *arguments),
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def run_well(self, command: str, *arguments: str) -> str:
        done = self.run(command, *arguments)
        if done.returncode:
            raise SystemExit(f"{command} {' '.join(arguments)} exits with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def plain(self, text: str) -> str:
        """Without paths of this machine and spaces at the ends of lines."""
        for path, word in ((self.work, "WORK"), (self.root, "ROOT"), (Path.home(), "HOME")):
            text = text.replace(str(path), word)
        return "\n".join(line.rstrip() for line in text.splitlines())

    @contextlib.contextmanager
    def served(self, *bundles: str) -> Generator[httpx.Client]:
        """A ready server of these bundles."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ("--engine", "cpu:fp32", "--slots", "4", "--threads", "1", "--port", str(port))
        log = self.work / "server.log"
        with log.open("w") as errors:
            server = subprocess.Popen(
                self.line("hrm-serve", *bundles, *options), cwd=self.work, env=self.environment, stderr=errors
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120.0) as http:
                _wait_until_ready(http, server, log)
                yield http
        finally:
            server.terminate()
            server.wait(60)


def _table(text: str, heading: str) -> dict[str, str]:
    """A table of strings in pyproject.toml; Python 3.10 has no reader for it."""
    body = text.partition(heading + "\n")[2].partition("\n\n")[0]
    return dict(re.findall(r'^([\w-]+) = "(.+)"$', body, re.M))


def _wait_until_ready(http: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + SECONDS_TO_START
    while server.poll() is None and time.monotonic() < give_up_s:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"hrm-serve does not become ready:\n{log.read_text()[-3000:]}")


def helps(checkout: Checkout) -> dict[str, str]:
    """Every --help, of commands and their subcommands."""
    found: dict[str, str] = {}
    waiting = [[command] for command in sorted(checkout.commands)]
    while waiting:
        command, *names = waiting.pop(0)
        printed = checkout.run_well(command, *names, "--help")
        text = checkout.plain(re.sub(r"\[default:\s+/[^]]*\]", "[default: PATH]", printed))  # it may break over lines
        found[" ".join([command, *names])] = text
        listed = re.search(r"^(?:╭─ )?Commands\b.*\n((?:.+\n?)*)", text, re.M)
        subcommands = re.findall(r"^(?:  |│ )([a-z][\w-]*)", listed[1], re.M) if listed else []
        waiting += [[command, *names, name] for name in subcommands]
    return found


def served(checkout: Checkout) -> dict[str, Any]:
    """What programs of others are written against: the description of the interface, and the names of metrics."""
    with checkout.served("sudoku-6x6") as http:
        answer = http.post("/solve", json={"puzzle": _SUDOKU})
        time.sleep(0.5)  # the engine tells of its lanes ten times a second
        page = http.get("/metrics").text
        models = http.get("/models").json()
        slots = http.get("/slots").json()
        return {
            "openapi": http.get("/openapi.json").json(),
            "metrics": {
                family.name: {
                    "type": family.type,
                    "help": family.documentation,
                    "labels": sorted({label for sample in family.samples for label in sample.labels}),
                }
                for family in text_string_to_metric_families(page)
            },
            "answer headers": sorted(answer.headers),
            "answer keys": list(answer.json()),
            "models keys": [sorted(model) for model in models["models"]],
            "slots keys": _keys(slots),
        }


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keys(inner) for key, inner in value.items()}
    return [_keys(inner) for inner in value[:1]] if isinstance(value, list) else None


def answers(checkout: Checkout) -> dict[str, Any]:
    """Answers to fixed puzzles of every kind, one batch, one stream, several attempts, and refusals."""
    with checkout.served(*SHIPPED) as http:
        single = {
            kind: [_answer(http.post("/solve", json={"puzzle": puzzle, "kind": kind}).json()) for puzzle in puzzles]
            for kind, puzzles in PUZZLES.items()
        }
        lines = [json.dumps({"puzzle": puzzle, "kind": "sudoku-6x6"}) for puzzle in PUZZLES["sudoku-6x6"]]
        batch = http.post(
            "/solve/batch?order=kept",
            content="\n".join([*lines, '{"puzzle": 5}', "no JSON"]),
            headers={"content-type": "application/x-ndjson"},
        )
        stream = http.post("/solve/stream", json={"puzzle": _SUDOKU})
        tried = http.post("/solve", json={"puzzle": PUZZLES["sudoku"][3], "kind": "sudoku", "attempts": 4}).json()
        voted = http.post("/solve", json={"puzzle": PUZZLES["arc-7x7"][0], "kind": "arc-7x7", "attempts": 4}).json()
        return {
            "single": single,
            "batch": [_batch_line(json.loads(line)) for line in batch.text.splitlines()],
            "stream": dict(Counter(re.findall(r"^event: (\w+)$", stream.text, re.M))),
            "rows": _answer(http.post("/solve", json={"puzzle": _rows(_SUDOKU, 6), "kind": "sudoku-6x6"}).json()),
            "attempts": [{key: answer.get(key) for key in ("solution", "verified")} for answer in (tried, voted)],
            "refusals": {
                name: _refusal(http.request(method, path, **content))
                for name, (method, path, content) in REFUSED_REQUESTS.items()
            },
        }


def _rows(line: str, width: int) -> list[list[int]]:
    digits = [0 if character == "." else int(character) for character in line]
    return [digits[start : start + width] for start in range(0, len(digits), width)]


def _answer(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in (*ANSWER, "error") if key in body}


def _batch_line(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, "answer": _answer(line["answer"])} if "answer" in line else dict(line)


def _refusal(response: httpx.Response) -> dict[str, Any]:
    return {"status": response.status_code, "body": response.json()}


def data(checkout: Checkout) -> dict[str, Any]:
    """Data sets made with a seed, byte for byte."""
    kinds = ("sudoku-4x4", "sudoku-6x6", "maze-8x8", "logistics-6x6")
    for kind in kinds:
        if not (checkout.work / "data" / kind).exists():
            counts = ("--train", "200", "--test", "40") if kind == "sudoku-4x4" else ("--train", "24", "--test", "12")
            checkout.run_well("hrm-data", "build", kind, "--out", f"data/{kind}", *counts, "--workers", "1")
    return {kind: _digests(checkout.work / "data" / kind) for kind in kinds}


def training(checkout: Checkout) -> dict[str, Any]:
    """The loss of 200 steps under a seed, and the weights they end with."""
    data(checkout)
    checkout.run_well("hrm-train", *TRAINING)
    run = checkout.work / "run"
    rows = [json.loads(line) for line in (run / "metrics.ndjson").read_text().splitlines()]
    losses = [row["train"]["loss"] for row in rows]
    validations = [json.loads(line) for line in (run / "validation.ndjson").read_text().splitlines()]
    steps = sorted(run.glob("step_*"))
    return {
        "num_losses": len(losses),
        "first": losses[:5],
        "last": losses[-5:],
        "sha256": _sha256(json.dumps(losses).encode()),
        "weights": {step.name: _sha256((step / "model.safetensors").read_bytes()) for step in steps},
        "files": sorted(path.name for path in steps[-1].iterdir()),
        "rows": [sorted(rows[0]), sorted(rows[0]["train"]), sorted(rows[0]["phase_ms"])],
        "validations": [_without(row, ("time", "seconds")) for row in validations],
    }


def export(checkout: Checkout) -> dict[str, Any]:
    """The bundle of the checkpoint that stands in the repository; its JSON files without what tells of the moment."""
    _checkpoint(checkout)
    checkout.run_well("hrm-export", *EXPORT)
    bundle = checkout.work / "exported.bundle"
    manifest = json.loads((bundle / "manifest.json").read_text())
    return {"files": _digests(bundle), "manifest": _without(_rounded(manifest), (*PASSING, "files", "curves"))}


def refused_exports(checkout: Checkout) -> dict[str, Any]:
    """Exit code and message of hrm-export where it must not export."""
    whole = _checkpoint(checkout)
    meta = json.loads((whole / "meta.json").read_text())
    config = json.loads((whole / "config.json").read_text())
    changed: dict[str, Callable[[Path], object]] = {
        "no-weights": lambda copy: (copy / "model.safetensors").unlink(),
        "no-config": lambda copy: (copy / "config.json").unlink(),
        "cut-weights": lambda copy: os.truncate(copy / "model.safetensors", 5000),
        "unknown-field": lambda copy: (copy / "config.json").write_text(json.dumps({**config, "colour": "red"})),
        "no-puzzle": lambda copy: (copy / "meta.json").write_text("{}"),
        "another-puzzle": lambda copy: (copy / "meta.json").write_text(json.dumps({**meta, "puzzle": "maze-8x8"})),
    }
    for name, change in changed.items():
        copy = checkout.work / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        change(copy)
    found: dict[str, Any] = {}
    for name, arguments in REFUSED_EXPORTS.items():
        done = checkout.run("hrm-export", *arguments)
        # Stages and their seconds come before it.
        message = re.search(r"^(hrm-export:|Usage:|Traceback).*", done.stderr, re.M | re.S)
        found[name] = {
            "exit": done.returncode,
            "message": checkout.plain(message[0] if message else done.stderr),
            "printed": done.stdout,
        }
    return found


def parity(checkout: Checkout) -> dict[str, Any]:
    """Each shipped bundle against its golden traces; gaps of the last bits count as none."""
    found: dict[str, Any] = {}
    for name in SHIPPED:
        done = checkout.run("hrm-parity", name, "--engine", "cpu:fp32", "--threads", "1", "--json")
        findings = json.loads(done.stdout)
        # Which puzzle has the largest gap, and whether a gap stays below its gate, may hang on the last bit.
        kept = _without(_rounded(findings, 3), ("puzzle", "breaks", "reasons", "passed"))
        found[name] = {**kept, "gates": findings["gates"]}
    return found


def _checkpoint(checkout: Checkout) -> Path:
    copy = checkout.work / "checkpoint"
    if not copy.exists():
        shutil.copytree(checkout.root / "model/checkpoints/sudoku", copy)
    return copy


def _digests(directory: Path) -> dict[str, str]:
    """sha256 of every file; JSON without passing fields, and without the digests of other JSON that it may list."""
    found: dict[str, str] = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".json":
            value = _without(json.loads(content), PASSING)
            if isinstance(value, dict) and isinstance(value.get("files"), dict):
                value["files"] = {name: entry for name, entry in value["files"].items() if not name.endswith(".json")}
            content = json.dumps(value).encode()
        found[str(path.relative_to(directory))] = _sha256(content)
    return found


def _without(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(inner, keys) for key, inner in value.items() if key not in keys and not key.endswith("_ms")
        }
    return [_without(inner, keys) for inner in value] if isinstance(value, list) else value


def _rounded(value: Any, digits: int = 6) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner, digits) for inner in value]
    return round(value, digits) if isinstance(value, float) else value


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


PARTS: dict[str, Callable[[Checkout], dict[str, Any]]] = {
    "help": helps,
    "served": served,
    "answers": answers,
    "data": data,
    "training": training,
    "export": export,
    "refused exports": refused_exports,
    "parity": parity,
}


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """One line for each value that is not the same; texts line by line."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in after or key not in before:
                yield f"{path}/{key}: {'gone' if key in before else 'new'}"
            else:
                yield from differences(before[key], after[key], f"{path}/{key}")
        if list(before) != list(after) and before.keys() == after.keys():
            yield f"{path}: the same keys in another order"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}/{index}")
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield from differences(before.split("\n"), after.split("\n"), path)
    elif before != after or type(before) is not type(after):
        yield f"{path}:\n  - {json.dumps(before, ensure_ascii=False)}\n  + {json.dumps(after, ensure_ascii=False)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="checkout to look at")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="two files to compare")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"{unknown[0]!r} is no part; choose from {', '.join(PARTS)}")
    if given.diff:
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in given.diff)
        lines = [line for name in names for line in differences(before.get(name), after.get(name), name)]
        print("\n".join(lines) or "no difference")
        sys.exit(1 if lines else 0)
    if not given.root or not given.out:
        parser.error("give --root and --out, or --diff")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        checkout = Checkout(given.root, Path(work).resolve())
        for name in names:
            began_s = time.monotonic()
            found[name] = PARTS[name](checkout)
            print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
