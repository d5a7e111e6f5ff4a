"""The training part of `hrm-doctor` (entry point of `hrm_edge.doctor`): PyTorch and its machine."""

import csv
import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, warn, warn_if
from hrm_host.machine import Host

NEWEST_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")

CUDA_BUILD = "install a CUDA build of PyTorch (the selector on pytorch.org prints the command)"

# What nvidia-smi reports of a card.
FIELDS = (
    "index",
    "name",
    "driver_version",
    "persistence_mode",
    "clocks.applications.graphics",
    "clocks.max.graphics",
    "power.limit",
    "power.default_limit",
)
MIN_CLOCK_SHARE = 0.6  # share of the maximum clock; a lock above it keeps laptops steady
MIN_POWER_SHARE = 0.95  # share of the default power limit

XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
HUNG = re.compile(r"task (\S+):\d+ blocked for more than|soft lockup.*\[([^:\]]+)")
KILLED = re.compile(r"Out of memory: Killed process \d+ \(([^)]*)\)")
DRIVER_WORKERS = ("nv_", "nvidia", "UVM")  # nv_queue, nvidia-modeset, UVM GPU1 BH
REBOOT = "reboot; update the driver; test the card in another machine if it happens again"
STEADY_DRIVER = (
    "or keep a known pair of driver and CUDA, boot with pcie_aspm=off, run "
    "'sudo nvidia-smi -pm 1' and 'sudo nvidia-smi -lgc MHZ', and train with a smaller batch_size"
)

Card = Mapping[str, str]


class TrainingSoftware(NamedTuple):
    torch: str | None = None
    torch_fault: str = ""
    torch_cuda: str | None = None  # CUDA version that PyTorch was built for
    sees_gpu: bool = False
    compile_problem: str | None = None  # why torch.compile cannot run


def findings() -> list[Finding]:
    """The findings on this machine, or a single one: it is not used for training."""
    if importlib.util.find_spec("torch") is None:
        text = "not checked, because PyTorch is missing: pip install 'hrm-edge[train]'"
        return [ok("training", text)]
    machine = Host()
    software = look()
    found = [*software_findings(machine, software), *cards(machine), *kernel_log(machine)]
    if software.torch:
        found.append(attention())
    return found


def look() -> TrainingSoftware:
    """The software of this process."""
    try:
        import torch

        from hrm_train.hardware import compile_problem
    except (ImportError, OSError) as error:
        return TrainingSoftware(torch_fault=str(error))
    sees_gpu = torch.cuda.is_available()
    device = "cuda" if sees_gpu else "cpu"
    return TrainingSoftware(
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        sees_gpu=sees_gpu,
        compile_problem=compile_problem(device),
    )


def attention() -> Finding:
    """Runs attention, which every model uses, forward and backward over 900 tokens.

    It fails if PyTorch lacks kernels for the card.
    """
    import torch

    device = "cpu"
    dtype = torch.float32
    if torch.cuda.is_available():
        device = "cuda"
        dtype = torch.bfloat16
    try:
        shape = (3, 1, 8, 900, 64)  # query, key and value; batch, heads, tokens, width
        values = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
        query, key, value = values
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        attended.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return fail("attention", f"fails on {device}: {reason}", CUDA_BUILD)
    return ok("attention", f"runs forward and backward, {dtype} on {device}")


def software_findings(machine: Host, software: TrainingSoftware) -> Iterator[Finding]:
    """PyTorch, and what torch.compile needs."""
    if software.torch is None:
        remedy = "pip uninstall torch; pip install 'hrm-edge[train]'"
        yield fail("PyTorch", f"does not load: {software.torch_fault}", remedy)
        return
    # The newest CUDA version that the driver supports.
    driver_cuda = NEWEST_CUDA.search(machine.ask(("nvidia-smi",)) or "")
    if driver_cuda is None or software.sees_gpu:
        yield ok("PyTorch", _build_of(software))
    else:
        yield _blind_torch(software, int(driver_cuda[1]), int(driver_cuda[2]))
    if software.compile_problem is None:
        yield ok("torch.compile", "compiles")
    else:
        remedy, _, cause = software.compile_problem.partition(": ")
        text = f"fails ({cause}): training runs, but uncompiled and slower"
        yield warn("torch.compile", text, remedy)


def _build_of(software: TrainingSoftware) -> str:
    target = "the CPU"
    if software.torch_cuda:
        target = f"CUDA {software.torch_cuda}"
    return f"{software.torch}, built for {target}"


