"""The command `hrm-bench`. Its subcommands are in the modules that this one imports."""

from hrm_benchmarks import serving_commands, training_command
from hrm_benchmarks.command import app

__all__ = ["app", "serving_commands", "training_command"]
