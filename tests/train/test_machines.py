"""Two machines train one model; a killed rank costs nothing but time."""

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from torchrun_tools import children_of, torchrun
from train_tools import weights_of
from two_machines import Machine, two_machines

from hrm_train.distributed import joined

LIMIT_S = 500


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
def test_a_rank_killed_on_one_of_two_machines_changes_no_byte(data: Path, tmp_path: Path) -> None:
    with torchrun(data, tmp_path / "quiet") as quiet:
        _, said = quiet.communicate(timeout=LIMIT_S)
    assert quiet.returncode == 0, said
    run = tmp_path / "disturbed"
    with two_machines() as machines, ExitStack() as stack:
        agents: list[subprocess.Popen[str]] = []
        for machine in machines:
            one = stack.enter_context(agent(machine, machines[0], data, run))
            stack.callback(one.kill)  # if the test fails; its ranks end with it
            agents.append(one)
        while not (run / "latest").exists():
            assert agents[0].poll() is None, agents[0].communicate()
            time.sleep(0.05)
        os.kill(children_of(agents[1])[-1], signal.SIGKILL)
        said = "".join(one.communicate(timeout=LIMIT_S)[1] for one in agents)
    assert [one.returncode for one in agents] == [0, 0], said
    assert said.count("parameters on cpu") >= 2, said  # it was started again
    assert weights_of(run) == weights_of(tmp_path / "quiet")


def test_a_store_that_outlives_a_restart_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), joined():
        pass
