"""Builds TensorRT engines on the device that will run them, measures them and picks the fastest.

    python3 -m hrm_edge_runtime.engines.trt.build model.bundle --slots 4

On an 8 GB board the builder needs more memory than everything after it, so `hrm-serve` runs this
command as a process of its own (`Build`). Not run on a GPU yet; the same code runs on TensorRT-RTX
in the check without a GPU.
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
    max_slots,
    median_step_ms,
    shapes_of,
)
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

WORTH_A_TRY = ("fp16", "int8", "fp32")  # fp16 first, as the fallback if int8 loses
FUSED_ATTENTION = re.compile(r"_gemm_mha_v2_0x[0-9a-f]+")
MEASURE_S = 0.5
MIN_STEPS = 10
MAX_GROWTH = 1.3  # a plan much larger than its graph contains some weights more than once

# Calculated, not measured on a Jetson: the builder's kernel library took 1.75 GB of host memory on
# x86 with 10.10 (NVIDIA/TensorRT issue 4493). The graph, its parsed copy, the plan and the
# workspace come on top.
BUILDER_MB = 2000
COPIES_OF_GRAPH = 4


class Build:
    """A build in a process of its own, which shows its progress on the terminal.

    Ctrl-C does not reach it; any thread may call `kill`.
    """

    def __init__(self, bundle: Bundle, *, precision: str | None, num_slots: int) -> None:
        self._bundle = bundle
        self._precision = ""
        self._began_s = time.monotonic()
        command = cache.build_command(bundle, precision=precision, num_slots=num_slots)
        self._child = subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.kill = self._child.kill

    def progress(self) -> dict[str, str | float]:
        """The model, the precision that is building, and the seconds since the start."""
        return {
            "model": self._bundle.manifest.name,
            "precision": self._precision,
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }

    def result(self, *, to_judge: bool) -> str:
        """Wait for the build; returns the precision to run.

        Raises EngineUnavailableError if nothing was built, or if the engine breaks PyTorch's
        answers and is not opened `to_judge` it.
        """
        outcome = self._outcome()
        if outcome["chosen"] is not None:
            return str(outcome["chosen"])
        page = outcome["engines"][0]
        precision = str(page["key"]["precision"])
        if not to_judge:
            raise EngineUnavailableError(
                f"{precision} on TensorRT breaks parity here ({page['breaks'][0]}): serve another "
                "precision, or inspect it with "
                f"`hrm-parity {self._bundle.path} --engine tensorrt:{precision}`."
            )
        return precision

    def _outcome(self) -> dict[str, Any]:
        """Read the child's lines to the end; returns the last."""
        message: dict[str, Any] = {}
        with self._child as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    if line.startswith(
                        ('{"building"', '{"chosen"')
                    ):  # libraries may print lines of their own
                        message = json.loads(line)
                        self._precision = message.get("building", self._precision)
                status = child.wait()
            finally:
                child.kill()
        if status or "chosen" not in message:
            raise EngineUnavailableError(
                f"no TensorRT engine was built (status {status}): see the line above."
            )
        return message


@app.command(epilog="Example: python3 -m hrm_edge_runtime.engines.trt.build model.bundle --slots 4")
def build_command(
    bundle: Annotated[str, typer.Argument(help="Bundle directory or shipped name.")],
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision to build. Default: int8 and fp16 (else fp32); all are measured."
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Attempts per batch. Default: the numbers that hrm-serve tries."
        ),
    ] = None,
    workspace_mb: Annotated[
        int, typer.Option(min=16, help="Megabytes of scratch memory for the kernels.")
    ] = 512,
    level: Annotated[int, typer.Option(min=0, max=5, help="Optimization level of TensorRT.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Rebuild existing engines.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build even if memory looks insufficient.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the engines and the choice as JSON.")
    ] = False,
) -> None:
    """Build a bundle's TensorRT engines on this device, measure them and pick the fastest."""
    settings = BuildSettings(workspace_mb=workspace_mb, optimization_level=level)
    console = Console(stderr=True)
    built: list[Built] = []
    opened = Bundle.open(find_bundle(bundle))
    slots = slots or max_slots(opened)
    precisions = [precision] if precision else _worth_a_try(opened)
    for one in precisions:
        if as_json:
            _print_line({"building": one})
        try:
            page = _built(
                opened, one, slots, settings=settings, again=again, force=force, console=console
            )
        except (ValueError, OSError, EngineLostError) as error:
            sys.stderr.write(f"tensorrt_build: {one}: {error}\n")
        else:
            built.append(page)
    if not built:
        raise typer.Exit(1)
    console.print(cache.verdict(built, slots), markup=False, highlight=False)
    if as_json:
        pages = [page.model_dump(mode="json") for page in built]
        _print_line({"chosen": cache.fastest_of(built, slots), "engines": pages})


