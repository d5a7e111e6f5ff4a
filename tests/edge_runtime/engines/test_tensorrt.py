"""The TensorRT engine and its builder over a stand-in made from real API lists.

The lists are those of TensorRT 10.3, 10.16 and 11.4.

The engine's and builder's own code runs whole, against every version, on an integrated GPU and on a
card: what it asks of TensorRT must exist there, and the answers must be ONNX Runtime's, bit for
bit. TensorRT's own arithmetic, times and memory are not shown here, nor what a driver does.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from board_tree import board
from typer.testing import CliRunner

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import write_manifest
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import Engine, EngineLostError, EngineUnavailableError
from hrm_edge_runtime.engines.factory import num_gpus
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_edge_runtime.engines.trt import api, cache, check
from hrm_edge_runtime.engines.trt import build as tensorrt_build
from hrm_edge_runtime.engines.trt.api import BuildSettings
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey, Machine
from hrm_edge_runtime.engines.trt.cuda import Gpu, look
from hrm_edge_runtime.engines.trt.drivers import BindingsDriver, Driver, PycudaDriver
from hrm_edge_runtime.engines.trt.engine import TensorRTEngine
from hrm_edge_runtime.worker.loop import run
from hrm_edge_runtime.worker.messages import Failed
from hrm_host import memory
from hrm_host.progress import Stages

SUPPORT = Path(__file__).parents[2] / "support"
FAKES = SUPPORT / "fakes"
VERSIONS = sorted(file.stem for file in (SUPPORT / "tensorrt_api").glob("*.txt"))
FAKE_MODULES = (
    "tensorrt",
    "fake_gpu",
    "pycuda",
    "pycuda.driver",
    "cuda",
    "cuda.bindings",
    "cuda.bindings.driver",
)
SLOTS = 3

SetUp = Callable[..., None]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SetUp]:
    """Sets up the stand-ins: `device(version="11.4.0.106", FAKE_CUDA_INTEGRATED="0")`."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tensorrt_build, "MEASURE_S", 0.0)

    def set_up(version: str = "10.3.0", **settings: str) -> None:
        for name in FAKE_MODULES:
            sys.modules.pop(name, None)
        for name, value in {"FAKE_TENSORRT_VERSION": version, **settings}.items():
            monkeypatch.setenv(name, value)

    set_up()
    yield set_up
    for name in FAKE_MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(copytree(tiny_bundle, tmp_path / "tiny.bundle"))


def build(bundle: Bundle, *more: str) -> Any:
    return CliRunner().invoke(tensorrt_build.app, [str(bundle.path), "--slots", str(SLOTS), *more])


def gpu_state() -> ModuleType:
    import fake_gpu

    return fake_gpu


def bindings() -> Driver:
    return BindingsDriver()


def pycuda() -> Driver:
    import pycuda.driver

    return PycudaDriver(library=pycuda.driver.Library())


both_drivers = pytest.mark.parametrize("driver", [bindings, pycuda])


def opened(bundle: Bundle, driver: Callable[[], Driver] = bindings) -> TensorRTEngine:
    return cache.open_engine(
        bundle, precision="fp32", num_slots=SLOTS, want_logits=True, gpu=Gpu(driver())
    )


def same_course(ours: TensorRTEngine, theirs: OnnxEngine, bundle: Bundle) -> None:
    """Loads, moves and steps of every batch, said alike by both."""
    rng = np.random.default_rng(2)
    left = 0
    for num_active in (1, 2, 3, 3, 2, 1, 3):
        order = rng.permutation(left)
        others = order[: rng.integers(0, left + 1)].tolist()
        for slot in (*others, *range(left, SLOTS)):  # who sat out a step has no state any more
            tokens_T = rng.integers(0, 6, 16, dtype=np.int32)
            for engine in (ours, theirs):
                engine.load(slot, tokens_T, bundle.puzzle_table[slot % 3])
        said_alike(ours, theirs, SLOTS)
        for engine in (ours, theirs):
            engine.move(SLOTS - 1, 0)
        said_alike(ours, theirs, num_active)
        carries = zip(ours.read_carry(num_active), theirs.read_carry(num_active), strict=True)
        assert all((one == other).all() for one, other in carries)
        left = num_active


