"""The facts of a machine, in one record: read here, and made up in tests."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gemma4cfg.compile.sdk_environment import SYSTEM_TOOLS
from gemma4cfg.config.sdk import Sdk
from sharding.files import is_url

PROGRAMS = {"neuronx-cc": "neuronx-cc", "libneuronpjrt-path": "libneuronxla"}
"""What the SDK starts by name, and the package that brings it."""

SYSTEM_PACKAGE = "aws-neuronx-runtime-lib"
"""The pin that is no pip package."""

_PACKAGE_MANAGERS = (
    ("dpkg-query", "--show", "--showformat=${Version}"),
    ("rpm", "--query", "--queryformat=%{VERSION}"),
)


@dataclass(frozen=True, slots=True)
class Disk:
    """``free`` bytes, which ``directories`` share: they lie on it, or would."""

    directories: tuple[str, ...]
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """- ``packages``: version by pip name (the runtime library's by its system name), what is absent left out;
    - ``programs``: where each was found on the PATH that task=compile makes;
    - ``instance_type``: null where the machine does not say;
    - ``devices``: by a Neuron device's number, the processes that have it open; ``hidden``: how many processes did not let
      that be seen;
    - ``disks`` of the directories that were asked about;
    - ``compile_cache``: null where the SDK has none; ``failed_modules``: directories in it that hold a failure, null where it
      is behind an URL;
    - ``virtual_environment``: the name of the one that runs; ``environments``: those that lie under /opt;
    - ``used_ports`` of those at which the SDK's ranks meet.
    """

    packages: Mapping[str, str]
    programs: Mapping[str, str]
    instance_type: str | None
    devices: Mapping[int, tuple[str, ...]]
    hidden: int
    memory_bytes: int
    swap_bytes: int
    disks: tuple[Disk, ...]
    compile_cache: str | None
    failed_modules: tuple[str, ...] | None
    virtual_environment: str | None
    environments: tuple[str, ...]
    used_ports: tuple[int, ...]


def read_machine(sdk: Sdk, directories: Iterable[Path]) -> Machine:
    """This machine, as far as it lets itself be read, looked at for what ``sdk`` needs."""
    meminfo = _meminfo()
    path = os.pathsep.join((SYSTEM_TOOLS, str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    holders, hidden = device_holders(Path("/proc"))
    cache = sdk.stack.compile_cache
    compiled = os.environ.get(cache.variable, cache.directory) if cache else None
    return Machine(
        packages={name: found for name in sdk.pins if (found := _version(name))},
        programs={name: found for name in PROGRAMS if (found := shutil.which(name, path=path))},
        instance_type=_instance_type(),
        devices={device: holders.get(device, ()) for device in sorted(_devices(Path("/dev").iterdir()))},
        hidden=hidden,
        memory_bytes=meminfo.get("MemTotal", 0),
        swap_bytes=meminfo.get("SwapTotal", 0),
        disks=_disks(directories),
        compile_cache=compiled,
        failed_modules=failed_modules(compiled) if compiled else (),
        virtual_environment=Path(sys.prefix).name if sys.prefix != sys.base_prefix else None,
        environments=tuple(sorted(path.name for path in Path("/opt").glob("aws_neuronx_venv_*"))),
        used_ports=tuple(sorted(each.port for each in sdk.stack.rendezvous.values() if _used(each.port))),
    )


def failed_modules(cache: str) -> tuple[str, ...] | None:
    """Directories of modules that were compiled and left a log but no program: the SDK answers from there, without compiling
    again. Null for an URL, which is not read."""
    if is_url(cache):
        return None
    return tuple(
        sorted(
            str(path)
            for path in Path(cache).rglob("MODULE_*")
            if (path / "model.log").exists() and not (path / "model.neff").exists()
        )
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        pass
    for manager in _PACKAGE_MANAGERS if package == SYSTEM_PACKAGE else ():
        if shutil.which(manager[0]):
            done = subprocess.run([*manager, package], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
    return None


def _meminfo() -> dict[str, int]:
    """Bytes by name."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def _instance_type() -> str | None:
    """EC2 gives a machine its instance type for a product name."""
    try:
        return Path("/sys/class/dmi/id/product_name").read_text().strip() or None
    except OSError:
        return None


def device_holders(proc: Path) -> tuple[dict[int, tuple[str, ...]], int]:
    """By a Neuron device's number, the processes below ``proc`` that have it open; and how many may not be looked at, which
    are other users' where one is not root."""
    holders: dict[int, tuple[str, ...]] = {}
    hidden = 0
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            opened = set(_devices(_targets(process / "fd")))
        except PermissionError:
            hidden += 1
            continue
        for device in opened:
            holders[device] = (*holders.get(device, ()), process.name)
    return holders, hidden


def _targets(links: Path) -> Iterator[Path]:
    """Where a directory's links point, but for those that are gone by now."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for link in links.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield link.readlink()


def _devices(paths: Iterable[Path]) -> Iterator[int]:
    """Numbers of the Neuron devices among ``paths``."""
    for path in paths:
        if found := re.fullmatch(r"/dev/neuron(\d+)", str(path)):
            yield int(found[1])


def _disks(directories: Iterable[Path]) -> tuple[Disk, ...]:
    lying: dict[int, list[Path]] = {}
    for directory in dict.fromkeys(directories):
        lying.setdefault(_existing(directory).stat().st_dev, []).append(directory)
    return tuple(Disk(tuple(map(str, on)), shutil.disk_usage(_existing(on[0])).free) for on in lying.values())


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def _used(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
