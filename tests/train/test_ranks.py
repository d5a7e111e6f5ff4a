"""Ranks, micro-batches and too little memory change no sample, no order and no loss."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cli_tools import tool
from service_tools import children_of, free_port
from train_tools import (
    PUZZLE,
    SIZES,
    TRAINING,
    losses,
    small_trainer,
    training_run,
    weights_of,
)

from hrm_host.progress import Stages
from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_puzzles.data.datasets import Batch, Split, open_split
from hrm_train import distributed
from hrm_train.distributed import Ranks, joined
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.recipe import Recipe
from hrm_train.status import VALIDATIONS, read_lines
from hrm_train.tuning import fastest

ROUNDING = 1e-5  # float32 sums in another order
LIMIT_S = 500
NUM_IDS = 5
STEPS = 20
SAVED_AT = 18
ROW_S = 0.08  # for each row and segment: 13 s for all 40 puzzles, 6 s for each share
COLLECTIVE_S = 12  # the most that a collective may take
CONFIG = dataclasses.replace(SIZES, num_puzzle_ids=NUM_IDS, high_cycles=2, halt_rule="difference")
RECIPE = Recipe(
    puzzle=PUZZLE.name,
    batch_size=8,
    window=2,
    lr=2e-4,  # slow, so that differences of rounding do not grow
    warmup_samples=0,
    explore=0.3,
    continue_loss=True,
)


class Numbered(Split):
    """A data set whose examples have their own puzzle ids, as in ARC."""

    def rows(self, indices_B: np.ndarray) -> Batch:
        ids_B = (indices_B % NUM_IDS).astype(np.int32)
        return super().rows(indices_B)._replace(puzzle_ids_B=ids_B)


class Cramped(HRM):
    """A network on a device with memory for two rows."""

    def think(
        self, carry: Carry, tokens_BT: torch.Tensor, puzzle_vector_BE: torch.Tensor
    ) -> SegmentOutput:
        if len(tokens_BT) > 2:
            raise torch.OutOfMemoryError("two rows at most")
        return super().think(carry, tokens_BT, puzzle_vector_BE)


def trainer_on(data: Path, micro_batch: int = 0, model_type: type[HRM] = HRM) -> Trainer:
    torch.manual_seed(0)
    model = model_type(CONFIG)
    model.q_head.bias.data[0] += 1  # some rows halt before the limit
    source = Numbered(**vars(open_split(data, "train", PUZZLE)))
    return Trainer(model, source, RECIPE, PRESETS["cpu"], micro_batch=micro_batch)


def print_losses(data: Path, saved: Path) -> None:
    """Train as one of the ranks; the first prints the losses."""
    with joined() as ranks:
        trainer = trainer_on(data, micro_batch=3)  # splits the four rows of a rank into 2 and 2
        found = losses(trainer, SAVED_AT)
        trainer.save(saved, {})
        found += losses(trainer, STEPS - SAVED_AT)
        if ranks.is_first:
            table = trainer.model.puzzle_table.tolist()
            print(json.dumps({"losses": found, "table": table}))


def slowed(model: HRM, carry: Carry, tokens_BT: torch.Tensor, ids_B: torch.Tensor) -> SegmentOutput:
    time.sleep(ROW_S * len(tokens_BT))
    output = model.think(carry, tokens_BT, model.puzzle_table[ids_B])
    return output._replace(carry=output.carry.detach())


def validation(data: Path, path: Path) -> dict[str, float]:
    """Train shortly and validate."""
    run = training_run(path, small_trainer(data, total_samples=16))
    run.finish(Stages())
    return read_lines(path / VALIDATIONS)[-1]


def print_validation(data: Path, path: Path) -> None:
    """Validate on two ranks, where this takes longer than a collective may."""
    HRM.segment = slowed
    limit = timedelta(seconds=COLLECTIVE_S)
    dist.init_process_group = partial(dist.init_process_group, timeout=limit)
    with joined() as ranks:
        found = validation(data, path)
        if ranks.is_first:
            print(json.dumps(found))


@pytest.fixture(scope="module")
def expected(data: Path) -> dict[str, Any]:
    """One rank that learns from its whole batch at once."""
    trainer = trainer_on(data)
    found = losses(trainer, STEPS)
    return {"losses": found, "table": trainer.model.puzzle_table.tolist()}


def on_two_ranks(*arguments: Path | str) -> str:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, __file__, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    meeting["PYTHONPATH"] = os.pathsep.join(sys.path)
    processes = []
    for rank in "01":
        variables = {**os.environ, **meeting, "RANK": rank, "LOCAL_RANK": rank}
        processes.append(subprocess.Popen(command, env=variables, text=True, **pipes))
    outputs = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return outputs[0][0]


@pytest.mark.process
def test_a_validation_may_take_longer_than_a_collective(data: Path, tmp_path: Path):
    """Each rank validates its share; both report what one rank finds."""
    slow = json.loads(on_two_ranks("validation", data, tmp_path / "two"))
    expected = validation(data, tmp_path / "one")
    assert slow["loss"] == pytest.approx(expected["loss"], abs=ROUNDING)
    assert slow["cells"] == pytest.approx(expected["cells"], abs=ROUNDING)


@pytest.mark.process
def test_two_ranks_equal_one(data: Path, expected: dict[str, Any], tmp_path: Path):
    found = json.loads(on_two_ranks("losses", data, tmp_path / "step_18"))
    assert found["losses"] == pytest.approx(expected["losses"], abs=ROUNDING)
    table = torch.tensor(found["table"])
    assert table.count_nonzero() > 0
    assert torch.allclose(table, torch.tensor(expected["table"]), atol=ROUNDING)
    alone = trainer_on(data)
    alone.restore(tmp_path / "step_18")
    num_left = STEPS - SAVED_AT
    last = pytest.approx(expected["losses"][-num_left:], abs=ROUNDING)
    assert losses(alone, num_left) == last


def test_out_of_memory_halves_it(
    data: Path, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    trainer = trainer_on(data, model_type=Cramped)
    found = losses(trainer, STEPS)
    assert found == pytest.approx(expected["losses"], abs=ROUNDING)
    assert trainer.micro_batch == 2
    assert "continuing with 4 micro-batches of 2 rows instead of 4" in capsys.readouterr().err


def test_tuning_stays_within_the_memory(data: Path, capsys: pytest.CaptureFixture[str]):
    for wanted in (2, 8):
        trainer = trainer_on(data, model_type=Cramped)
        assert fastest(trainer, wanted, lambda _: 0, 2**20) in (1, 2)
        assert "too much\n" in capsys.readouterr().err
    trainer = trainer_on(data)
    with pytest.raises(ValueError, match="not even one row fits into 90% of 1 MiB"):
        fastest(trainer, 4, lambda _: 2**20, 2**20)
    assert fastest(trainer, 4, lambda rows: rows << 20, 2 << 20) == 1


def test_a_batch_that_ranks_cannot_share_is_refused():
    sentence = "batch_size 8 cannot be shared by 3 ranks; set a multiple of 3"
    with pytest.raises(ValueError, match=sentence):
        Ranks(rank=0, world=3).slots(8)
    assert Ranks(rank=1, world=2).slots(8) == range(4, 8)


HRM_TRAIN = str(Path(sys.executable).with_name("hrm-train"))
PREFIX = f"hrm{os.getpid() % 10_000}"
ONE_MACHINE = "--nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"


def torchrun(
    data: Path,
    run: Path,
    machines: str = ONE_MACHINE,
    *,
    inside: Sequence[str] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    """Start one agent with its ranks; `inside` is put before the command."""
    command = [*inside, sys.executable, "-m", "torch.distributed.run"]
    command += ["--max-restarts", "3", *machines.split(), "--no-python", "--", HRM_TRAIN]
    command += ["--run", str(run), "--data", str(data), *TRAINING.split()]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


class Machine(NamedTuple):
    """A network namespace; `link` is its end of the cable."""

    name: str
    link: str
    address: str

    @property
    def inside(self) -> list[str]:
        """What to put before a command that runs on this machine."""
        return ["ip", "netns", "exec", self.name]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_machines() -> Generator[tuple[Machine, Machine]]:
    """Two joined machines; skips the test with the reason if this one allows none."""
    tool("ip", "iproute2")
    first = Machine(name=f"{PREFIX}a", link=f"{PREFIX}va", address="10.213.77.1")
    second = Machine(name=f"{PREFIX}b", link=f"{PREFIX}vb", address="10.213.77.2")
    with contextlib.ExitStack() as stack:
        try:
            for machine in (first, second):
                ip("netns", "add", machine.name)
                stack.callback(ip, "netns", "delete", machine.name)
            cable = ["type", "veth", "peer", "name", second.link, "netns", second.name]
            ip("link", "add", first.link, "netns", first.name, *cable)
            for machine in (first, second):
                inside = ["-netns", machine.name]
                ip(*inside, "address", "add", f"{machine.address}/24", "dev", machine.link)
                ip(*inside, "link", "set", machine.link, "up")
                ip(*inside, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
        yield first, second


def agent(machine: Machine, first: Machine, data: Path, run: Path) -> subprocess.Popen[str]:
    """torchrun on one of two machines. Only namespaces need `is_host` and an interface's name."""
    options = [
        "--nnodes 2 --nproc-per-node 1 --rdzv-id test --rdzv-backend c10d",
        f"--rdzv-endpoint {first.address}:29400 --local-addr {machine.address}",
        f"--rdzv-conf is_host={int(machine is first)}",
    ]
    environment = {
        "GLOO_SOCKET_IFNAME": machine.link,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return torchrun(data, run, " ".join(options), inside=machine.inside, **environment)


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root joins them")
def test_a_rank_killed_on_one_of_two_machines_changes_no_byte(data: Path, tmp_path: Path):
    """The same weights as on two ranks of one machine, which nobody disturbs."""
    quiet = tmp_path / "quiet"
    run = tmp_path / "disturbed"
    with two_machines() as machines, contextlib.ExitStack() as stack:
        alone = stack.enter_context(torchrun(data, quiet))
        _, said = alone.communicate(timeout=LIMIT_S)
        assert alone.returncode == 0, said
        agents = []
        for machine in machines:
            one = stack.enter_context(agent(machine, machines[0], data, run))
            stack.callback(one.kill)  # if the test fails; its ranks end with it
            agents.append(one)
        while not (run / "latest").exists():
            assert agents[0].poll() is None, agents[0].communicate()
            time.sleep(0.05)
        os.kill(children_of(agents[-1])[-1], signal.SIGKILL)
        said = "".join(one.communicate(timeout=LIMIT_S)[1] for one in agents)
    assert [one.returncode for one in agents] == [0, 0], said
    assert said.count("parameters on cpu") >= 2, said  # it was started again
    assert weights_of(run) == weights_of(quiet)


FIRST_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


NO_RANK = "is no rank; use torchrun, or unset WORLD_SIZE"
KEEPS_ITS_STORE = {
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": ""}, NO_RANK),
        ({"RANK": "2"}, NO_RANK),
        ({"WORLD_SIZE": "four"}, NO_RANK),
        ({"MASTER_ADDR": ""}, NO_RANK),
        ({"MASTER_PORT": "tcp://10.0.0.1:80"}, NO_RANK),  # as Kubernetes names a service
        (KEEPS_ITS_STORE, "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),  # beyond a restart
    ],
)
def test_an_environment_without_a_rank_is_rejected(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {**FIRST_OF_TWO, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=sentence), joined():
        pass


def test_a_rank_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert distributed.own_gpu() == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match=r"rank 1 .* lacks a GPU, because 1 are visible"):
        distributed.own_gpu()


if __name__ == "__main__":
    programs = {"losses": print_losses, "validation": print_validation}
    programs[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
