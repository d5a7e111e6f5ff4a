"""Shell completion for the names of bundles and puzzles. It imports packages only when called."""

from pathlib import Path


def bundles_from(incomplete: str) -> list[str]:
    """Names of shipped bundles, and bundle directories in the current directory."""
    from hrm_edge_runtime.contract.shipped import shipped_bundles

    here = sorted(str(path) for path in Path().glob("*.bundle"))
    return [name for name in (*shipped_bundles(), *here) if name.startswith(incomplete)]


def kinds_from(incomplete: str) -> list[str]:
    from hrm_puzzles import registry

    return registry.names_from(incomplete)
