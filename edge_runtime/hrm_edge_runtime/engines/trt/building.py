"""Builds a bundle's engines, each precision in a process of its own.

On an 8 GB board the builder needs more memory than everything after it. A build that dies leaves
the engines of the other precisions, and it is not repeated (`failures`).
"""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any

from pydantic import TypeAdapter

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import cache, failures
from hrm_edge_runtime.engines.trt.cache import Built, EngineKey
from hrm_edge_runtime.engines.trt.causes import (
    REMEDIES,
    TensorRTError,
    cause_of,
    describe_status,
)
from hrm_edge_runtime.engines.trt.engine import is_small

WORTH_A_TRY = ("fp16", "int8", "fp32")  # fp16 first, as the fallback if int8 loses
MESSAGES = (b'{"building"', b'{"chosen"', b'{"failed"')  # libraries may print lines of their own
OF_THE_MACHINE = ("wrong GPU", "machine", "stopped")
"""Causes that end the builds of all precisions."""
HOPELESS = ("memory", *OF_THE_MACHINE)
"""Causes that end the build of fp32 too, which needs more memory than the others."""
CHUNK_BYTES = 4096
TAIL_CHARACTERS = 500  # how much of a child's standard error is kept; enough for its last line
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colors and moves of the cursor
JOIN_S = 5.0  # wait for the rest of a child's output after its end

_log = logging.getLogger("hrm_edge_runtime.tensorrt")


