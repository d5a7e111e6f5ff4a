"""The TensorRT engine and its builder over a stand-in, or over NVIDIA's bindings above it.

`make check-trt` runs this with the bindings of six versions. The engine's and builder's own code
runs whole, on an integrated GPU and on a card, and the answers must be ONNX Runtime's, bit for bit.
TensorRT's own arithmetic, times and memory are not shown here, nor what a driver does.
"""

import json
import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from board_tree import board
from bundle_tools import shipped, turn_head
from cli_tools import succeeded
from stand_ins import BUILD_COMMAND, STAND_IN_ONLY, SetUp, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import (
    EngineLostError,
    EngineUnavailableError,
    StepOutput,
)
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.engines.trt import api, building, cache
from hrm_edge_runtime.engines.trt import engine as trt_engine
from hrm_edge_runtime.engines.trt.api import ShapeRange
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey
from hrm_edge_runtime.engines.trt.causes import TensorRTError
from hrm_edge_runtime.engines.trt.cuda import Gpu
from hrm_edge_runtime.engines.trt.drivers import (
    BindingsDriver,
    CudaError,
    Driver,
    PycudaDriver,
    driver_here,
)
from hrm_edge_runtime.engines.trt.engine import TensorRTEngine
from hrm_host import memory
from hrm_host.progress import Stages
from hrm_parity import device as check
from hrm_parity import trt_build as tensorrt_build

SLOTS = 3
prepare = partial(factory.prepare, num_slots=SLOTS, build_command=BUILD_COMMAND)
NUM_SEGMENTS = 30  # of the whole course

pytestmark = pytest.mark.usefixtures("device")

CARD = {"FAKE_CUDA_INTEGRATED": "0"}

MakeDriver = Callable[[], Driver]


@pytest.fixture
def built(bundle: Bundle, device: SetUp) -> Bundle:
    """A bundle with an engine, built on an integrated GPU by the oldest TensorRT."""
    del device
    build(bundle)
    return bundle


def build(bundle: Bundle, *more: str) -> None:
    succeeded(tensorrt_build.app, bundle.path, f"--slots={SLOTS}", *more)


def report_on(bundle: Bundle, *more: str) -> Any:
    done = succeeded(tensorrt_build.app, bundle.path, "--json", *more)
    return json.loads(done.stdout.splitlines()[-1])


def built_plan() -> Path:
    """The one plan of this test."""
    (plan,) = cache.plan_folder().glob("*.plan")
    return plan


def gpu_state() -> ModuleType:
    import fake_gpu

    return fake_gpu


def pycuda() -> Driver:
    import pycuda.driver

    return PycudaDriver(library=pycuda.driver.Library())


@pytest.fixture(params=[BindingsDriver, pycuda])
def driver(request: pytest.FixtureRequest) -> MakeDriver:
    """Makes the driver of one of the two packages."""
    return request.param


def opened(bundle: Bundle, driver: MakeDriver = BindingsDriver) -> TensorRTEngine:
    return cache.open_engine(
        bundle, precision="fp32", num_slots=SLOTS, want_logits=True, gpu=Gpu(driver())
    )


class Both:
    """An engine and its reference; what is called is called on both."""

    def __init__(self, ours: TensorRTEngine, bundle: Bundle) -> None:
        self.ours = ours
        self.theirs = engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1)
        self.table = bundle.puzzle_table

    def load(self, slot: int, tokens_T: np.ndarray) -> None:
        for engine in (self.ours, self.theirs):
            engine.load(slot, tokens_T, self.table[slot])

    def move(self, source: int, target: int) -> None:
        for engine in (self.ours, self.theirs):
            engine.move(source, target)

    def assert_same_run(self, num_active: int, length: int = 1) -> None:
        """Both answer alike, and all but the last segment are read before the next one has run."""
        (stream,) = gpu_state().streams.values()
        runs = (engine.run(num_active, length) for engine in (self.ours, self.theirs))
        for number, (one, other) in enumerate(zip(*runs, strict=True), 1):
            assert bool(stream.waiting) == (number < length)
            assert (one.answer_BT == other.answer_BT).all()
            assert (one.halt_margin_B == other.halt_margin_B).all()
            assert (one.q_halt_B == other.q_halt_B).all()


