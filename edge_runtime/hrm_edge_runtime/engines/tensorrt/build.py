"""Builds TensorRT engines on the device that will run them, measures them and says which is fastest.

    python3 -m hrm_edge_runtime.engines.tensorrt.build model.bundle --slots 4

`hrm-serve` starts it where an engine is missing. Not run on a GPU yet.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_edge_runtime.engines.tensorrt import cache, lookup, plan
from hrm_edge_runtime.engines.tensorrt.cache import Built, EngineKey
from hrm_edge_runtime.engines.tensorrt.engine import TensorRTEngine
from hrm_edge_runtime.engines.tensorrt.plan import BuildSettings
from hrm_edge_runtime.engines.tensorrt.progress import ConsolePhases

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

WORTH_A_TRY = ("int8", "fp16", "fp32")
FUSED_ATTENTION = re.compile(r"_gemm_mha_v2_0x[0-9a-f]+")
MEASURE_S, MIN_STEPS = 0.5, 10
MAX_GROWTH = 1.3  # a plan much larger than its graph holds some weights more than once


@app.command(epilog="Example: python3 -m hrm_edge_runtime.engines.tensorrt.build model.bundle --slots 4")
def build_command(
    bundle: Annotated[str, typer.Argument(help="Bundle directory or the name of a shipped one.")],
    precision: Annotated[
        str | None, typer.Option(help="The graph to build from; without it int8 and fp16 (else fp32), measured.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=64, help="Puzzles in one batch, as hrm-serve is told.")] = 4,
    workspace_mb: Annotated[int, typer.Option(min=16, help="Memory the builder's kernels may use.")] = 512,
    level: Annotated[int, typer.Option(min=0, max=5, help="TensorRT's optimisation level.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Build although the engine is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build although memory looks too small.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the engines' pages and the choice as JSON.")] = False,
) -> None:
    """Build a bundle's TensorRT engines on this device, measure them and say which is fastest."""
    settings = BuildSettings(workspace_mb=workspace_mb, optimization_level=level)
    console = Console(stderr=True)
    try:
        opened = Bundle.open(find_bundle(bundle))
        built = [
            _built(opened, one, slots, settings=settings, again=again, force=force, console=console)
            for one in ([precision] if precision else worth_a_try(opened))
        ]
    except ValueError as error:
        sys.stderr.write(f"tensorrt_build: {error}\n")
        raise typer.Exit(1) from error
    console.print(lookup.verdict(built, slots), markup=False, highlight=False)
    if as_json:
        pages = [one.model_dump(mode="json") for one in built]
        print(json.dumps({"chosen": lookup.fastest_of(built, slots), "engines": pages}))


def worth_a_try(bundle: Bundle) -> list[str]:
    """INT8 and FP16 where the bundle has them, else FP32."""
    held = [one for one in WORTH_A_TRY if one in bundle.manifest.precisions]
    return [one for one in held if one != "fp32"] or held


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
    """Build where needed, then measure; the page on disk is whole only with its measurement."""
    key = EngineKey.of(bundle, lookup.this_machine(), precision=precision, num_slots=slots)
    built = None if again else cache.find(cache.engine_dir(bundle), key)
    if built is None:
        if not force:
            plan.check_memory(bundle.graph_path(precision), settings)
        with ConsolePhases(console) as phases:
            built = plan.build_engine(bundle, key, settings=settings, phases=phases)
        console.print(_summary(built), markup=False, highlight=False)
    if built.step_ms is None:
        built = _measured(bundle, built)
        cache.write_page(cache.engine_dir(bundle), built)
    return built


def _summary(built: Built) -> str:
    growth = built.plan_bytes / built.graph_bytes
    remark = f" ({growth:.1f} times its graph: weights may stand in it twice)" if growth > MAX_GROWTH else ""
    return f"{built.key.name}: {built.plan_bytes / 1e6:.1f} MB{remark} after {built.build_seconds:.0f} s"


def _measured(bundle: Bundle, built: Built) -> Built:
    num_slots = built.key.buckets[-1]
    engine = lookup.open_engine(bundle, precision=built.key.precision, num_slots=num_slots)
    try:
        blank_T = np.zeros(engine.seq_len, np.int32)
        for slot in range(num_slots):
            engine.load(slot, blank_T, bundle.puzzle_table[0])
        step_ms = {bucket: round(_step_ms(engine, bucket), 4) for bucket in built.key.buckets}
        fused = len(FUSED_ATTENTION.findall(engine.layer_names()))
    finally:
        engine.close()
    return built.model_copy(update={"step_ms": step_ms, "fused_attention": fused})


def _step_ms(engine: TensorRTEngine, num_active: int) -> float:
    """Median over about half a second of whole steps."""
    times_s: list[float] = []
    while len(times_s) < MIN_STEPS or sum(times_s) < MEASURE_S:
        began = time.perf_counter()
        engine.step(num_active)
        times_s.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times_s)


if __name__ == "__main__":
    app()
