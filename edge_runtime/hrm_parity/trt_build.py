"""Builds TensorRT engines on the device that will run them, measures them and picks the fastest.

    python3 -m hrm_parity.trt_build model.bundle --slots 4

A named precision is built in this process. Others are built in one process each (`building`), as
`hrm-serve` builds them.
Not run on a GPU yet; the same code runs on TensorRT-RTX in the check without a GPU.
"""

import hashlib
import json
import re
import shlex
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from hrm_edge_runtime.contract.bundle import GOLDEN_NAME, Bundle
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import (
    INPUTS,
    EngineLostError,
    load_blanks,
    max_slots,
    median_step_ms,
    shapes_of,
)
from hrm_edge_runtime.engines.trt import api, cache, failures
from hrm_edge_runtime.engines.trt.api import ShapeRange
from hrm_edge_runtime.engines.trt.building import Build, worth_a_try
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey
from hrm_edge_runtime.engines.trt.causes import REMEDIES, TensorRTError
from hrm_edge_runtime.engines.trt.engine import Profile
from hrm_host import memory
from hrm_host.command import AsJson, Command, taking
from hrm_host.progress import stages_on
from hrm_parity import BUILD_COMMAND
from hrm_parity.report import GATES, breaks
from hrm_parity.walk import compare

app = Command("tensorrt_build")

FUSED_ATTENTION = re.compile(r"_gemm_mha_v2_0x[0-9a-f]+")
MEASURE_S = 0.5
MIN_STEPS = 10
WRITABLE = "set XDG_CACHE_HOME to a folder that has room and can be written"


@dataclass(frozen=True, kw_only=True)
class EngineBuildOptions:
    bundle: Annotated[str, typer.Argument(help="Bundle directory or shipped name.")]
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision to build. Default: those of fp16 and int8 that the export accepted "
            "(int8 only for a million weights or more); fp32 if it accepted neither."
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Maximum attempts per batch. 1 to 16 need the same engine."
        ),
    ] = None
    workspace_mb: Annotated[
        int, typer.Option(min=16, help="Megabytes of scratch memory for the kernels.")
    ] = memory.WORKSPACE_MB
    level: Annotated[int, typer.Option(min=0, max=5, help="Optimization level of TensorRT.")] = (
        api.LEVEL
    )
    again: Annotated[bool, typer.Option("--again", help="Rebuild existing engines.")] = False
    force: Annotated[
        bool, typer.Option("--force", help="Build even if memory looks insufficient.")
    ] = False
    as_json: AsJson = False


@app.command(epilog="Example: python3 -m hrm_parity.trt_build model.bundle --slots 4")
@taking(EngineBuildOptions)
def build_command(options: EngineBuildOptions) -> None:
    """Build a bundle's TensorRT engines on this device, measure them and pick the fastest."""
    bundle = open_bundle(options.bundle)
    num_slots = options.slots or max_slots(bundle)
    precision = options.precision
    if precision is None and worth_a_try(bundle) == ["fp32"]:
        precision = "fp32"
    if precision is None:
        built = _built_apart(bundle, num_slots, options)
    else:
        built = [_built_here(bundle, precision, num_slots, options)]
    if options.as_json:
        pages = [page.model_dump(mode="json") for page in built]
        _print_line({"chosen": cache.fastest_of(built, num_slots), "engines": pages})
    else:
        typer.echo(cache.verdict(built, num_slots), err=True)


def _print_line(message: dict[str, Any]) -> None:
    """Print a JSON object on a line of its own, whatever a library printed before."""
    print("\n" + json.dumps(message), flush=True)


def _built_apart(bundle: Bundle, num_slots: int, options: EngineBuildOptions) -> list[Built]:
    """The pages of the precisions that are worth a try; each is built in a process of its own."""
    passed_on = [f"--workspace-mb={options.workspace_mb}", f"--level={options.level}"]
    if options.again:
        passed_on.append("--again")
    if options.force:
        passed_on.append("--force")
    build = Build(
        bundle, precision=None, num_slots=num_slots, command=BUILD_COMMAND, options=passed_on
    )
    return build.engines()


