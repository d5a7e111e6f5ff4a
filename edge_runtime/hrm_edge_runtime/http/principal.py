"""Who asks: what a request's key says of its holder. The middleware that reads keys puts one into every request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The holder of a key, found at `scope["state"]["caller"]`; `label` names the key in logs, never the key itself."""

    label: str
    is_admin: bool = False
