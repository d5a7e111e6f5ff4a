"""`hrm-serve` and `hrm-solve` as a person runs them, over a real bundle on ONNX Runtime."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import invoked, ran, rejected
from echo_bundle import write_echo_bundle
from service_tools import PATIENCE_S, command, free_port, hrm_serve

from hrm_edge.cli import main as solve_app
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_server.cli import serve

pytestmark = pytest.mark.process

SOLVED = "1234341221434321"


APPS = {"serve": serve, "solve": solve_app}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_echo_bundle(tmp_path_factory.mktemp("bundles") / "echo.bundle")


@pytest.fixture
def own_log() -> Iterator[None]:
    """Gives back the log of the tests after a command has set up its own."""
    log = logging.getLogger()
    handlers = log.handlers.copy()
    level = log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


NOWHERE = "nowhere.bundle is neither a directory nor a shipped bundle"
FAULTS = [
    ("serve nowhere.bundle", NOWHERE),
    ("serve BUNDLE --engine cpu:int8", "holds no 'int8' graph"),
    ("serve BUNDLE --keys nowhere", "the key file nowhere cannot be read"),
    ("serve BUNDLE --host 0.0.0.0", "without keys: make a key with 'hrm-key add"),
    ("serve BUNDLE --tls-cert cert.pem", "one of --tls-cert and --tls-key is missing"),
    (f"solve {SOLVED} --bundle nowhere.bundle", NOWHERE),
    (f"solve {SOLVED} --bundle BUNDLE --policy guess", "the field 'policy' is not valid"),
    (f"solve {SOLVED} --url http://127.0.0.1:9", "no answer from http://127.0.0.1:9"),
    ("solve nosuch.txt", "file nosuch.txt does not exist: give an existing file or a puzzle"),
    ("solve a.opensudoku", "file a.opensudoku does not exist: give an existing file or a puzzle"),
    ("solve .", ". is not a plain file: give one, or - for standard input"),
    ("solve /dev/null", "/dev/null is not a plain file: give one, or -"),
]


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(("line", "said"), FAULTS)
def test_faults_are_told_in_one_sentence(bundle: Path, line: str, said: str):
    name, *arguments = line.replace("BUNDLE", str(bundle)).split()
    status = 3 if "no answer" in said else 2
    sentence = rejected(APPS[name], *arguments, status=status)
    assert sentence.startswith(f"hrm-{name}: ")
    assert said in sentence


@pytest.mark.usefixtures("own_log")
def test_a_port_that_is_taken_is_told_before_anything_is_loaded(bundle: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = invoked(serve, bundle, "--port", taken.getsockname()[1])
    assert (done.exit_code, done.stderr.count("cannot listen on")) == (3, 1), done.stderr
    assert "engine ready" not in done.stderr


def test_what_the_engine_refuses_at_the_start_ends_the_server(bundle: Path):
    tiny = command("serve", bundle, "--port", free_port(), "--memory-budget", "1MiB")
    done = ran(*tiny, status=3, timeout=PATIENCE_S)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hrm-serve: the bundle 'echo'")
    assert "start the server with a larger --memory-budget" in last
    assert "Traceback" not in done.stderr
    assert "starting it again" not in done.stderr


def test_without_arguments_every_shipped_model_answers_over_http():
    with hrm_serve() as server:
        models = server.models()
        assert [model["name"] for model in models] == list(shipped_bundles())
        for model in models:
            answer = server.solve(model["sample"], model=model["name"])
            assert answer.json()["model"] == model["name"]
        described = server.http.get("/openapi.json").json()
        schema = described["components"]["schemas"]["SolveRequest"]
        example = schema["properties"]["puzzle"]["examples"][0]
        answer = server.solve(example).json()
        assert answer["model"] == find_bundle().stem
        assert (answer["status"] == "proven") == answer["verified"]
        assert answer["segments"] <= models[0]["max_segments"]
