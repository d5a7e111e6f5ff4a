"""What a shell offers for names of bundles and of puzzles. Imports wait until it asks."""

from pathlib import Path


def bundles_from(incomplete: str) -> list[str]:
    """Shipped names, and bundle directories here."""
    from hrm_edge_runtime.contract.shipped import shipped_bundles

    here = sorted(str(path) for path in Path().glob("*.bundle"))
    return [name for name in (*shipped_bundles(), *here) if name.startswith(incomplete)]


def kinds_from(incomplete: str) -> list[str]:
    from hrm_puzzles import registry

    return registry.names_from(incomplete)