def filled(token: int) -> np.ndarray:
    return np.full(16, token, np.int32)


def assert_same_course(ours: TensorRTEngine, bundle: Bundle) -> None:
    """Alike on ONNX Runtime after loads, moves, new tokens and runs of every batch size."""
    both = Both(ours, bundle)
    rng = np.random.default_rng(2)
    left = 0
    for turn, num_active in enumerate((1, 2, 3, 3, 2, 1, 3)):
        num_loaded = rng.integers(0, left + 1)
        others = rng.permutation(left)[:num_loaded].tolist()
        for slot in (*others, *range(left, SLOTS)):  # who sat out a step has no state any more
            both.load(slot, rng.integers(0, 6, 16, dtype=np.int32))
        both.assert_same_run(SLOTS, 1 + turn % 3)
        both.move(SLOTS - 1, 0)
        both.assert_same_run(num_active, 1 + turn % 2)
        for engine in (ours, both.theirs):
            engine.replace_tokens(0, filled(turn % 6))
        both.assert_same_run(num_active)
        carries = (ours.read_carry(num_active), both.theirs.read_carry(num_active))
        for one, other in zip(*carries, strict=True):
            assert (one == other).all()
        left = num_active


def assert_nothing_is_held() -> None:
    gpu = gpu_state()
    assert gpu.depth == 0
    assert {**gpu.memory, **gpu.pinned, **gpu.executables, **gpu.events} == {}


@pytest.mark.parametrize(
    ("setting", "num_launches"),
    [
        (CARD, NUM_SEGMENTS),
        ({}, NUM_SEGMENTS),
        # without a CUDA graph
        ({"FAKE_CUDA_FAILS": "cuStreamBeginCapture"}, 0),
        ({"FAKE_CUDA_FAILS": "cuStreamEndCapture"}, 0),
        ({"FAKE_CUDA_FAILS": "cuGraphInstantiate"}, 0),
        ({"FAKE_CUDA_FAILS": "capture", **CARD}, 0),
        ({"FAKE_TENSORRT_FAILS": "capture"}, 0),
    ],
)
def test_an_engine_answers_as_onnx_runtime_does(
    bundle: Bundle, device: SetUp, setting: dict[str, str], driver: MakeDriver, num_launches: int
):
    device(**setting)
    build(bundle)
    launches = gpu_state().launches
    engine = opened(bundle, driver)
    assert_same_course(engine, bundle)
    assert gpu_state().launches - launches == num_launches
    engine.close()
    assert_nothing_is_held()


@pytest.mark.parametrize("drops", ["0", "1"])
def test_a_model_without_puzzle_vectors_runs(device: SetUp, drops: str):
    device(FAKE_TENSORRT_DROPS_UNUSED=drops, **CARD)
    bundle = shipped("sudoku-6x6")
    assert bundle.manifest.puzzle_vector_size == 0
    assert report_on(bundle, "--precision=fp32", "--slots=1")["chosen"] == "fp32"


def test_load_discards_the_prefetched_segment(built: Bundle, driver: MakeDriver):
    ours = opened(built, driver)
    both = Both(ours, built)
    for slot in range(SLOTS):
        both.load(slot, filled(1))
    next(ours.run(SLOTS, 4))
    for slot in range(SLOTS):
        both.load(slot, filled(2 + slot))
    for _ in range(3):
        both.assert_same_run(SLOTS)
    ours.close()
    assert_nothing_is_held()


