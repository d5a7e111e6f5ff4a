"""From a bundle to an engine: names, refusals, and what ONNX Runtime runs on a CPU."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory, onnx
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.factory import Choice, choose, engine_for, num_gpus, parse_choice
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_edge_runtime.engines.trt.cuda import Gpu

# the path of a device, in the CPU's memory
ON_DEVICE = onnx.Provider(name="CPUExecutionProvider", device="cpu")
without_gpu = pytest.mark.skipif(num_gpus() > 0, reason="this machine has a GPU")


def test_an_engine_is_spelled_with_its_precision() -> None:
    assert parse_choice("tensorrt:fp16") == ("tensorrt", "fp16")
    assert parse_choice("cpu") == ("cpu", None)


@pytest.mark.parametrize("text", ["gpu", "cpu:", ""])
def test_what_names_no_engine_is_refused(text: str) -> None:
    with pytest.raises(EngineUnavailableError, match="does not name an engine: write ENGINE"):
        parse_choice(text)


@without_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu(tiny_bundle: Path) -> None:
    assert choose(Bundle.open(tiny_bundle), num_slots=1) == Choice(engine="cpu", precision="fp32")


@pytest.mark.process
def test_auto_falls_back_to_the_cpu_and_says_so_where_cuda_does_not_run(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its list of providers would say what ONNX Runtime was compiled with."""
    monkeypatch.setattr(factory, "num_gpus", lambda: 1)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert choose(Bundle.open(tiny_bundle), num_slots=1) == Choice(engine="cpu", precision="fp32")
    assert "auto runs on the CPU although there is a GPU" in caplog.text
    assert "hrm-edge[serve-gpu]" in caplog.text


@without_gpu
def test_a_provider_that_is_not_there_is_refused_and_not_replaced(tiny_bundle: Path) -> None:
    remedy = r"install hrm-edge\[serve-gpu\] .*onnxruntime-gpu"
    with pytest.raises(EngineUnavailableError, match=remedy):
        engine_for(Bundle.open(tiny_bundle), engine="cuda", num_slots=1)


def test_an_engine_with_its_carry_on_a_device_says_the_same(tiny_graph: Path) -> None:
    rng = np.random.default_rng(5)
    host = OnnxEngine(tiny_graph, num_slots=3, num_threads=1, want_logits=True)
    device = OnnxEngine(
        tiny_graph, num_slots=3, num_threads=1, provider=ON_DEVICE, want_logits=True
    )
    for slot in range(3):
        tokens_T = rng.integers(0, 6, 16, dtype=np.int32)
        vector_E = rng.normal(size=8).astype(np.float32)
        for engine in (host, device):
            engine.load(slot, tokens_T, vector_E)
    for num_active in (3, 3, 2, 2, 1):
        if num_active < 3:
            for engine in (host, device):
                engine.move(num_active, 0)
        ours = device.step(num_active)
        theirs = host.step(num_active)
        assert (ours.answer_BT == theirs.answer_BT).all()
        assert (ours.halt_margin_B == theirs.halt_margin_B).all()
    for ours_BND, theirs_BND in zip(device.read_carry(1), host.read_carry(1), strict=True):
        assert (ours_BND == theirs_BND).all()


WITHOUT_ONNX_RUNTIME = """
import sys
from hrm_edge_runtime import acceptance, cli
from hrm_edge_runtime.solve import output, solvers
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.trt import build
from hrm_edge_runtime.parity import comparison
from hrm_edge_runtime.http import server
from hrm_edge_runtime.worker import loop
print(sorted({"onnxruntime", "tensorrt", "pycuda", "cuda", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.process
def test_what_a_jetson_runs_asks_for_no_engine_before_one_is_chosen() -> None:
    command = [sys.executable, "-c", WITHOUT_ONNX_RUNTIME]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_tensorrt_and_pycuda_are_named_in_their_own_files_alone() -> None:
    """A Jetson lacks ONNX Runtime, a desktop TensorRT: no other module may import them."""
    folder = Path(onnx.__file__).parents[1]
    imports = re.compile(
        r"^\s*(?:import|from) (?:tensorrt|pycuda|cuda)\b|import_module\(.(?:tensorrt|pycuda|cuda)",
        re.MULTILINE,
    )
    naming: set[str] = set()
    for file in folder.rglob("*.py"):
        if imports.search(file.read_text(encoding="utf-8")):
            naming.add(file.name)
    assert naming == {"drivers.py", "engine.py", "api.py"}


def test_without_tensorrt_or_a_driver_the_remedy_is_named(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    with pytest.raises(EngineUnavailableError, match="TensorRT is not installed for this Python"):
        engine_for(bundle, engine="tensorrt:fp32", num_slots=1)
    if num_gpus() == 0:  # torch brings cuda-bindings if it was built for CUDA
        with pytest.raises(EngineUnavailableError, match=r"hrm-edge\[jetson"):
            Gpu()
