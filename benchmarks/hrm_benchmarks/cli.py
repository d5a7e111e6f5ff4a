"""The command `hrm-bench`. Its subcommands are in the modules that this one imports."""

from hrm_benchmarks import engine_commands, server_commands, training_commands
from hrm_benchmarks.command import app

__all__ = ["app", "engine_commands", "server_commands", "training_commands"]