def test_a_card_copies_inputs_once_and_outputs_in_one_piece(
    built: Bundle, device: SetUp, driver: MakeDriver
):
    device(**CARD)
    both = Both(opened(built, driver), built)
    copies = gpu_state().copies

    def num_copies(num_active: int, num_segments: int = 1) -> int:
        copies.clear()
        both.assert_same_run(num_active, num_segments)
        return len(copies)

    for slot in range(SLOTS):
        both.load(slot, filled(slot))
    assert num_copies(2) == 1 + 1
    assert num_copies(SLOTS) == 1 + 1  # one slot was still to begin
    assert num_copies(SLOTS) == 1
    assert num_copies(SLOTS, num_segments=4) == 4
    both.load(1, filled(5))
    assert num_copies(SLOTS, num_segments=4) == 1 + 4
    both.move(2, 0)
    assert num_copies(2) == 2 + 1 + 1  # both halves of the carry, on the device


@pytest.mark.process
def test_a_sound_device_passes_the_doctor(bundle: Bundle, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "BUILD_COMMAND", BUILD_COMMAND)
    found = {name: step() for name, step in check.steps_on(bundle)}
    version, gpu, copy, segment, runs = found.values()
    assert (version, gpu["name"]) == (api.version(), "Orin")
    assert copy["launch_and_wait_us"] > 0
    assert segment["step_ms"][1] > 0
    assert list(runs["ms_a_segment"]) == [1, 2, 4, 8]


def test_the_doctor_rejects_other_runs(built: Bundle, monkeypatch: pytest.MonkeyPatch):
    right = TensorRTEngine.run

    def backwards(self: TensorRTEngine, num_active: int, length: int) -> list[StepOutput]:
        return list(right(self, num_active, length))[::-1]

    monkeypatch.setattr(TensorRTEngine, "run", backwards)
    with pytest.raises(EngineLostError, match="a run of 2 segments differs"):
        check.runs(built)


def test_a_recorded_graph_is_uploaded_before_its_launch(device: SetUp, driver: MakeDriver):
    with closing(Gpu(driver())) as gpu:
        gpu.capture(lambda: None)
        assert gpu_state().uploaded == set(gpu_state().executables)
        assert gpu_state().launches == 0
    device(FAKE_CUDA_FAILS="cuGraphUpload")
    with closing(Gpu(driver())) as gpu, pytest.raises(CudaError, match="cuGraphUpload"):
        gpu.capture(lambda: None)
    assert gpu_state().executables == {}


@pytest.mark.parametrize("call", ["init", "cuStreamCreate"])
def test_a_dead_driver_is_one_sentence(device: SetUp, call: str, driver: MakeDriver):
    device(FAKE_CUDA_FAILS=call)
    error = r"CUDA does not start here \(.*\): (install hrm-edge|stop the desktop)"
    with pytest.raises(EngineUnavailableError, match=error):
        Gpu(driver())
    assert gpu_state().depth == 0


# cuda-bindings of 2023 have no name for 803
STATUSES = {2: "memory", 100: "machine", 803: "machine"}


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_of_the_driver_has_its_cause(
    device: SetUp, status: int, monkeypatch: pytest.MonkeyPatch
):
    device(FAKE_CUDA_FAILS="init")
    monkeypatch.setattr(gpu_state(), "NO_DEVICE", status)
    with pytest.raises(TensorRTError, match="CUDA does not start here") as refused:
        Gpu(BindingsDriver())
    assert refused.value.cause == STATUSES[status]


plan_of = partial(api.plan_from_onnx, stages=Stages(), timing_cache=None)


def test_what_tensorrt_refuses_to_build_is_one_sentence(bundle: Bundle, tmp_path: Path):
    graph = bundle.graph_path("fp32")
    with pytest.raises(ValueError, match=r"rejects tokens_BT .*\(-1, 16\).*\(Shape provided"):
        plan_of(graph, [{"tokens_BT": ShapeRange((-1, 16), (1, 16), (1, 16))}])
    unknown = tmp_path / "step.onnx"
    unknown.write_bytes(graph.read_bytes() + b"DynamicQuantizeLinear")
    error = "node 'a_node' of type DynamicQuantizeLinear: no importer"
    with pytest.raises(TensorRTError, match=error) as refused:
        plan_of(unknown, [])
    assert refused.value.cause == "rejected"


