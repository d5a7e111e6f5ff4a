"""The training part of `hrm-doctor` (entry point of `hrm_edge.doctor`): PyTorch and its machine."""

import csv
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hrm_host.doctor import ADD_SWAP, Finding, fail, ok, python_finding, warn, warn_if
from hrm_host.machine import Host
from hrm_host.memory import GIB

ATTENTION_SHAPE = (3, 1, 8, 900, 64)  # query, key and value; batch, heads, tokens, width
NEWEST_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")

Version = tuple[int, int]

CUDA_BUILD = "install a CUDA build of PyTorch (the selector on pytorch.org prints the command)"

FIELDS = (
    "index",
    "name",
    "driver_version",
    "persistence_mode",
    "clocks.applications.graphics",
    "clocks.max.graphics",
    "power.limit",
    "power.default_limit",
    "temperature.gpu",
)
HOT_C = 83  # °C at which cards begin to throttle
MIN_CLOCK_SHARE = 0.6  # share of the maximum clock; a lock above it keeps laptops steady
MIN_POWER_SHARE = 0.95  # share of the default power limit

XID = re.compile(r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)")
HUNG = re.compile(r"task (\S+):\d+ blocked for more than|soft lockup.*\[([^:\]]+)")
KILLED = re.compile(r"Out of memory: Killed process \d+ \((?P<name>[^)]*)\)")
DRIVER_WORKERS = ("nv_", "nvidia", "UVM")  # nv_queue, nvidia-modeset, UVM GPU1 BH
APPLICATION_XIDS = {13, 31, 43, 45}  # usually a bug of the program, not of the card
REBOOT = "reboot; update the driver; test the card in another machine if it happens again"
STEADY_DRIVER = (
    "or keep a known pair of driver and CUDA, boot with pcie_aspm=off, run "
    "'sudo nvidia-smi -pm 1' and 'sudo nvidia-smi -lgc MHZ', and train with a smaller batch_size"
)

MIN_DISK_BYTES = 2 * GIB
ENOUGH_DISK_BYTES = 20 * GIB  # a published model's checkpoint takes 0.4 GB, ARC's data set 6 GB

Card = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TrainingSoftware:
    python: tuple[int, ...]
    torch: str | None
    torch_cuda: str | None  # CUDA version that PyTorch was built for
    sees_gpu: bool
    compile_problem: str | None  # why torch.compile cannot run


def findings() -> list[Finding]:
    """The findings on this machine, or a single one: it is not used for training."""
    if importlib.util.find_spec("torch") is None:
        text = "not checked, because PyTorch is missing: pip install 'hrm-edge[train]'"
        return [ok("training", text)]
    machine = Host()
    software = look()
    found = [*software_findings(machine, software), *cards(machine), *kernel_log(machine)]
    space = machine.space(Path.cwd())
    if space is not None:
        _, free_bytes = space
        found.append(disk(free_bytes))
    if software.torch:
        found.append(attention())
    return found


