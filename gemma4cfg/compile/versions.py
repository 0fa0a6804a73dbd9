"""Versions of packages as they are installed here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path


def installed(package: str) -> str | None:
    """The version of a pip package, null where there is none. A local label (``+cpu``) counts."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Package to version, ``absent`` where it is not here."""
    return {package: installed(package) or "absent" for package in packages}


def source_digest(*packages: str) -> str:
    """SHA-256 of the Python files of packages, by their paths and contents."""
    hasher = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            hasher.update(f"{package}/{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return hasher.hexdigest()