def _worth_a_try(bundle: Bundle) -> list[str]:
    """The precisions to build: fp32 only if the bundle has nothing else."""
    held = [precision for precision in WORTH_A_TRY if precision in bundle.manifest.precisions]
    reduced = [precision for precision in held if precision != "fp32"]
    return reduced or held


def _print_line(message: dict[str, Any]) -> None:
    """Print a JSON object on a line of its own, whatever a library printed before."""
    print("\n" + json.dumps(message), flush=True)


def _built(
    bundle: Bundle,
    precision: str,
    slots: int,
    *,
    settings: BuildSettings,
    again: bool,
    force: bool,
    console: Console,
) -> Built:
    """The page of an engine, which is built and measured if it is not on disk."""
    key = EngineKey.of(bundle, cache.this_machine(), precision=precision, num_slots=slots)
    built = None
    if not again:
        built = cache.find(key)
    if built is None:
        if not force:
            _check_memory(bundle, precision, settings)
        with stages_on(console) as stages:
            built = _build_engine(bundle, key, settings, stages)
        console.print(_summary(built), markup=False, highlight=False)
    if built.step_ms is None:
        built = _measured(bundle, built)
        built = _judged(bundle, built)
        cache.write(built)
    return built


def _check_memory(bundle: Bundle, precision: str, settings: BuildSettings) -> None:
    """Raise EngineUnavailableError if the machine has less memory than a build takes."""
    available = memory.read_memory()
    if available is None:
        return
    graph_mb = bundle.graph_path(precision).stat().st_size // 10**6
    needs_mb = BUILDER_MB + COPIES_OF_GRAPH * graph_mb + settings.workspace_mb
    if available.allocatable_mb < needs_mb:
        raise EngineUnavailableError(
            f"building an engine takes about {needs_mb} MB and this machine can give "
            f"{available.allocatable_mb} MB: {api.HEADLESS}; --force tries it anyway."
        )


def _summary(built: Built) -> str:
    growth = built.plan_bytes / built.graph_bytes
    remark = ""
    if growth > MAX_GROWTH:
        remark = f" ({growth:.1f} times its graph: it may contain weights twice)"
    size_mb = built.plan_bytes / 1e6
    return f"{built.key.name}: {size_mb:.1f} MB{remark} after {built.build_seconds:.0f} s"


def _build_engine(bundle: Bundle, key: EngineKey, settings: BuildSettings, stages: Stages) -> Built:
    graph = bundle.graph_path(key.precision)
    folder = cache.plan_folder()
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    plan = api.plan_from_onnx(
        graph,
        [shapes_of(INPUTS, bundle.manifest, bucket) for bucket in key.buckets],
        settings=settings,
        stages=stages,
        timing_cache=folder / f"timing-{key.machine_name}.cache",
    )
    built = Built(
        key=key,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        plan_bytes=len(plan),
        graph_bytes=graph.stat().st_size,
        build_seconds=round(time.monotonic() - began_s, 1),
        workspace_mb=settings.workspace_mb,
        optimization_level=settings.optimization_level,
    )
    cache.write(built, plan)
    return built


def _measured(bundle: Bundle, built: Built) -> Built:
    """The page with the time of a segment per bucket and the number of fused attention kernels."""
    precision = built.key.precision
    num_slots = built.key.buckets[-1]
    step_ms: dict[int, float] = {}
    with closing(cache.open_engine(bundle, precision=precision, num_slots=num_slots)) as engine:
        load_blanks(engine, bundle.puzzle_table[0])
        for bucket in built.key.buckets:
            bucket_ms = median_step_ms(engine, bucket, seconds=MEASURE_S, min_steps=MIN_STEPS)
            step_ms[bucket] = round(bucket_ms, 4)
        fused = FUSED_ATTENTION.findall(engine.layer_names())
    return built.model_copy(update={"step_ms": step_ms, "fused_attention": len(fused)})


def _judged(bundle: Bundle, built: Built) -> Built:
    """The page with the parity gates that the engine breaks on the bundle's golden traces."""
    if GOLDEN_NAME not in bundle.manifest.files:
        return built
    precision = built.key.precision
    num_slots = built.key.buckets[-1]
    opened = cache.open_engine(bundle, precision=precision, num_slots=num_slots, want_logits=True)
    with closing(opened) as engine:
        report = compare(
            bundle.golden(),
            engine,
            puzzle_table=bundle.puzzle_table,
            puzzle=bundle.puzzle,
            policy=bundle.manifest.halting_policy(precision),
        )
    if not bundle.puzzle.proof_exists:
        report = replace(report, proven=None)
    broken = breaks(report, read_gates(DEFAULT_FILE, precision, "golden"))
    return built.model_copy(update={"breaks": tuple(map(str, broken))})


if __name__ == "__main__":
    app()