def look() -> TrainingSoftware:
    """The software of this process; a PyTorch that cannot be imported counts as missing."""
    python = tuple(sys.version_info[:3])
    try:
        import torch

        from hrm_train.hardware import compile_problem
    except (ImportError, OSError):
        return TrainingSoftware(
            python=python, torch=None, torch_cuda=None, sees_gpu=False, compile_problem=None
        )
    sees_gpu = torch.cuda.is_available()
    return TrainingSoftware(
        python=python,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        sees_gpu=sees_gpu,
        compile_problem=compile_problem(has_gpu=sees_gpu),
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
        values = torch.randn(ATTENTION_SHAPE, device=device, dtype=dtype, requires_grad=True)
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
    """Python, PyTorch, and what torch.compile needs."""
    driver_cuda = _driver_cuda(machine)
    yield python_finding(software.python)
    yield torch_finding(software, driver_cuda)
    if software.torch is not None:
        yield _compile_finding(software.compile_problem)


def _driver_cuda(machine: Host) -> Version | None:
    """The newest CUDA version that the driver supports; `nvidia-smi` prints it."""
    found = NEWEST_CUDA.search(machine.ask(("nvidia-smi",)) or "")
    if found is None:
        return None
    return int(found[1]), int(found[2])


def _compile_finding(problem: str | None) -> Finding:
    if problem is None:
        return ok("torch.compile", "finds what it needs")
    cause, _, remedy = problem.partition(": ")
    text = f"{cause}: training runs, but uncompiled and slower"
    return warn("torch.compile", text, remedy)


def torch_finding(software: TrainingSoftware, driver_cuda: Version | None) -> Finding:
    """Whether PyTorch is installed and uses the GPU."""
    if software.torch is None:
        return fail("PyTorch", "missing", "pip install 'hrm-edge[train]'")
    target = "the CPU"
    if software.torch_cuda:
        target = f"CUDA {software.torch_cuda}"
    build = f"{software.torch}, built for {target}"
    if driver_cuda is None or software.sees_gpu:
        return ok("PyTorch", build)
    if software.torch_cuda is None:
        return fail("PyTorch", f"{build}, but there is a GPU", CUDA_BUILD)
    remedy = "check CUDA_VISIBLE_DEVICES and the container's --gpus"
    major, minor = software.torch_cuda.split(".")[:2]
    if (int(major), int(minor)) > driver_cuda:
        remedy = "update the NVIDIA driver, or install a PyTorch build for its CUDA, such as cu126"
    supported = f"{driver_cuda[0]}.{driver_cuda[1]}"
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


def _number(card: Card, name: str) -> float | None:
    try:
        return float(card[name])
    except ValueError:
        return None  # [N/A] and [Not Supported]


def card_findings(card: Card) -> Iterator[Finding]:
    """Settings that slow training, and heat. A value that the card does not report is skipped."""
    gpu = f"gpu {card['index']}"
    smi = f"sudo nvidia-smi -i {card['index']}"
    if card["persistence_mode"] == "Disabled":  # Windows does not report it
        text = "off: the driver unloads between runs and forgets settings such as power limits"
        yield warn(f"{gpu} persistence", text, f"{smi} -pm 1")
    clock_mhz = _number(card, "clocks.applications.graphics")
    max_mhz = _number(card, "clocks.max.graphics")
    if clock_mhz is not None and max_mhz is not None:
        is_slow = clock_mhz < MIN_CLOCK_SHARE * max_mhz
        text = f"locked at {clock_mhz:.0f} of {max_mhz:.0f} MHz"
        yield warn_if(is_slow, f"{gpu} clocks", text, f"{smi} -rac; {smi} -rgc")
    limit_w = _number(card, "power.limit")
    default_w = _number(card, "power.default_limit")
    if limit_w is not None and default_w is not None:
        is_low = limit_w < MIN_POWER_SHARE * default_w
        text = f"{limit_w:.0f} W; the default is {default_w:.0f} W"
        yield warn_if(is_low, f"{gpu} power limit", text, f"{smi} -pl {default_w:.0f}")
    celsius = _number(card, "temperature.gpu")
    if celsius is not None:
        remedy = f"clear its air path or lower its power limit: {smi} -pl WATTS"
        yield warn_if(celsius >= HOT_C, f"{gpu} temperature", f"{celsius:.0f} °C", remedy)


def kernel_log(machine: Host) -> Iterator[Finding]:
    text = machine.ask(("journalctl", "-k", "-b", "--no-pager", "-q")) or machine.ask(("dmesg",))
    if text:
        found = list(read_log(text))
        yield from found or [ok("kernel log", "no errors since the machine started")]
    elif machine.text("proc/version") is not None:
        yield ok("kernel log", "not readable; run: sudo dmesg | grep -E 'NVRM|Out of memory'")


def read_log(text: str) -> Iterator[Finding]:
    """Errors that the driver reported, driver workers that hung, and programs the kernel killed."""
    yield from _xid_errors(text)
    yield from _hung_workers(text)
    killed = {match["name"] for match in KILLED.finditer(text)}
    if killed:
        names = ", ".join(sorted(killed))
        remedy = f"close other programs or add swap: {ADD_SWAP}"
        yield warn("kernel log: memory", f"out of memory, the kernel killed {names}", remedy)


def _xid_errors(text: str) -> Iterator[Finding]:
    seen = Counter((int(match["number"]), match["bus"]) for match in XID.finditer(text))
    for (number, bus), count in sorted(seen.items()):
        name = f"kernel log: Xid {number}"
        found = f"the driver reported an error ({count}x, {bus})"
        remedy = f"look up {number} in NVIDIA's list of Xid errors"
        if number in APPLICATION_XIDS:
            yield warn(name, found, f"{remedy}; usually the program has a bug")
        else:
            yield fail(name, found, f"{remedy}; {REBOOT}")


def _hung_workers(text: str) -> Iterator[Finding]:
    hung = Counter(match[1] or match[2] for match in HUNG.finditer(text))
    for name, count in sorted(hung.items()):
        if any(start in name for start in DRIVER_WORKERS):
            found = f"its worker {name} hung ({count}x); the card stopped answering"
            yield fail("kernel log: NVIDIA driver", found, f"{REBOOT}; {STEADY_DRIVER}")


def disk(free_bytes: int) -> Finding:
    text = f"{free_bytes / GIB:.1f} GiB free here"
    remedy = "delete old runs, or put --run and --data on another disk"
    if free_bytes < MIN_DISK_BYTES:
        return fail("disk", text, remedy)
    return warn_if(free_bytes < ENOUGH_DISK_BYTES, "disk", text, remedy)
