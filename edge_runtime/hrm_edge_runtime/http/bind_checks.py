"""Who can reach the server, decided before it listens: what would open it by mistake is refused.

A warning in a log protects nobody, so other machines get in only with keys, or because somebody said `--insecure`.
"""

from __future__ import annotations

import ssl
from pathlib import Path

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ExposureError(ValueError):
    """Options that would open the server to others by mistake."""


def exposure_warnings(
    host: str, *, with_keys: bool, tls_cert: Path | None, tls_key: Path | None, insecure: bool
) -> list[str]:
    """What an operator should know of these options; refuses those that are wrong or open the server unasked."""
    _check_certificate(tls_cert, tls_key)
    if host in LOOPBACK:
        return []
    if not with_keys and not insecure:
        raise ExposureError(
            f"--host {host} lets other machines in and no keys guard it: make one with 'hrm-key add LABEL --file keys' "
            "and say --keys keys, or say --insecure where whoever reaches this address may use the server."
        )
    if not with_keys:
        return [f"listening on {host} WITHOUT KEYS: whoever reaches this address may use the server"]
    if tls_cert is None:
        return [f"listening on {host} without TLS: keys cross the network in the clear unless a proxy encrypts"]
    return []


def _check_certificate(tls_cert: Path | None, tls_key: Path | None) -> None:
    if tls_cert is None and tls_key is None:
        return
    if tls_cert is None or tls_key is None:
        raise ExposureError("one of --tls-cert and --tls-key is missing: give both, or neither for plain HTTP.")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
    except OSError as error:  # which ssl.SSLError is too
        raise ExposureError(
            f"the certificate {tls_cert} cannot be used with the key {tls_key} ({error}): give a PEM file of each, "
            "made for one another."
        ) from None