def _blind_torch(software: TrainingSoftware, driver_major: int, driver_minor: int) -> Finding:
    """Why PyTorch does not see the GPU that the driver sees."""
    build = _build_of(software)
    if software.torch_cuda is None:
        return fail("PyTorch", f"{build}, but there is a GPU", CUDA_BUILD)
    remedy = "check CUDA_VISIBLE_DEVICES and the container's --gpus"
    major, minor = software.torch_cuda.split(".")[:2]
    if (int(major), int(minor)) > (driver_major, driver_minor):
        remedy = "update the NVIDIA driver, or install a PyTorch build for its CUDA, such as cu126"
    supported = f"{driver_major}.{driver_minor}"
    text = f"{build}, the driver supports CUDA {supported}, and PyTorch sees no GPU"
    return fail("PyTorch", text, remedy)


def cards(machine: Host) -> Iterator[Finding]:
    """Findings on each card, or on the driver if nvidia-smi does not answer."""
    query = f"--query-gpu={','.join(FIELDS)}"
    answer = machine.ask(("nvidia-smi", query, "--format=csv,noheader,nounits"))
    found = read_cards(answer or "")
    for card in found:
        yield ok(f"gpu {card['index']}", f"{card['name'].strip()}, driver {card['driver_version']}")
        yield from card_findings(card)
    if found:
        return
    is_loaded = machine.text("proc/driver/nvidia/version") or machine.text(
        "sys/module/nvidia/version"
    )
    if is_loaded:
        text = "the NVIDIA driver is loaded, but nvidia-smi does not answer"
        yield fail("gpu", text, "reboot; if nothing changes, reinstall the driver")
    else:
        yield ok("gpu", "no NVIDIA card answers; training runs on the CPU (--hw cpu)")


def read_cards(answer: str) -> list[Card]:
    cards: list[Card] = []
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        if len(row) == len(FIELDS):
            cards.append(dict(zip(FIELDS, row, strict=True)))
    return cards


def card_findings(card: Card) -> Iterator[Finding]:
    """Settings that slow training. What the card does not report, as [N/A], is skipped."""
    gpu = f"gpu {card['index']}"
    smi = f"sudo nvidia-smi -i {card['index']}"
    if card["persistence_mode"] == "Disabled":  # Windows does not report it
        text = "off: the driver unloads between runs and forgets settings such as power limits"
        yield warn(f"{gpu} persistence", text, f"{smi} -pm 1")
    with suppress(ValueError):
        clock_mhz = float(card["clocks.applications.graphics"])
        max_mhz = float(card["clocks.max.graphics"])
        is_slow = clock_mhz < MIN_CLOCK_SHARE * max_mhz
        text = f"locked at {clock_mhz:.0f} of {max_mhz:.0f} MHz"
        yield warn_if(is_slow, f"{gpu} clocks", text, f"{smi} -rac; {smi} -rgc")
    with suppress(ValueError):
        limit_w = float(card["power.limit"])
        default_w = float(card["power.default_limit"])
        is_low = limit_w < MIN_POWER_SHARE * default_w
        text = f"{limit_w:.0f} W; the default is {default_w:.0f} W"
        yield warn_if(is_low, f"{gpu} power limit", text, f"{smi} -pl {default_w:.0f}")


def kernel_log(machine: Host) -> Iterator[Finding]:
    text = machine.ask(("journalctl", "-k", "-b", "--no-pager", "-q")) or machine.ask(("dmesg",))
    if text:
        found = list(read_log(text))
        yield from found or [ok("kernel log", "no errors since the machine started")]
    elif machine.text("proc/version") is not None:
        yield ok("kernel log", "not readable; run: sudo dmesg | grep -E 'NVRM|Out of memory'")


def read_log(text: str) -> Iterator[Finding]:
    """Errors that the driver reported, driver workers that hung, and programs the kernel killed."""
    errors = set(XID.findall(text))
    if errors:
        found = f"the driver reported the errors {', '.join(sorted(errors, key=int))}"
        remedy = f"look them up in NVIDIA's list of Xid errors; {REBOOT}"
        yield warn("kernel log: Xid", found, remedy)
    for name in sorted({match[1] or match[2] for match in HUNG.finditer(text)}):
        if any(start in name for start in DRIVER_WORKERS):
            found = f"its worker {name} hung; the card stopped answering"
            yield fail("kernel log: NVIDIA driver", found, f"{REBOOT}; {STEADY_DRIVER}")
    killed = set(KILLED.findall(text))
    if killed:
        found = f"out of memory, the kernel killed {', '.join(sorted(killed))}"
        remedy = f"close other programs or add swap: {ADD_SWAP}"
        yield warn("kernel log: memory", found, remedy)
