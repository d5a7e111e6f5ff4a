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
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from hrm_edge_runtime.contract.bundle import GOLDEN_NAME, Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import (
    INPUTS,
    EngineLostError,
    EngineUnavailableError,
    load_blanks,
    max_slots,
    median_step_ms,
    shapes_of,
)
from hrm_edge_runtime.engines.trt import api, cache, failures
from hrm_edge_runtime.engines.trt.api import BuildSettings, ShapeRange
from hrm_edge_runtime.engines.trt.building import Build, worth_a_try
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey
from hrm_edge_runtime.engines.trt.causes import REMEDIES, cause_of
from hrm_edge_runtime.engines.trt.profiles import Profile
from hrm_host import memory
from hrm_host.command import Command
from hrm_host.progress import Stages, stages_on
from hrm_parity import BUILD_COMMAND
from hrm_parity.report import GATES, breaks
from hrm_parity.walk import compare

app = Command("tensorrt_build")

FUSED_ATTENTION = re.compile(r"_gemm_mha_v2_0x[0-9a-f]+")
MEASURE_S = 0.5
MIN_STEPS = 10


@app.command(epilog="Example: python3 -m hrm_parity.trt_build model.bundle --slots 4")
def build_command(
    bundle: Annotated[str, typer.Argument(help="Bundle directory or shipped name.")],
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision to build. Default: those of fp16 and int8 that the export accepted "
            "(int8 only for a million weights or more); fp32 if it accepted neither."
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Maximum attempts per batch. 1 to 16 need the same engine."
        ),
    ] = None,
    workspace_mb: Annotated[
        int, typer.Option(min=16, help="Megabytes of scratch memory for the kernels.")
    ] = memory.WORKSPACE_MB,
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
    opened = Bundle.open(find_bundle(bundle))
    num_slots = slots or max_slots(opened)
    console = Console(stderr=True)
    if precision is None and worth_a_try(opened) == ["fp32"]:
        precision = "fp32"
    if precision is not None:
        one = _OneBuild(
            bundle=opened,
            precision=precision,
            num_slots=num_slots,
            settings=BuildSettings(workspace_mb=workspace_mb, optimization_level=level),
            again=again,
            force=force,
            console=console,
            as_json=as_json,
        )
        built = [one.run()]
    else:
        options = [f"--workspace-mb={workspace_mb}", f"--level={level}"]
        if again:
            options.append("--again")
        if force:
            options.append("--force")
        build = Build(
            opened, precision=None, num_slots=num_slots, command=BUILD_COMMAND, options=options
        )
        built = build.engines()
    if as_json:
        pages = [page.model_dump(mode="json") for page in built]
        _print_line({"chosen": cache.fastest_of(built, num_slots), "engines": pages})
    else:
        console.print(cache.verdict(built, num_slots), markup=False, highlight=False)


def _print_line(message: dict[str, Any]) -> None:
    """Print a JSON object on a line of its own, whatever a library printed before."""
    print("\n" + json.dumps(message), flush=True)


@dataclass(frozen=True, kw_only=True)
class _OneBuild:
    """The build of one precision in this process."""

    bundle: Bundle
    precision: str
    num_slots: int
    settings: BuildSettings
    again: bool
    force: bool
    console: Console
    as_json: bool

    def run(self) -> Built:
        """The engine's page; ends the command with status 1 and the reason if the build fails."""
        try:
            return self._built()
        except (ValueError, OSError, EngineLostError) as error:
            if self.as_json:
                _print_line({"failed": str(error)})
            else:
                sys.stderr.write(f"tensorrt_build: {self.precision}: {error}\n")
            raise typer.Exit(1) from None

    def _built(self) -> Built:
        """The page of the engine, which is built and measured if it is not on disk."""
        machine = cache.this_machine()
        key = EngineKey.of(self.bundle, machine, precision=self.precision, num_slots=self.num_slots)
        if self.as_json:
            _print_line({"building": asdict(key)})
        built = None
        if not self.again:
            built = cache.find(key)
            if built is not None and built.step_ms is not None:
                return built
            self._check_history(key)
        problem = factory.start_problem()
        if problem is not None:
            raise EngineUnavailableError(problem)
        if built is None:
            built = self._built_anew(key)
        measured = _judged(self.bundle, _measured(self.bundle, built))
        cache.write(measured)
        failures.forget(key)
        return measured

    def _check_history(self, key: EngineKey) -> None:
        """Raise EngineUnavailableError if this build has failed before."""
        problem = failures.find(key)
        if problem is not None:
            wanted = ["--precision", self.precision, "--slots", str(self.num_slots), "--again"]
            command = shlex.join([*BUILD_COMMAND, str(self.bundle.path), *wanted])
            raise EngineUnavailableError(
                f"an earlier build failed ({problem}): try it again with `{command}`."
            )

    def _built_anew(self, key: EngineKey) -> Built:
        if not self.force:
            _check_memory(self.bundle, self.precision, self.settings)
        try:
            with stages_on(self.console) as stages:
                built = _build_engine(self.bundle, key, self.settings, stages)
        except EngineUnavailableError:  # a state of the machine that may pass
            raise
        except ValueError as error:
            problem, _, _ = str(error).rpartition(": ")
            failures.remember(key, problem, cause_of(problem))
            raise
        size_mb = built.plan_bytes / 1e6
        self.console.print(
            f"{key.name}: {size_mb:.1f} MB after {built.build_seconds:.0f} s",
            markup=False,
            highlight=False,
        )
        return built


def _check_memory(bundle: Bundle, precision: str, settings: BuildSettings) -> None:
    """Raise EngineUnavailableError if the machine has less memory than a build takes."""
    available = memory.read_memory()
    if available is None:
        return
    graph_mb = bundle.graph_path(precision).stat().st_size // 10**6
    needs_mb = memory.building_mb(graph_mb=graph_mb, workspace_mb=settings.workspace_mb)
    if available.allocatable_mb < needs_mb:
        raise EngineUnavailableError(
            f"building an engine takes about {needs_mb} MB and this machine can give "
            f"{available.allocatable_mb} MB: {REMEDIES['memory']}; --force tries it anyway."
        )


def _build_engine(bundle: Bundle, key: EngineKey, settings: BuildSettings, stages: Stages) -> Built:
    graph = bundle.graph_path(key.precision)
    folder = cache.plan_folder()
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    plan = api.plan_from_onnx(
        graph,
        [_ranges(bundle, profile) for profile in key.profiles],
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
