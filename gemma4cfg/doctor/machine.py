"""The facts of a machine, in one record: read here, and made up in tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROGRAMS = ("neuronx-cc", "libneuronpjrt-path", "neuron-ls")
COMPILE_CACHE = "/var/tmp/neuron-compile-cache"
"""Where the SDK keeps what it compiled, unless NEURON_COMPILE_CACHE_URL says otherwise."""


@dataclass(frozen=True, slots=True)
class Machine:
    """``packages``: version by pip name (the runtime library's by its system name), what is absent left out. ``programs``:
    where each was found on PATH. ``devices``: Neuron devices; ``busy``: processes that hold one. ``scratch``: free bytes
    by directory. ``failed_modules``: entries of the compile cache that hold a failure. ``virtual_environment``: the name of
    the one that runs; ``environments`` those that lie under /opt. ``used_ports``: of those that were asked about."""

    packages: Mapping[str, str]
    programs: Mapping[str, str]
    devices: int
    busy: tuple[str, ...]
    memory_bytes: int
    swap_bytes: int
    scratch: Mapping[str, int]
    compile_cache: str
    failed_modules: tuple[str, ...]
    virtual_environment: str | None
    environments: tuple[str, ...]
    used_ports: tuple[int, ...]


def read_machine(packages: Iterable[str], directories: Iterable[Path], ports: Iterable[int]) -> Machine:
    """This machine, as far as it lets itself be read."""
    meminfo = _meminfo()
    cache = os.environ.get("NEURON_COMPILE_CACHE_URL", COMPILE_CACHE)
    return Machine(
        packages={name: found for name in packages if (found := _version(name))},
        programs={name: found for name in PROGRAMS if (found := shutil.which(name))},
        devices=len(list(Path("/dev").glob("neuron[0-9]*"))),
        busy=_holders(),
        memory_bytes=meminfo.get("MemTotal", 0),
        swap_bytes=meminfo.get("SwapTotal", 0),
        scratch={str(directory): _free(directory) for directory in directories},
        compile_cache=cache,
        failed_modules=failed_modules(Path(cache)),
        virtual_environment=Path(sys.prefix).name if sys.prefix != sys.base_prefix else None,
        environments=tuple(sorted(path.name for path in Path("/opt").glob("aws_neuronx_venv_*"))),
        used_ports=tuple(port for port in ports if _used(port)),
    )


def failed_modules(cache: Path) -> tuple[str, ...]:
    """Modules that were compiled and left a log but no program: the SDK answers from there, without compiling again."""
    found = cache.rglob("MODULE_*") if cache.is_dir() else ()
    return tuple(
        sorted(
            path.name
            for path in found
            if path.is_dir() and (path / "model.log").exists() and not (path / "model.neff").exists()
        )
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        pass
    if package != "aws-neuronx-runtime-lib" or not shutil.which("dpkg-query"):
        return None
    asked = ["dpkg-query", "--show", "--showformat=${Version}", package]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _meminfo() -> dict[str, int]:
    """Bytes by name."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def _holders() -> tuple[str, ...]:
    """Processes that have a Neuron device open, as far as they may be looked at."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = link.readlink()
        except OSError:
            continue
        if str(target).startswith("/dev/neuron"):
            found.add(link.parts[2])
    return tuple(sorted(found, key=int))


def _free(directory: Path) -> int:
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _used(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