def said_alike(ours: Engine, theirs: Engine, num_active: int) -> None:
    one = ours.step(num_active)
    other = theirs.step(num_active)
    assert (one.answer_BT == other.answer_BT).all()
    assert (one.halt_margin_B == other.halt_margin_B).all()
    assert (one.q_halt_B == other.q_halt_B).all()


def lane_answers(
    engine: Engine, bundle: Bundle, run_length: int | None = None
) -> dict[int, tuple[object, ...]]:
    """What a lane says about forty puzzles that come and go."""
    lane = Lane(engine, bundle.puzzle, queue_limit=40, run_length=run_length)
    rng = np.random.default_rng(4)
    attempts = [
        Attempt(
            attempt_id=number,
            tokens_T=rng.integers(0, 6, 16, dtype=np.int32),
            puzzle_vector_E=bundle.puzzle_table[number % 3],
            policy=HaltingPolicy(kind="learned", max_segments=9),
            arrival_s=0.0,
        )
        for number in range(40)
    ]
    answers: dict[int, tuple[object, ...]] = {}
    for one in run_all(lane, attempts):
        assert one.answer_T is not None
        answers[one.attempt_id] = (one.segments, one.margin, one.answer_T.tobytes())
    return answers


@both_drivers
@pytest.mark.parametrize("is_integrated", ["1", "0"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_builds_and_answers_as_onnx_runtime_does(
    bundle: Bundle, device: SetUp, version: str, is_integrated: str, driver: Callable[[], Driver]
) -> None:
    device(version, FAKE_CUDA_INTEGRATED=is_integrated)
    assert build(bundle).exit_code == 0
    launches = gpu_state().launches
    engine = opened(bundle, driver)
    same_course(engine, engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1), bundle)
    assert gpu_state().launches - launches == 14
    engine.close()
    nothing_is_held()


@pytest.mark.parametrize("drops", ["0", "1"])
def test_a_model_without_puzzle_vectors_runs_whether_tensorrt_keeps_the_input_of_no_width_or_not(
    device: SetUp, drops: str
) -> None:
    device(FAKE_TENSORRT_DROPS_UNUSED=drops, FAKE_CUDA_INTEGRATED="0")
    bundle = Bundle.open(find_bundle("sudoku-6x6"))
    assert bundle.manifest.puzzle_vector_size == 0
    done = build(bundle, "--precision", "fp32", "--json")
    assert (done.exit_code, told_by(done)["chosen"]) == (0, "fp32"), done.stderr


def nothing_is_held() -> None:
    gpu = gpu_state()
    assert gpu.depth == 0
    assert {**gpu.memory, **gpu.pinned, **gpu.executables, **gpu.events} == {}


@pytest.mark.parametrize("is_integrated", ["1", "0"])
@pytest.mark.parametrize("run_length", [None, 1, 2, 5])
def test_a_lane_over_it_gives_every_puzzle_the_answer_it_gets_alone(
    bundle: Bundle, device: SetUp, is_integrated: str, run_length: int | None
) -> None:
    device(FAKE_CUDA_INTEGRATED=is_integrated)
    build(bundle)
    ours = lane_answers(opened(bundle), bundle, run_length)
    assert len(ours) == 40
    assert ours == lane_answers(engine_from_bundle(bundle, num_slots=1, num_threads=1), bundle)


@both_drivers
@pytest.mark.parametrize(
    "setting", [{}, {"FAKE_CUDA_INTEGRATED": "0"}, {"FAKE_CUDA_FAILS": "cuStreamBeginCapture"}]
)
def test_a_run_says_what_its_segments_say_one_by_one_and_is_one_segment_ahead(
    bundle: Bundle, device: SetUp, setting: dict[str, str], driver: Callable[[], Driver]
) -> None:
    device(**setting)
    build(bundle)
    ours = opened(bundle, driver)
    theirs = engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1)
    (stream,) = gpu_state().streams.values()
    for length in (5, 4, 1):
        for slot in range(SLOTS):
            load_both(ours, theirs, bundle, slot, token=slot + length)
        runs = zip(ours.run(SLOTS, length), theirs.run(SLOTS, length), strict=True)
        for number, (one, other) in enumerate(runs, 1):
            assert bool(stream.waiting) == (number < length)
            assert (one.answer_BT == other.answer_BT).all()
            assert (one.halt_margin_B == other.halt_margin_B).all()
    said_alike(ours, theirs, SLOTS)


