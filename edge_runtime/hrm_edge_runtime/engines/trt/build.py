"""Builds TensorRT engines on the device that will run them, measures them and says which is fastest.

    python3 -m hrm_edge_runtime.engines.trt.build model.bundle --slots 4

On an 8 GB board the builder needs more memory than everything after it, so `hrm-serve` runs this command as a process
of its own (`Build`). Not run on a GPU yet; the same code runs on TensorRT-RTX in the check without a GPU.
"""

import hashlib
import json
import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from hrm_edge_runtime.contract.bundle import GOLDEN_NAME, Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import (
    INPUTS,
    EngineLostError,
    EngineUnavailableError,
    load_blanks,
    median_step_ms,
    shapes_of,
)
from hrm_edge_runtime.engines.factory import max_slots
from hrm_edge_runtime.engines.trt import api, cache
from hrm_edge_runtime.engines.trt.api import BuildSettings
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey
from hrm_edge_runtime.parity.options import DEFAULT_FILE
from hrm_edge_runtime.parity.report import breaks, read_gates
from hrm_edge_runtime.parity.walk import compare
from hrm_host import memory
from hrm_host.command import Command
from hrm_host.progress import Stages, stages_on

app = Command("tensorrt_build")

WORTH_A_TRY = ("fp16", "int8", "fp32")  # a device that INT8 loses has FP16 measured already
FUSED_ATTENTION = re.compile(r"_gemm_mha_v2_0x[0-9a-f]+")
MEASURE_S, MIN_STEPS = 0.5, 10
MAX_GROWTH = 1.3  # a plan much larger than its graph holds some weights more than once

# Calculated, not measured on a Jetson: the builder's kernel library took 1.75 GB of host memory on x86 with 10.10
# (NVIDIA/TensorRT issue 4493); beside it the graph, its parsed copy and the plan, and the workspace.
BUILDER_MB = 2000
COPIES_OF_GRAPH = 4


class Build:
    """Builds in a process of its own, which shows its progress; a Ctrl-C does not reach it, any thread may end it."""

    def __init__(self, bundle: Bundle, *, precision: str | None, num_slots: int) -> None:
        self._bundle, self._precision, self._began_s = bundle, "", time.monotonic()
        command = [*cache.build_command(bundle, precision=precision, num_slots=num_slots), "--json"]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.kill = self._child.kill

    def progress(self) -> dict[str, str | float]:
        elapsed_s = round(time.monotonic() - self._began_s, 1)
        return {"model": self._bundle.manifest.name, "precision": self._precision, "elapsed_s": elapsed_s}

    def result(self, *, to_judge: bool) -> str:
        """The precision to run; refuses an engine that breaks PyTorch's answers, unless it is opened `to_judge` it."""
        told: dict[str, Any] = {}
        with self._child as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    if line.startswith(('{"building"', '{"chosen"')):  # a library may print lines of its own
                        told = json.loads(line)
                        self._precision = told.get("building", self._precision)
                status = child.wait()
            finally:
                child.kill()
        if status or "chosen" not in told:
            raise EngineUnavailableError(f"no TensorRT engine was built (status {status}): see the line above.")
        chosen, pages = told["chosen"], told["engines"]
        first = pages[0]["key"]["precision"]
        if chosen is None and not to_judge:
            raise EngineUnavailableError(
                f"{first} on TensorRT breaks parity here ({pages[0]['breaks'][0]}): serve another precision, or look "
                f"with `hrm-parity {self._bundle.path} --engine tensorrt:{first}`."
            )
        return str(chosen or first)


@app.command(epilog="Example: python3 -m hrm_edge_runtime.engines.trt.build model.bundle --slots 4")
def build_command(
    bundle: Annotated[str, typer.Argument(help="Bundle directory or the name of a shipped one.")],
    precision: Annotated[
        str | None, typer.Option(help="The graph to build from; without it int8 and fp16 (else fp32), measured.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Puzzles in one batch; without it what hrm-serve tries at most.")
    ] = None,
    workspace_mb: Annotated[int, typer.Option(min=16, help="Memory the builder's kernels may use.")] = 512,
    level: Annotated[int, typer.Option(min=0, max=5, help="TensorRT's optimisation level.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Build although the engine is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build although memory looks too small.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the engines' pages and the choice as JSON.")] = False,
) -> None:
    """Build a bundle's TensorRT engines on this device, measure them and say which is fastest."""
    settings = BuildSettings(workspace_mb=workspace_mb, optimization_level=level)
    console = Console(stderr=True)
    built: list[Built] = []
    opened = Bundle.open(find_bundle(bundle))
    slots = slots or max_slots(opened)
    held = [one for one in WORTH_A_TRY if one in opened.manifest.precisions]
    for one in [precision] if precision else [one for one in held if one != "fp32"] or held:
        if as_json:
            print("\n" + json.dumps({"building": one}), flush=True)
        try:
            built.append(_built(opened, one, slots, settings=settings, again=again, force=force, console=console))
        except (ValueError, OSError, EngineLostError) as error:
            sys.stderr.write(f"tensorrt_build: {one}: {error}\n")
    if not built:
        raise typer.Exit(1)
    console.print(cache.verdict(built, slots), markup=False, highlight=False)
    if as_json:
        pages = [one.model_dump(mode="json") for one in built]
        # a line of its own, whatever a library printed before
        print("\n" + json.dumps({"chosen": cache.fastest_of(built, slots), "engines": pages}))


