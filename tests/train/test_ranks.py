"""Ranks, micro-batches and too little memory change no sample, no order and no loss."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import rank_program
import torch
import torch.distributed
from torchrun_tools import children_of, torchrun
from train_tools import weights_of

from hrm_train.distributed import Ranks

PROGRAM = rank_program.__file__
ROUNDING = 1e-5  # float32 sums in another order


@pytest.fixture(scope="module")
def expected(data: Path) -> dict[str, Any]:
    """One rank that learns from its whole batch at once."""
    trainer = rank_program.trainer_on(data)
    losses = rank_program.losses(trainer, rank_program.STEPS)
    return {"losses": losses, "table": trainer.model.puzzle_table.tolist()}


def on_two_ranks(*arguments: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes: list[subprocess.Popen[str]] = []
    for rank in "01":
        variables = {**os.environ, **meeting, "RANK": rank, "LOCAL_RANK": rank}
        processes.append(subprocess.Popen(command, env=variables, text=True, **pipes))
    outputs = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return outputs[0][0]


@pytest.mark.process
def test_two_ranks_with_micro_batches_equal_one_rank_with_the_whole_batch(
    data: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    found = json.loads(on_two_ranks(data, tmp_path / "step_18"))
    assert found["losses"] == pytest.approx(expected["losses"], abs=ROUNDING)
    table = torch.tensor(found["table"])
    assert table.count_nonzero() > 0
    assert torch.allclose(table, torch.tensor(expected["table"]), atol=ROUNDING)
    alone = rank_program.trainer_on(data)
    alone.restore(tmp_path / "step_18")
    num_left = rank_program.STEPS - rank_program.SAVED_AT
    last = pytest.approx(expected["losses"][-num_left:], abs=ROUNDING)
    assert rank_program.losses(alone, num_left) == last


def test_out_of_memory_halves_the_micro_batch_and_changes_no_loss(
    data: Path, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = rank_program.trainer_on(data, model_type=rank_program.Cramped)
    losses = rank_program.losses(trainer, rank_program.STEPS)
    assert losses == pytest.approx(expected["losses"], abs=ROUNDING)
    assert trainer.micro_batch == 2
    assert "continuing with 4 micro-batches of 2 rows instead of 4" in capsys.readouterr().out


def test_a_gradient_that_is_not_finite_changes_no_weight_and_is_counted(data: Path) -> None:
    trainer = rank_program.trainer_on(data)
    trainer.step()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    moments = [tensor.clone() for tensor in trainer.optimizer.exp_avg_sq]
    slots = trainer.slots
    slots.carry.z_high_BND.fill_(float("nan"))
    slots.halted_B.fill_(False)
    assert float(trainer.step().skipped) == 1
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(map(torch.equal, trainer.optimizer.exp_avg_sq, moments))


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    sentence = "batch_size 8 cannot be shared by 3 ranks; set a multiple of 3"
    with pytest.raises(ValueError, match=sentence):
        Ranks(rank=0, world=3).slots(8)
    assert Ranks(rank=1, world=2).slots(8) == range(4, 8)


JOINS = """
import os, sys, time
from hrm_train.distributed import joined
time.sleep(float(sys.argv[1]))
with joined() as ranks:
    ranks.wait()
    os._exit(0)  # as if killed: nothing is taken back
"""


@pytest.mark.process
def test_ranks_that_are_started_again_meet_each_other_and_not_those_before() -> None:
    """They meet in the store that torchrun keeps; the second rank is a second late."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
    }
    for restarts in "01":
        with ExitStack() as stack:
            ranks = []
            for rank in "01":
                variables = {**shared, "RANK": rank, "LOCAL_RANK": rank}
                variables["TORCHELASTIC_RESTART_COUNT"] = restarts
                command = [sys.executable, "-c", JOINS, rank]
                process = subprocess.Popen(
                    command, env=variables, text=True, stderr=subprocess.PIPE
                )
                ranks.append(stack.enter_context(process))
                stack.callback(process.kill)
            said = [process.communicate(timeout=60)[1] for process in ranks]
            assert [process.returncode for process in ranks] == [0, 0], said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds torchrun's workers in /proc")
def test_a_rank_that_is_killed_is_restarted_and_the_weights_are_those_of_a_quiet_run(
    data: Path, tmp_path: Path
) -> None:
    with torchrun(data, tmp_path / "quiet") as quiet:
        _, said = quiet.communicate(timeout=280)
    assert quiet.returncode == 0, said
    with ExitStack() as stack:
        disturbed = stack.enter_context(torchrun(data, tmp_path / "disturbed"))
        stack.callback(disturbed.kill)  # if the test fails; its ranks end with it
        while not (tmp_path / "disturbed" / "latest").exists():
            time.sleep(0.05)
        os.kill(children_of(disturbed)[-1], signal.SIGKILL)
        _, said = disturbed.communicate(timeout=280)
    assert disturbed.returncode == 0, said
    assert said.count("parameters on cpu") == 2, said  # it was started twice
    assert weights_of(tmp_path / "disturbed") == weights_of(tmp_path / "quiet")