def load_both(ours: Engine, theirs: Engine, bundle: Bundle, slot: int, token: int) -> None:
    for engine in (ours, theirs):
        engine.load(slot, np.full(16, token % 6, np.int32), bundle.puzzle_table[0])


def test_what_is_loaded_after_a_run_that_was_left_is_not_seen_by_its_segment_ahead(
    bundle: Bundle, device: SetUp
) -> None:
    device()
    build(bundle)
    ours = opened(bundle)
    theirs = engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1)
    for slot in range(SLOTS):
        load_both(ours, theirs, bundle, slot, token=1)
    next(ours.run(SLOTS, 4))
    for slot in range(SLOTS):
        load_both(ours, theirs, bundle, slot, token=2 + slot)
    for _ in range(3):
        said_alike(ours, theirs, SLOTS)
    ours.close()
    nothing_is_held()


@both_drivers
def test_a_card_gets_what_the_host_wrote_once_and_in_one_piece_and_gives_answers_in_one(
    bundle: Bundle, device: SetUp, driver: Callable[[], Driver]
) -> None:
    device(FAKE_CUDA_INTEGRATED="0")
    build(bundle)
    ours = opened(bundle, driver)
    theirs = engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1)
    copies = gpu_state().copies

    def num_copies(num_active: int, num_segments: int = 1) -> int:
        copies.clear()
        our_run = ours.run(num_active, num_segments)
        their_run = theirs.run(num_active, num_segments)
        for one, other in zip(our_run, their_run, strict=True):
            assert (one.answer_BT == other.answer_BT).all()
        return len(copies)

    for slot in range(SLOTS):
        load_both(ours, theirs, bundle, slot, token=slot)
    assert num_copies(2) == 1 + 1
    assert num_copies(SLOTS) == 1 + 1  # one slot was still to begin
    assert num_copies(SLOTS) == 1
    assert num_copies(SLOTS, num_segments=4) == 4
    load_both(ours, theirs, bundle, 1, token=5)
    assert num_copies(SLOTS, num_segments=4) == 1 + 4
    ours.move(2, 0)
    theirs.move(2, 0)
    assert num_copies(2) == 2 + 1 + 1  # both halves of the carry, on the device


@pytest.mark.parametrize("is_integrated", ["1", "0"])
def test_tokens_that_change_between_segments_are_seen_by_the_next_with_the_carry_kept(
    bundle: Bundle, device: SetUp, is_integrated: str
) -> None:
    device(FAKE_CUDA_INTEGRATED=is_integrated)
    build(bundle)
    ours = opened(bundle)
    theirs = engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1)
    load_both(ours, theirs, bundle, 0, token=1)
    for token in (1, 2, 2, 3):
        tokens_T = np.full(16, token, np.int32)
        for engine in (ours, theirs):
            engine.retell(0, tokens_T)
        said_alike(ours, theirs, 1)


