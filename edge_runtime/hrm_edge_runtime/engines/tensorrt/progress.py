"""TensorRT's build told to a person: bars on a terminal, a line for each phase in a pipe."""

# Without TensorRT or its stubs the types below are unknown: `make check-rtx` checks them against tensorrt-stubs.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    import tensorrt


class Phases(Protocol):
    """Who hears about phases; `step` answers false to stop the build."""

    def start(self, name: str, parent: str | None, num_steps: int) -> None: ...

    def step(self, name: str, step: int) -> bool: ...

    def finish(self, name: str) -> None: ...


class ConsolePhases:
    """Phases on a console; a context manager. Ctrl-C ends the build at the next step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ConsolePhases:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, parent: str | None, num_steps: int) -> None:
        if not self._console.is_terminal and parent is None:
            self._console.print(f"TensorRT: {name}", markup=False, highlight=False)
        self._tasks[name] = self._progress.add_task(f"{'  ' if parent else ''}{name}", total=num_steps)

    def step(self, name: str, step: int) -> bool:
        if name in self._tasks:
            self._progress.update(self._tasks[name], completed=step + 1)
        return True

    def finish(self, name: str) -> None:
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))


def monitor_for(phases: Phases) -> tensorrt.IProgressMonitor:
    """TensorRT's progress monitor; it is called from the builder's threads."""

    import tensorrt as trt

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)  # pybind11 wants its own initialiser, not super()'s

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return phases.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()