def test_unloadable_tensorrt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    missing = "libnvdla_compiler.so: cannot open shared object file: No such file or directory"
    (tmp_path / "tensorrt.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    error = r"TensorRT does not load \(libnvdla.* nvidia-l4t-dla-compiler"
    with pytest.raises(EngineUnavailableError, match=error):
        api.version()
    (tmp_path / "tensorrt.py").write_text("# a trial of somebody, in a folder of PYTHONPATH")
    with pytest.raises(EngineUnavailableError, match=r"tensorrt.*is not NVIDIA's: move it away"):
        api.version()


def test_unloadable_cuda_bindings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda/driver.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    named = r"pycuda does not load \(numpy.dtype size changed\): install hrm-edge\[jetson\]"
    with pytest.raises(EngineUnavailableError, match=named):
        driver_here()


def test_an_engine_not_built_is_refused_with_the_command_that_builds_it(bundle: Bundle):
    with pytest.raises(EngineUnavailableError, match="has no engine of precision") as refused:
        factory.engine_for(bundle, engine="tensorrt:fp32", num_slots=SLOTS)
    command = shlex.split(str(refused.value).split("`")[1])
    wanted = ["--engine", "tensorrt:fp32", "--slots", "16"]
    assert command == ["hrm-serve", str(bundle.path), *wanted]
    build(bundle, "--precision=fp32")
    engine = factory.engine_for(bundle, engine="tensorrt", num_slots=SLOTS)
    engine.load(0, np.zeros(16, np.int32), bundle.puzzle_table[0])
    assert len(engine.step(1).answer_BT) == 1


@pytest.mark.process
def test_prepare_builds_once_and_chooses_the_precision(bundle: Bundle, device: SetUp):
    device(FAKE_TENSORRT_PRINTS="[TRT] a library says something")
    choice = prepare(bundle, "tensorrt")
    assert str(choice) == "tensorrt:fp32"
    plan = built_plan()
    written_ns = plan.stat().st_mtime_ns
    assert prepare(bundle, "tensorrt:fp32") == choice
    assert plan.stat().st_mtime_ns == written_ns
    page = json.loads(plan.with_suffix(".json").read_text())
    assert page["fused_attention"] == 1
    assert sorted(page["step_ms"], key=int) == ["1", "2", "4", "8", "16"]
    assert Bundle.open(bundle.path).manifest == bundle.manifest


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        pytest.param("FAKE_TENSORRT_VERSION", "10.16.1.11", marks=STAND_IN_ONLY),
        ("FAKE_CUDA_NAME", "Thor"),
        ("FAKE_CUDA_GIB", "16"),
        ("model", "AGX Orin"),
        ("power_mode", "MAXN"),
    ],
)
def test_an_engine_of_another_machine_is_refused(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
):
    on_a_board(monkeypatch)
    build(bundle)
    device()
    if setting.isupper():
        monkeypatch.setenv(setting, value)
    else:
        on_a_board(monkeypatch, **{setting: value})
    with pytest.raises(EngineUnavailableError, match="has no engine of precision fp32"):
        factory.engine_for(bundle, engine="tensorrt:fp32", num_slots=SLOTS)


def on_a_board(
    monkeypatch: pytest.MonkeyPatch, model: str = "Orin Nano", power_mode: str = "15W"
) -> None:
    host = SimpleNamespace(model=model, power_mode=lambda: power_mode)
    monkeypatch.setattr(cache, "Host", lambda: host)


def test_a_timing_cache_per_power_mode(bundle: Bundle, monkeypatch: pytest.MonkeyPatch):
    for power_mode in ("15W", "MAXN", "15W"):
        on_a_board(monkeypatch, power_mode=power_mode)
        build(bundle, "--again")
    kept = {}
    for file in cache.plan_folder().glob("timing-*.cache"):
        kept[file.name.split("-")[2]] = file.read_bytes()
    assert kept == {"15w": b"timed timed ", "maxn": b"timed "}