def test_the_doctor_refuses_runs_that_say_otherwise_than_single_segments(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    build(bundle)
    assert list(check.runs(bundle)["ms_a_segment"]) == [1, 2, 4, 8]
    right = TensorRTEngine.run
    monkeypatch.setattr(
        TensorRTEngine, "run", lambda self, n, length: reversed(list(right(self, n, length)))
    )
    with pytest.raises(EngineLostError, match="a run of 2 segments differs"):
        check.runs(bundle)


NO_GRAPHS = [
    {"FAKE_CUDA_FAILS": "cuStreamBeginCapture"},
    {"FAKE_CUDA_FAILS": "cuStreamEndCapture"},
    {"FAKE_CUDA_FAILS": "cuGraphInstantiate"},
    {"FAKE_CUDA_FAILS": "capture", "FAKE_CUDA_INTEGRATED": "0"},
    {"FAKE_TENSORRT_FAILS": "capture"},
]


@both_drivers
@pytest.mark.parametrize("setting", NO_GRAPHS)
def test_without_a_cuda_graph_the_answers_are_the_same(
    bundle: Bundle, device: SetUp, setting: dict[str, str], driver: Callable[[], Driver]
) -> None:
    device(**setting)
    build(bundle)
    engine = opened(bundle, driver)
    same_course(engine, engine_from_bundle(bundle, num_slots=SLOTS, num_threads=1), bundle)
    assert gpu_state().launches == 0


@both_drivers
@pytest.mark.parametrize("call", ["init", "cuStreamCreate"])
def test_a_driver_that_does_not_start_is_one_sentence_and_leaves_no_context(
    device: SetUp, call: str, driver: Callable[[], Driver]
) -> None:
    device(FAKE_CUDA_FAILS=call)
    with pytest.raises(
        EngineUnavailableError, match=r"CUDA does not start here \(.*\): install hrm-edge"
    ):
        Gpu(driver())
    assert gpu_state().depth == 0


@pytest.mark.parametrize("call", ["init", "library"])
def test_looking_for_a_gpu_that_is_not_there_is_one_sentence(device: SetUp, call: str) -> None:
    device(FAKE_CUDA_FAILS=call)
    with pytest.raises(EngineUnavailableError, match="CUDA does not start here"):
        look()


def test_a_profile_that_tensorrt_refuses_is_one_sentence(bundle: Bundle, device: SetUp) -> None:
    device()
    build(bundle)
    device(FAKE_TENSORRT_FAILS="profile")
    with pytest.raises(
        EngineUnavailableError, match=r"rejects profile 0 \(Error in set optimization profile async"
    ):
        opened(bundle)
    assert gpu_state().depth == 0


def test_a_shape_that_tensorrt_refuses_is_one_sentence(device: SetUp, bundle: Bundle) -> None:
    device()
    shapes = {"tokens_BT": (-1, 16)}
    with pytest.raises(ValueError, match=r"rejects tokens_BT of shape \(-1, 16\) \(Shape provided"):
        api.plan_from_onnx(
            bundle.graph_path("fp32"),
            [shapes],
            settings=BuildSettings(),
            stages=Stages(),
            timing_cache=None,
        )


def test_a_tensorrt_that_does_not_load_is_one_sentence(
    device: SetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    missing = "libnvdla_compiler.so: cannot open shared object file: No such file or directory"
    (tmp_path / "tensorrt.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        EngineUnavailableError, match=r"TensorRT does not load \(libnvdla.* nvidia-l4t-dla-compiler"
    ):
        api.version()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_stand_in_refuses_names_its_version_lacks(device: SetUp, version: str) -> None:
    device(version)
    import tensorrt

    config = tensorrt.Builder(None).create_builder_config()
    with pytest.raises(
        AttributeError, match=f"TensorRT {version}: IBuilderConfig has no max_workspace_size"
    ):
        config.max_workspace_size = 1
    if version.startswith("11"):
        with pytest.raises(AttributeError, match="EXPLICIT_BATCH"):
            _ = tensorrt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH


@pytest.mark.process
def test_an_engine_not_built_is_refused_with_the_command_that_builds_it(
    bundle: Bundle, device: SetUp
) -> None:
    device()
    with pytest.raises(EngineUnavailableError, match="there is no TensorRT engine") as refused:
        factory.engine_for(bundle, engine="tensorrt:fp32", num_slots=SLOTS)
    command = shlex.split(str(refused.value).split("`")[1])
    subprocess.run(command, check=True, capture_output=True)
    engine = factory.engine_for(bundle, engine="tensorrt", num_slots=SLOTS)
    engine.load(0, np.zeros(16, np.int32), bundle.puzzle_table[0])
    assert len(engine.step(1).answer_BT) == 1


def test_prepare_builds_once_and_chooses_the_measured_precision(
    bundle: Bundle, device: SetUp
) -> None:
    device()
    choice = factory.prepare(bundle, "tensorrt", num_slots=SLOTS)
    assert str(choice) == "tensorrt:fp32"
    plan = next(cache.plan_folder().glob("*.plan"))
    written_ns = plan.stat().st_mtime_ns
    assert factory.prepare(bundle, "tensorrt:fp32", num_slots=SLOTS) == choice
    assert plan.stat().st_mtime_ns == written_ns
    page = json.loads(plan.with_suffix(".json").read_text())
    assert page["fused_attention"] == 1
    assert sorted(page["step_ms"]) == ["1", "2", "3"]
    assert Bundle.open(bundle.path).manifest == bundle.manifest


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("FAKE_TENSORRT_VERSION", "10.16.1.11", "tensorrt 10.3.0 and not 10.16.1.11"),
        ("FAKE_CUDA_NAME", "Thor", "gpu Orin and not Thor"),
        ("FAKE_CUDA_SMS", "16", "num_sms 8 and not 16"),
        ("FAKE_CUDA_GIB", "16", "memory_gib 8 and not 16"),
        (
            "model",
            "NVIDIA Jetson AGX Orin",
            "module NVIDIA Jetson Orin Nano and not NVIDIA Jetson AGX Orin",
        ),
        ("power_mode", "MAXN", "power_mode 15W and not MAXN"),
    ],
)
def test_an_engine_of_another_machine_is_refused(
    bundle: Bundle,
    device: SetUp,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: str,
    told: str,
) -> None:
    device()
    on_a_board(monkeypatch)
    build(bundle)
    on_a_board(monkeypatch, **{setting: value} if setting.islower() else {})
    device(
        **{"version": "10.3.0", setting: value}
        if setting != "FAKE_TENSORRT_VERSION"
        else {"version": value}
    )
    with pytest.raises(EngineUnavailableError, match=f"was built for {told}: build it with `"):
        factory.engine_for(bundle, engine="tensorrt:fp32", num_slots=SLOTS)


def on_a_board(
    monkeypatch: pytest.MonkeyPatch, model: str = "NVIDIA Jetson Orin Nano", power_mode: str = "15W"
) -> None:
    monkeypatch.setattr(
        cache, "Host", lambda: SimpleNamespace(model=model, power_mode=lambda: power_mode)
    )


def test_each_power_mode_has_a_timing_cache_of_its_own(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    for power_mode in ("15W", "MAXN", "15W"):
        on_a_board(monkeypatch, power_mode=power_mode)
        build(bundle, "--again")
    kept = {
        file.name.split("-")[2]: file.read_bytes()
        for file in cache.plan_folder().glob("timing-*.cache")
    }
    assert kept == {"15w": b"timed timed ", "maxn": b"timed "}


def test_trying_a_kernel_takes_a_quarter_of_an_8_gb_board_at_most(
    bundle: Bundle, device: SetUp
) -> None:
    device()
    assert build(bundle).exit_code == 0
    plan = next(cache.plan_folder().glob("*.plan")).read_bytes()
    limits = json.loads(plan.partition(b"\n")[0])["limits"]
    assert limits == {"WORKSPACE": 512 << 20, "TACTIC_DRAM": 2 << 30}


def test_a_larger_engine_serves_fewer_slots(bundle: Bundle, device: SetUp) -> None:
    device()
    build(bundle)
    engine = cache.open_engine(bundle, precision="fp32", num_slots=2)
    assert engine.num_slots == 2
    with pytest.raises(EngineUnavailableError, match="slots"):
        cache.open_engine(bundle, precision="fp32", num_slots=4)


def test_a_changed_plan_is_refused(bundle: Bundle, device: SetUp) -> None:
    device()
    build(bundle)
    plan = next(cache.plan_folder().glob("*.plan"))
    plan.write_bytes(plan.read_bytes() + b" ")
    with pytest.raises(EngineUnavailableError, match="is not what was built"):
        opened(bundle)


def with_precisions(bundle: Bundle, **graphs: onnx.ModelProto) -> Bundle:
    """The bundle with further step graphs."""
    for precision, graph in graphs.items():
        onnx.save(graph, bundle.path / f"step.{precision}.onnx")
    fields = bundle.manifest.model_dump(exclude={"files"})
    write_manifest(
        bundle.path,
        **{**fields, "precisions": {one: f"step.{one}.onnx" for one in ("fp32", *graphs)}},
    )
    return Bundle.open(bundle.path)


def told_by(done: Any) -> Any:
    return json.loads(done.stdout.splitlines()[-1])


def test_a_precision_that_does_not_build_leaves_the_others(bundle: Bundle, device: SetUp) -> None:
    device(FAKE_TENSORRT_FAILS="step.int8.onnx")
    graph = onnx.load(bundle.graph_path("fp32"))
    done = build(with_precisions(bundle, fp16=graph, int8=graph), "--json")
    assert (done.exit_code, told_by(done)["chosen"]) == (0, "fp16")
    assert "int8: TensorRT 10.3.0 builds no engine" in done.stderr


def test_a_precision_that_breaks_the_golden_traces_is_not_served(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    graph = onnx.load(bundle.graph_path("fp32"))
    wrong = onnx.load(bundle.graph_path("fp32"))
    head = next(tensor for tensor in wrong.graph.initializer if tensor.name == "head_DV")
    head.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(head), head.name))
    bundle = with_precisions(bundle, fp16=wrong, int8=graph)
    told = told_by(build(bundle, "--json"))
    assert told["chosen"] == "int8"
    assert "logit_drift" in told["engines"][0]["breaks"][0]
    monkeypatch.setattr(tensorrt_build, "BUILDER_MB", 0)
    with pytest.raises(
        EngineUnavailableError, match=r"fp16 on TensorRT breaks parity here \(.*hrm-parity"
    ):
        factory.prepare(bundle, "tensorrt:fp16", num_slots=SLOTS)
    assert (
        str(factory.prepare(bundle, "tensorrt:fp16", num_slots=SLOTS, to_judge=True))
        == "tensorrt:fp16"
    )


def test_a_stray_line_of_the_child_does_not_break_the_choice(bundle: Bundle, device: SetUp) -> None:
    device(FAKE_TENSORRT_PRINTS="[TRT] a library says something")
    assert str(factory.prepare(bundle, "tensorrt", num_slots=SLOTS)) == "tensorrt:fp32"


def test_a_plan_in_a_bundle_is_not_looked_at(bundle: Bundle, device: SetUp) -> None:
    device()
    build(bundle)
    copytree(cache.plan_folder(), bundle.path / "engines")
    for file in cache.plan_folder().iterdir():
        file.unlink()
    with pytest.raises(EngineUnavailableError, match="there is no TensorRT engine"):
        opened(bundle)


def test_a_timing_cache_that_is_not_taken_is_made_anew_and_told(
    bundle: Bundle, device: SetUp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device()
    kept = tmp_path / "timing.cache"
    kept.write_bytes(b"another machine's")
    api.plan_from_onnx(
        bundle.graph_path("fp32"), [], settings=BuildSettings(), stages=Stages(), timing_cache=kept
    )
    assert kept.read_bytes() == b"timed "
    assert "kernels are timed anew" in caplog.text


def test_building_by_hand_and_serving_try_the_same_slots(bundle: Bundle, device: SetUp) -> None:
    device()
    done = CliRunner().invoke(tensorrt_build.app, [str(bundle.path), "--json"])
    assert told_by(done)["engines"][0]["key"]["buckets"][-1] == factory.max_slots(bundle) == 16
    assert str(factory.choose(bundle, "tensorrt", num_slots=16)) == "tensorrt:fp32"


def test_a_build_that_fails_is_one_sentence_and_leaves_no_engine(
    bundle: Bundle, device: SetUp
) -> None:
    device(FAKE_TENSORRT_FAILS="build")
    done = build(bundle)
    assert done.exit_code == 1
    assert "builds no engine" in done.stderr
    assert "Error Code 2: OutOfMemory (no further information)" in done.stderr
    assert list(cache.plan_folder().glob("*.plan")) == []


def test_a_node_the_parser_refuses_is_named(device: SetUp, tmp_path: Path, bundle: Bundle) -> None:
    device()
    import tensorrt

    graph = tmp_path / "step.onnx"
    graph.write_bytes(bundle.graph_path("fp32").read_bytes() + b"DynamicQuantizeLinear")
    with pytest.raises(
        ValueError, match="node 'a_node' of type DynamicQuantizeLinear: no importer"
    ):
        api.network_from_onnx(tensorrt.Builder(None), None, graph)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("FAKE_TENSORRT_FAILS", "step"),
        ("FAKE_CUDA_FAILS", "wait"),
        ("FAKE_CUDA_FAILS", "cuGraphLaunch"),
    ],
)
def test_a_device_that_fails_ends_the_engine_process(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    device()
    build(bundle)
    if value == "step":  # a graph that was recorded does not ask TensorRT again
        monkeypatch.setenv("FAKE_CUDA_FAILS", "cuStreamBeginCapture")
    engine = opened(bundle)
    monkeypatch.setenv(setting, value)
    with pytest.raises(EngineLostError):
        engine.step(1)

    class Pipe:
        sent: list[object] = []  # noqa: RUF012

        def send(self, message: object) -> None:
            self.sent.append(message)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    pipe: Any = Pipe()
    step: Any = lambda: engine.step(1)  # noqa: E731
    run(step, pipe)
    assert isinstance(pipe.sent[-1], Failed)
    assert pipe.sent[-1].message.startswith("EngineLostError: ")


def test_too_little_device_memory_is_told_before_anything_runs(
    bundle: Bundle, device: SetUp
) -> None:
    device()
    build(bundle)
    device(FAKE_CUDA_BYTES="100")
    with pytest.raises(EngineUnavailableError, match=r"the GPU gives no .* fewer --slots"):
        opened(bundle)
    nothing_is_held()


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1", "12.0.0"])
def test_a_version_out_of_range_is_refused(
    device: SetUp, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    import tensorrt

    monkeypatch.setattr(tensorrt, "__version__", version)
    with pytest.raises(
        EngineUnavailableError, match=f"TensorRT {version} is not one this program knows"
    ):
        api.version()


def test_without_tensorrt_or_a_driver_the_remedy_is_named(bundle: Bundle) -> None:
    with pytest.raises(EngineUnavailableError, match="TensorRT is not installed for this Python"):
        factory.engine_for(bundle, engine="tensorrt:fp32", num_slots=1)
    if num_gpus() == 0:  # torch brings cuda-bindings where it was built for CUDA
        with pytest.raises(EngineUnavailableError, match=r"hrm-edge\[jetson"):
            Gpu()


MEMINFO = """MemTotal:        7802880 kB
MemFree:         1000000 kB
MemAvailable:    5120000 kB
SwapFree:        {swap} kB
NvMapMemUsed:     204800 kB
"""


@pytest.mark.parametrize(
    ("swap", "allocatable_mb"), [(0, 5000 + 0), (1024000, 6000), (99999999, 7420)]
)
def test_swap_counts_for_what_the_host_can_give_up(
    tmp_path: Path, swap: int, allocatable_mb: int
) -> None:
    told = memory.read_memory(board(tmp_path, {"proc/meminfo": MEMINFO.format(swap=swap)}))
    assert told is not None
    assert told.allocatable_mb == allocatable_mb


def test_swap_in_memory_itself_counts_for_nothing(tmp_path: Path) -> None:
    told = memory.read_memory(board(tmp_path))
    assert told is not None
    assert (told.swap_mb, told.zram_mb, told.swap_free_mb) == (3809, 3809, 0)
    assert told.allocatable_mb == told.available_mb


def test_a_build_that_memory_cannot_bear_is_refused(
    bundle: Bundle, device: SetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    meminfo = "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n"
    small = memory.read_memory(board(tmp_path, {"proc/meminfo": meminfo}))
    monkeypatch.setattr(memory, "read_memory", lambda: small)
    refused = build(bundle)
    assert refused.exit_code == 1
    assert (
        "takes about 2512 MB and this machine can give 976 MB: stop the desktop" in refused.stderr
    )
    assert build(bundle, "--force").exit_code == 0


def test_int8_that_hardly_wins_is_told_and_not_chosen(bundle: Bundle) -> None:
    machine = Machine(
        gpu="Orin",
        module="none",
        compute_capability="8.7",
        num_sms=8,
        memory_gib=8,
        tensorrt="10.3.0",
        power_mode="15W",
    )
    key = EngineKey.of(bundle, machine, precision="fp32", num_slots=4)
    assert key.buckets == (1, 2, 4)

    def page(precision: str, step_ms: float) -> Built:
        return Built(
            key=EngineKey(**{**vars(key), "precision": precision}),
            plan_sha256="0" * 64,
            plan_bytes=1,
            graph_bytes=1,
            build_seconds=1,
            workspace_mb=512,
            optimization_level=3,
            step_ms={4: step_ms},
        )

    slower = [page("int8", 2.9), page("fp16", 3.0)]
    assert cache.fastest_of(slower, 4) == "fp16"
    reason = "INT8 is not 1.1 times as fast as FP16 on this device: fp16 is chosen"
    assert reason in cache.verdict(slower, 4)
    faster = [page("int8", 2.0), page("fp16", 3.0)]
    verdict = cache.verdict(faster, 4)
    assert verdict.endswith("takes int8 2.00 ms, fp16 3.00 ms: int8 is chosen.")