def _built_here(
    bundle: Bundle, precision: str, num_slots: int, options: EngineBuildOptions
) -> Built:
    """The page of the engine, which is built and measured if it is not on disk.

    Ends the command with status 1 and the reason if that fails.
    """
    try:
        machine = cache.this_machine()
        key = EngineKey.of(bundle, machine, precision=precision, num_slots=num_slots)
        return _built(bundle, key, options)
    except (ValueError, OSError, EngineLostError) as error:
        if isinstance(error, OSError):
            error = TensorRTError(str(error), "machine", WRITABLE)
        if options.as_json:
            cause = error.cause if isinstance(error, TensorRTError) else "unknown"
            _print_line({"failed": str(error), "cause": cause})
        else:
            typer.echo(f"tensorrt_build: {precision}: {error}", err=True)
        raise typer.Exit(1) from None


def _built(bundle: Bundle, key: EngineKey, options: EngineBuildOptions) -> Built:
    if options.as_json:
        _print_line({"building": asdict(key)})
    built = None
    if not options.again:
        built = cache.find(key)
        if built is not None and built.step_ms is not None:
            return built
        _check_history(bundle, key)
    factory.check_start()
    if built is None:
        if not options.force:
            _check_memory(bundle, key.precision, options.workspace_mb)
        built = _built_anew(bundle, key, options)
    measured = _judged(bundle, _measured(bundle, built))
    cache.write(measured)
    failures.forget(key)
    return measured


def _check_history(bundle: Bundle, key: EngineKey) -> None:
    """Raise TensorRTError if this build has failed before."""
    failure = failures.find(key)
    if failure is not None:
        wanted = ["--precision", key.precision, "--slots", str(key.buckets[-1]), "--again"]
        command = shlex.join([*BUILD_COMMAND, str(bundle.path), *wanted])
        problem = f"an earlier build failed ({failure.problem})"
        raise TensorRTError(problem, failure.cause, f"try it again with `{command}`")


def _check_memory(bundle: Bundle, precision: str, workspace_mb: int) -> None:
    """Raise TensorRTError if the machine has less memory than a build takes."""
    available = memory.read_memory()
    if available is None:
        return
    graph_mb = bundle.graph_path(precision).stat().st_size // 10**6
    needs_mb = memory.building_mb(graph_mb=graph_mb, workspace_mb=workspace_mb)
    if available.allocatable_mb < needs_mb:
        takes = f"building an engine takes about {needs_mb} MB"
        problem = f"{takes} and this machine can give {available.allocatable_mb} MB"
        raise TensorRTError(problem, "memory", f"{REMEDIES['memory']}; --force tries it anyway")


def _built_anew(bundle: Bundle, key: EngineKey, options: EngineBuildOptions) -> Built:
    """Build the engine and write it; a failure that lasts is remembered."""
    graph = bundle.graph_path(key.precision)
    folder = cache.plan_folder()
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    try:
        with stages_on() as stages:
            plan = api.plan_from_onnx(
                graph,
                [_ranges(bundle, profile) for profile in key.profiles],
                stages=stages,
                timing_cache=folder / f"timing-{key.machine_name}.cache",
                workspace_mb=options.workspace_mb,
                level=options.level,
            )
    except TensorRTError as error:
        failures.remember(key, error)
        raise
    seconds = round(time.monotonic() - began_s, 1)
    typer.echo(f"{key.name}: {len(plan) / 1e6:.1f} MB after {seconds:.0f} s", err=True)
    built = Built(
        key=key,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        plan_bytes=len(plan),
        graph_bytes=graph.stat().st_size,
        build_seconds=seconds,
        workspace_mb=options.workspace_mb,
        optimization_level=options.level,
    )
    cache.write(built, plan)
    return built


def _ranges(bundle: Bundle, profile: Profile) -> dict[str, ShapeRange]:
    """The shapes of every input in the profile."""
    smallest = shapes_of(INPUTS, bundle.manifest, profile.min_rows)
    best = shapes_of(INPUTS, bundle.manifest, profile.best_rows)
    largest = shapes_of(INPUTS, bundle.manifest, profile.max_rows)
    return {name: ShapeRange(smallest[name], best[name], largest[name]) for name in smallest}


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
    broken = breaks(report, GATES[precision]["golden"])
    return built.model_copy(update={"breaks": tuple(map(str, broken))})


if __name__ == "__main__":
    app()