class Build:
    """Builds each precision in its own process; the processes show progress on the terminal.

    `command` starts a build, and `options` are passed on to it. Ctrl-C does not reach the
    processes; any thread may call `kill`.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        precision: str | None,
        num_slots: int,
        command: Sequence[str],
        options: Sequence[str] = (),
    ) -> None:
        self._bundle = bundle
        self._precisions = [precision] if precision else worth_a_try(bundle)
        self._falls_back = precision is None and "fp32" in bundle.manifest.precisions
        self._num_slots = num_slots
        self._command = command
        self._options = options
        self._key: EngineKey | None = None  # key of the engine that is being built
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def progress(self) -> dict[str, str | float]:
        """The model, the precision that is building, and the seconds since the start."""
        key = self._key
        return {
            "model": self._bundle.manifest.name,
            "precision": key.precision if key else "",
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }

    def kill(self) -> None:
        """End the build; it raises EngineUnavailableError in the thread that waits for it."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def result(self, *, to_judge: bool) -> tuple[str, str]:
        """Build; returns the precision to run, and why.

        Raises EngineUnavailableError if nothing was built, or if the engine breaks PyTorch's
        answers and is not opened `to_judge` it.
        """
        engines = self.engines()
        reason = cache.verdict(engines, self._num_slots)
        _log.info("%s: %s", self._bundle.manifest.name, reason)
        chosen = cache.fastest_of(engines, self._num_slots)
        if chosen is not None:
            return chosen, reason
        page = engines[0]
        precision = page.key.precision
        if to_judge:
            return precision, reason
        other = "serve it with --engine tensorrt:fp32"
        if self._falls_back or "fp32" not in self._bundle.manifest.precisions:
            other = "serve another engine"
        inspect = f"hrm-parity {self._bundle.path} --engine tensorrt:{precision}"
        raise EngineUnavailableError(
            f"{precision} on TensorRT breaks parity here ({page.breaks[0]}): {other}, "
            f"or inspect it with `{inspect}`."
        )

    def engines(self) -> list[Built]:
        """Build every precision; returns the pages of those that succeed.

        If none of them is sound, fp32 is built too. Logs the failures of the others. Raises
        EngineUnavailableError if none succeeds.
        """
        built: list[Built] = []
        failed: dict[str, TensorRTError] = {}
        for precision in self._precisions:
            self._try(precision, built, failed)
        if self._needs_fp32(built, failed):
            self._try("fp32", built, failed)
        if not built:
            problems = [f"{precision}: {error.problem}" for precision, error in failed.items()]
            remedy = next(iter(failed.values())).remedy
            raise EngineUnavailableError(
                f"no TensorRT engine was built ({'; '.join(problems)}): {remedy}."
            )
        name = self._bundle.manifest.name
        for precision, error in failed.items():
            _log.warning("%s runs without %s: %s", name, precision, str(error))
        return built

    def _try(self, precision: str, built: list[Built], failed: dict[str, TensorRTError]) -> None:
        """Build a precision, unless another failed and it would fail too."""
        if any(error.cause in OF_THE_MACHINE for error in failed.values()):
            return
        try:
            built.append(self._engine(precision))
        except TensorRTError as error:
            failed[precision] = error

    def _needs_fp32(self, built: list[Built], failed: dict[str, TensorRTError]) -> bool:
        """Whether only fp32 is left, which is then logged with the reasons."""
        is_sound = any(not page.breaks for page in built)
        if is_sound or not self._falls_back or "fp32" in self._precisions:
            return False
        if any(error.cause in HOPELESS for error in failed.values()):
            return False
        reasons = [f"{name}: {error.problem}" for name, error in failed.items()]
        reasons += [f"{page.key.precision} breaks parity: {page.breaks[0]}" for page in built]
        _log.warning(
            "%s: %s is not sound here, so fp32 is built (%s)",
            self._bundle.manifest.name,
            " and ".join(self._precisions),
            "; ".join(reasons),
        )
        return True

    def _engine(self, precision: str) -> Built:
        """Build one precision; raises TensorRTError."""
        wanted = ["--precision", precision, "--slots", str(self._num_slots)]
        command = [*self._command, str(self._bundle.path), *wanted]
        child = self._started([*command, *self._options, "--json"])
        assert child.stdout is not None
        assert child.stderr is not None
        errors = _CopiedErrors(child.stderr)
        with child:
            try:
                message = self._last_message(child.stdout)
                status = child.wait()
            finally:
                child.kill()
                errors.join()
        if self._is_stopped:
            raise EngineUnavailableError("the build was stopped: start it again.")
        if "failed" in message:
            problem, _, remedy = str(message["failed"]).rpartition(": ")
            raise TensorRTError(problem, message["cause"], remedy.rstrip("."))
        if status or "engines" not in message:
            raise self._death(status, errors.last_line(), [*command, "--again"])
        return Built.model_validate(message["engines"][0])

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if sys.stderr.isatty():
            environment["FORCE_COLOR"] = "1"  # so that rich draws its bars into our pipe
        with self._lock:
            self._key = None
            self._child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            if self._is_stopped:
                self._child.kill()
            return self._child

    def _last_message(self, output: IO[bytes]) -> dict[str, Any]:
        """Read the child's lines to the end; the first message is the key that it builds."""
        message: dict[str, Any] = {}
        for line in output:
            if line.startswith(MESSAGES):
                message = json.loads(line)
            if "building" in message:
                self._key = TypeAdapter(EngineKey).validate_python(message["building"])
        return message

    def _death(self, status: int, last_line: str, command: list[str]) -> TensorRTError:
        """The error of a child that did not report its end; remembers the failure."""
        problem = f"the build {describe_status(status)}"
        if last_line:
            problem += f"; its last line is {last_line!r}"
        cause = cause_of(last_line, status)
        remedy = f"{REMEDIES[cause]}, and build it again with `{shlex.join(command)}`"
        error = TensorRTError(problem, cause, remedy)
        if self._key is not None:
            failures.remember(self._key, error)
        return error


class _CopiedErrors:
    """Copies a child's standard error to ours as it comes, and keeps its last line."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._descriptor = pipe.fileno()
        self._tail = ""
        self._thread = threading.Thread(target=self._copy, name="build-errors", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(JOIN_S)

    def last_line(self) -> str:
        """The last line with text, after `join`."""
        for line in reversed(re.split(r"[\r\n]+", CONTROLS.sub("", self._tail))):
            if line.strip():
                return line.strip()
        return ""

    def _copy(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in iter(partial(os.read, self._descriptor, CHUNK_BYTES), b""):
            text = decoder.decode(chunk)
            self._tail = (self._tail + text)[-TAIL_CHARACTERS:]
            with suppress(OSError):  # our standard error may be closed
                sys.stderr.write(text)
                sys.stderr.flush()


def worth_a_try(bundle: Bundle) -> list[str]:
    """The decided precisions to build: fp32 only if there is nothing else.

    A small model is built in int8 only on request, or if the bundle has no other reduced form: its
    int8 engine needs more kernels than fp16 and saves few bytes.
    """
    decided = bundle.manifest.decided or bundle.manifest.precisions
    held = [precision for precision in WORTH_A_TRY if precision in decided]
    reduced = [precision for precision in held if precision != "fp32"]
    if "fp16" in reduced and is_small(bundle):
        return ["fp16"]
    return reduced or held
