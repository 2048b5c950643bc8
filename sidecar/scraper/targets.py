"""Which addresses to read: one a URL, or as many as its name has (a headless service has one a pod)."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_ADDRESSES = 64


class Target(NamedTuple):
    """One address. `path` is empty: the page is to be looked for; `address`: the name has no other."""

    base: str
    path: str
    instance: str
    address: str = ""


async def resolve(url: str) -> list[str]:
    """The addresses of the URL's host. Raises OSError when the name can't be resolved."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def targets(url: str, addresses: Sequence[str]) -> list[Target]:
    """One each for the addresses of a name that has several of one family, else one.

    A name with one address of each family, such as localhost, is one engine.
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    base = f"{parts.scheme}://{parts.netloc}"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    families = [
        [address for address in dict.fromkeys(addresses) if ipaddress.ip_address(address).version == version]
        for version in (4, 6)
    ]
    most = max(families, key=len)[:MAX_ADDRESSES]
    if len(most) < 2:
        return [Target(base, path, _host_port(parts.hostname or "", port))]
    return [Target(base, path, _host_port(address, port), address) for address in sorted(most)]


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
