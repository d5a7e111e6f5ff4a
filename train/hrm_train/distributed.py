"""Several processes train one model: each holds a slice of the slots, and all hold the same
weights.

`torchrun --nproc-per-node 2 -m -- hrm_train --hw auto --run runs/arc`: the two dashes keep
torchrun from reading `--run` as its own option. With `--max-restarts N` it restarts all ranks
when one has died, and they continue from the latest checkpoint. Without torchrun, none of this
has an effect.
"""

import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rich.console import Console
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hrm_host.progress import print_line

T = TypeVar("T")

FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
console = Console(stderr=True)  # `hrm-train` keeps it quiet on all ranks but the first


def say(sentence: str) -> None:
    print_line(console, sentence)


def say_whole(text: str) -> None:
    """Says what must stay in one piece: a command to copy, or a table."""
    console.print(text, soft_wrap=True, markup=False)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def slots(self, batch_size: int) -> range:
        if batch_size % self.world:
            raise ValueError(
                f"batch_size {batch_size} cannot be shared by {self.world} ranks; "
                f"set a multiple of {self.world}"
            )
        share = batch_size // self.world
        return range(self.rank * share, (self.rank + 1) * share)

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sums tensors of one type over the ranks, in place and in one call."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def everyones(self, tensor_B: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all ranks, in order, on every rank."""
        if self.world == 1:
            return tensor_B
        parts = [torch.empty_like(tensor_B) for _ in range(self.world)]
        dist.all_gather(parts, tensor_B.contiguous())
        return torch.cat(parts)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. All ranks get the same answer, so they act
        together."""
        return any(self.gathered(flag))

    def gathered(self, value: T) -> list[T]:
        """Returns the values of all ranks, in order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def of_first(self, make: Callable[[], T]) -> T:
        """Returns what `make` returns on the first rank, which alone calls it, on every rank."""
        values: list[Any] = [make() if self.is_first else None]
        if self.world > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


def ranks() -> Ranks:
    """This process among the ranks; the only one if no process group was joined."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(rank=dist.get_rank(), world=dist.get_world_size())


@contextmanager
def joined() -> Generator[Ranks]:
    """Joins the processes that torchrun started, each on its own GPU. torchrun sets WORLD_SIZE."""
    if not os.environ.get("WORLD_SIZE"):
        yield Ranks()
        return
    _require_ranks()
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(own_gpu())
        if dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"
    _require_new_stores()
    try:
        store, rank, world = next(iter(rendezvous("env://")))
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the first rank does not answer ({reason}); check MASTER_ADDR and the other ranks"
        ) from error
    # torchrun keeps one store for all starts, so gloo would find the addresses of dead ranks. A
    # prefix for each start prevents this on one machine only: several machines do not count
    # restarts alike.
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        num_restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = PrefixStore(f"start_{num_restarts}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield ranks()
    finally:
        dist.destroy_process_group()


def _require_ranks() -> None:
    """Raises ValueError unless the environment says which rank this is, and where the first is."""
    given = " ".join(os.environ.get(name, "") for name in FROM_TORCHRUN)
    found = re.fullmatch(r"(\d+) (\d+) \S+ \d+", given)
    if found is None or int(found[1]) >= int(found[2]):
        raise ValueError(
            f"{', '.join(FROM_TORCHRUN)} are '{given}', which is no rank; "
            "use torchrun, or unset WORLD_SIZE"
        )


def own_gpu() -> int:
    """The GPU of this rank; raises ValueError if this machine has fewer than ranks."""
    local = int(os.environ.get("LOCAL_RANK", "0"))  # a pod of one rank lacks it
    num_gpus = torch.cuda.device_count()
    if local >= num_gpus:
        raise ValueError(
            f"rank {local} of this machine lacks a GPU, because {num_gpus} are visible; start "
            "fewer ranks, or correct CUDA_VISIBLE_DEVICES"
        )
    return local


def _require_new_stores() -> None:
    """Raises ValueError if several machines would use one store for all starts of their ranks."""
    num_machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    max_restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    keeps_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if num_machines > 1 and max_restarts > 0 and keeps_store:
        raise ValueError(
            f"torchrun on {num_machines} machines would keep addresses of ranks that are gone; "
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun on each of them"
        )