def _built(
    bundle: Bundle, precision: str, slots: int, *, settings: BuildSettings, again: bool, force: bool, console: Console
) -> Built:
    """Build where needed, then measure; the page on disk is whole only with its measurement."""
    key = EngineKey.of(bundle, cache.this_machine(), precision=precision, num_slots=slots)
    built = None if again else cache.find(key)
    if built is None:
        if not force:
            graph_mb, left = bundle.graph_path(precision).stat().st_size // 10**6, memory.read_memory()
            needs_mb = BUILDER_MB + COPIES_OF_GRAPH * graph_mb + settings.workspace_mb
            if left is not None and left.allocatable_mb < needs_mb:
                raise EngineUnavailableError(
                    f"building an engine takes about {needs_mb} MB and this machine can give {left.allocatable_mb} MB: "
                    f"{api.HEADLESS}; --force tries it all the same."
                )
        with stages_on(console) as stages:
            built = _build_engine(bundle, key, settings, stages)
        growth = built.plan_bytes / built.graph_bytes
        remark = f" ({growth:.1f} times its graph: weights may stand in it twice)" if growth > MAX_GROWTH else ""
        said = f"{built.key.name}: {built.plan_bytes / 1e6:.1f} MB{remark} after {built.build_seconds:.0f} s"
        console.print(said, markup=False, highlight=False)
    if built.step_ms is None:
        built = _measured(bundle, built)
        cache.write(built)
    return built


def _build_engine(bundle: Bundle, key: EngineKey, settings: BuildSettings, stages: Stages) -> Built:
    graph, folder = bundle.graph_path(key.precision), cache.plan_folder()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    timing_cache = folder / f"timing-{key.machine_name}.cache"
    profiles = [shapes_of(INPUTS, bundle.manifest, bucket) for bucket in key.buckets]
    plan = api.plan_from_onnx(graph, profiles, settings=settings, stages=stages, timing_cache=timing_cache)
    built = Built(
        key=key,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        plan_bytes=len(plan),
        graph_bytes=graph.stat().st_size,
        build_seconds=round(time.monotonic() - began, 1),
        workspace_mb=settings.workspace_mb,
        optimization_level=settings.optimization_level,
    )
    cache.write(built, plan)
    return built


def _measured(bundle: Bundle, built: Built) -> Built:
    """With the times of its segments, and what PyTorch's golden traces say of it."""
    precision, num_slots = built.key.precision, built.key.buckets[-1]
    with closing(cache.open_engine(bundle, precision=precision, num_slots=num_slots)) as engine:
        load_blanks(engine, bundle.puzzle_table[0])
        step_ms = {
            bucket: round(median_step_ms(engine, bucket, seconds=MEASURE_S, min_steps=MIN_STEPS), 4)
            for bucket in built.key.buckets
        }
        fused = len(FUSED_ATTENTION.findall(engine.layer_names()))
    measured = built.model_copy(update={"step_ms": step_ms, "fused_attention": fused})
    if GOLDEN_NAME not in bundle.manifest.files:
        return measured
    table, puzzle, policy = bundle.puzzle_table, bundle.puzzle, bundle.manifest.halting_policy(precision)
    opened = cache.open_engine(bundle, precision=precision, num_slots=num_slots, want_logits=True)
    with closing(opened) as engine:
        report = compare(bundle.golden(), engine, puzzle_table=table, puzzle=puzzle, policy=policy)
    report = report if puzzle.proof_exists else replace(report, proven=None)
    broken = breaks(report, read_gates(DEFAULT_FILE, precision, "golden"))
    return measured.model_copy(update={"breaks": tuple(map(str, broken))})


if __name__ == "__main__":
    app()