def test_more_slots_than_an_engine_has_are_refused_and_built(built: Bundle):
    with pytest.raises(EngineUnavailableError, match="slots"):
        cache.open_engine(built, precision="fp32", num_slots=17)
    build(built, "--slots=17")
    pages = [json.loads(file.read_text()) for file in cache.plan_folder().glob("*-*.json")]
    assert sorted(page["key"]["buckets"][-1] for page in pages) == [16, 64]


@pytest.mark.parametrize(("few_weights", "num_profiles"), [(0, 5), (10**6, 1)])
def test_a_small_model_has_one_profile_and_scratch_memory_is_that_of_the_open_slots(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, few_weights: int, num_profiles: int
):
    import stand_in_tensorrt

    monkeypatch.setattr(trt_engine, "FEW_WEIGHTS", few_weights)
    build(bundle)
    head, _, _ = built_plan().read_bytes().partition(b"\n")
    assert len(json.loads(head)["profiles"]) == num_profiles
    for num_slots, num_rows in ((1, 1), (3, 4), (16, 16)):
        with closing(cache.open_engine(bundle, precision="fp32", num_slots=num_slots)) as engine:
            assert engine.num_slots == num_slots
            largest = max(block.nbytes for block in gpu_state().memory.values())
        assert largest == num_rows * stand_in_tensorrt.SCRATCH_BYTES
    with closing(opened(bundle)) as ours:
        assert_same_course(ours, bundle)


def test_a_plan_that_was_changed_or_came_with_a_bundle_is_not_opened(built: Bundle):
    copytree(cache.plan_folder(), built.path / "engines")
    plan = built_plan()
    plan.write_bytes(plan.read_bytes() + b" ")
    with pytest.raises(EngineUnavailableError, match="has changed since it was built"):
        opened(built)
    for file in cache.plan_folder().iterdir():
        file.unlink()
    with pytest.raises(EngineUnavailableError, match="has no engine of precision"):
        opened(built)


@pytest.mark.process
def test_broken_parity_is_not_served(bundle: Bundle, monkeypatch: pytest.MonkeyPatch):
    graph = onnx.load(bundle.graph_path("fp32"))
    bundle = with_precisions(bundle, fp16=turn_head(bundle.path), int8=graph)
    told = report_on(bundle, f"--slots={SLOTS}")
    assert told["chosen"] == "int8"
    assert "logit_drift" in told["engines"][0]["breaks"][0]
    monkeypatch.setattr(memory, "BUILDER_MB", 0)
    error = r"fp16 on TensorRT breaks parity here \(.*hrm-parity"
    with pytest.raises(EngineUnavailableError, match=error):
        prepare(bundle, "tensorrt:fp16")
    judged = prepare(bundle, "tensorrt:fp16", to_judge=True)
    assert str(judged) == "tensorrt:fp16"


@pytest.mark.process
def test_fp32_is_built_and_served_if_no_other_engine_is_sound(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    bundle = with_precisions(bundle, fp16=turn_head(bundle.path))
    monkeypatch.setattr(memory, "BUILDER_MB", 0)
    assert building.worth_a_try(bundle) == ["fp16"]
    assert str(prepare(bundle, "tensorrt")) == "tensorrt:fp32"
    assert "tiny: fp16 is not sound here, so fp32 is built (fp16 breaks parity:" in caplog.text
    assert str(factory.choose(bundle, "tensorrt", num_slots=SLOTS)) == "tensorrt:fp32"
    assert report_on(bundle, f"--slots={SLOTS}")["chosen"] == "fp32"
    with pytest.raises(EngineUnavailableError, match="serve it with --engine tensorrt:fp32"):
        prepare(bundle, "tensorrt:fp16")


@pytest.mark.process
def test_without_a_sound_engine_the_parity_is_named(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
):
    wrong = turn_head(bundle.path)
    onnx.save(wrong, bundle.graph_path("fp32"))
    bundle = with_precisions(bundle, fp16=wrong)
    monkeypatch.setattr(memory, "BUILDER_MB", 0)
    with pytest.raises(EngineUnavailableError, match="fp16 on TensorRT breaks parity here"):
        prepare(bundle, "tensorrt")


def test_a_foreign_timing_cache_is_replaced(
    bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    kept = tmp_path / "timing.cache"
    kept.write_bytes(b"another machine's")
    plan_of(bundle.graph_path("fp32"), [], timing_cache=kept)
    assert kept.read_bytes() == b"timed "
    assert "kernels are timed anew" in caplog.text


def test_building_by_hand_and_serving_try_the_same_slots(bundle: Bundle):
    most = report_on(bundle)["engines"][0]["key"]["buckets"][-1]
    assert most == factory.max_slots(bundle) == 16
    assert str(factory.choose(bundle, "tensorrt", num_slots=16)) == "tensorrt:fp32"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("FAKE_TENSORRT_FAILS", "step"),
        ("FAKE_CUDA_FAILS", "wait"),
        ("FAKE_CUDA_FAILS", "cuGraphLaunch"),
    ],
)
def test_a_failing_device_loses_the_engine(
    built: Bundle, driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
):
    if value == "step":  # a graph that was recorded does not ask TensorRT again
        monkeypatch.setenv("FAKE_CUDA_FAILS", "cuStreamBeginCapture")
    engine = opened(built, driver)
    monkeypatch.setenv(setting, value)
    with pytest.raises(EngineLostError):
        engine.step(1)


def test_too_little_device_memory_is_reported_first(
    built: Bundle, device: SetUp, driver: MakeDriver
):
    device(FAKE_CUDA_BYTES="100")
    with pytest.raises(EngineUnavailableError, match=r"the GPU cannot allocate .* fewer --slots"):
        opened(built, driver)
    assert_nothing_is_held()


def test_a_version_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch):
    import tensorrt

    for version in ("10.0.1", "12.0.0"):
        monkeypatch.setattr(tensorrt, "__version__", version)
        error = f"TensorRT {version} is not supported"
        with pytest.raises(EngineUnavailableError, match=error):
            api.version()


MEMINFO = """MemTotal:        7802880 kB
MemAvailable:    5120000 kB
SwapFree:        {swap} kB
NvMapMemUsed:     204800 kB
"""


def test_swap_counts_and_zram_does_not(tmp_path: Path):
    for swap, allocatable_mb in {1024000: 6000, 99999999: 7420}.items():
        told = memory.read_memory(board(tmp_path, {"proc/meminfo": MEMINFO.format(swap=swap)}))
        assert told.allocatable_mb == allocatable_mb
    told = memory.read_memory(board(tmp_path))
    assert (told.swap_mb, told.swap_free_mb) == (3809, 0)
    assert told.allocatable_mb == told.available_mb


def test_int8_that_hardly_wins_is_told_and_not_chosen(built: Bundle):
    key = EngineKey.of(built, cache.this_machine(), precision="fp32", num_slots=4)
    fp32, _ = cache.read_plan(built, key)

    def page(precision: str, step_ms: float) -> Built:
        own = replace(key, precision=precision)
        return fp32.model_copy(update={"key": own, "step_ms": {4: step_ms}})

    slower = [page("int8", 2.9), page("fp16", 3.0)]
    assert cache.fastest_of(slower, 4) == "fp16"
    reason = "INT8 is not 1.1 times as fast as FP16 on this device: fp16 is chosen"
    assert reason in cache.verdict(slower, 4)
    faster = [page("int8", 2.0), page("fp16", 3.0)]
    verdict = cache.verdict(faster, 4)
    assert verdict.endswith("takes int8 2.00 ms, fp16 3.00 ms: int8 is chosen.")
