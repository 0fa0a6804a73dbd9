"""What a plan needs of a machine: a function for each need, a line for each answer."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemma4cfg.config.sdk import Sdk, version_parts
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.doctor.machine import PROGRAMS, SYSTEM_PACKAGE, Machine
from gemma4cfg.doctor.tokenizer import MARKERS, Tokenizer
from gemma4cfg.plan.cores import cores_taken
from gemma4cfg.plan.records import Plan

Status = Literal["ok", "warning", "missing", "not looked at"]


@dataclass(frozen=True, slots=True)
class Line:
    """``missing`` is a hard need that is not met. ``remedy`` is empty where nothing is to be done."""

    need: str
    status: Status
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Visit:
    """``sdk`` and ``target`` are the plan's. ``here``: what is known of the machine's own instance type, null where nothing
    is. ``rank_files``, ``artifacts``: the directories in which task=compile puts them. ``tokenizer``: null where none
    could be read."""

    plan: Plan
    sdk: Sdk
    target: Target
    here: Target | None
    machine: Machine
    rank_files: str
    artifacts: str
    tokenizer: Tokenizer | None


def examine(visit: Visit) -> tuple[Line, ...]:
    """Every need's answer, in the order in which to mend them."""
    needs = _NEEDS if visit.plan.graphs else _SERVED
    return tuple(line for need in needs for line in need(visit))


def packages(visit: Visit) -> Iterator[Line]:
    """Each pin of the release. A program runs on the release that made it: on another it gives wrong text, no error."""
    unused = {"trace": {"neuronx-distributed"}}.get(visit.plan.recipe, set()) | {"neuronx-distributed-inference"}
    index = visit.sdk.stack.package_index
    for package, pin in visit.sdk.pins.items():
        if package in unused:
            continue
        found = visit.machine.packages.get(package)
        said = f"{package} {found or 'absent'}, {visit.sdk.name} has {pin}"
        system = package == SYSTEM_PACKAGE
        if system:
            remedy = f"sudo apt-get install '{package}={pin}*', or sudo dnf install '{package}-{pin}*'"
        elif visit.sdk.stack.build:
            remedy = (
                f"an image with torch {visit.sdk.pins['torch']}, and the build of the plan's first call (task=plan)"
            )
        else:
            remedy = f"pip install '{package}=={pin}.*'" + (f" --extra-index-url {index}" if index else "")
        if found is None:
            yield Line("package", "missing", said, remedy)
        elif version_parts(found)[: len(version_parts(pin))] == version_parts(pin):
            yield Line("package", "ok", said, "")
        elif package in ("torch", "transformers"):
            yield Line("package", "warning", said, remedy)
        else:
            placeholder = (0,) <= version_parts(found)[:1] < version_parts(pin)[:1] and not system
            note = " (PyPI's empty placeholder)" if placeholder else ""
            yield Line("package", "missing", said + note, remedy)


def virtual_environment(visit: Visit) -> Iterator[Line]:
    """The image's own, by name."""
    wanted, found = visit.sdk.virtual_environment, visit.machine.virtual_environment
    if wanted is None:
        return
    said = f"{found or 'none'} runs, the release's is {wanted}"
    if found == wanted:
        yield Line("virtual environment", "ok", said, "")
    else:
        there = wanted in visit.machine.environments
        remedy = f"export PATH=/opt/{wanted}/bin:$PATH" if there else f"an image of {visit.sdk.name} has it in /opt"
        yield Line("virtual environment", "warning", said, remedy)


def compiler(visit: Visit) -> Iterator[Line]:
    """Programs that the SDK starts by name."""
    environment = visit.sdk.virtual_environment
    for program, package in PROGRAMS.items():
        if path := visit.machine.programs.get(program):
            yield Line("compiler", "ok", f"{program}: {path}", "")
        elif environment in visit.machine.environments:
            yield Line("compiler", "missing", f"{program}: not on PATH", f"export PATH=/opt/{environment}/bin:$PATH")
        else:
            yield Line("compiler", "missing", f"{program}: not on PATH", f"it comes with the package {package}")


def instance_type(visit: Visit) -> Iterator[Line]:
    """The machine's own. A program made for one chip does not run on another; sizes of one family differ in cores and host."""
    found, wanted = visit.machine.instance_type, visit.plan.target
    if found is None:
        yield Line("instance type", "not looked at", f"this machine does not say; the plan is for {wanted}", "")
    elif found == wanted:
        yield Line("instance type", "ok", found, "")
    elif visit.here is None:
        said = f"{found}, of which nothing is known here; the plan is for {wanted}"
        yield Line("instance type", "warning", said, f"run on {wanted}")
    elif visit.here.chip == visit.target.chip:
        said = f"{found}, the plan is for {wanted}"
        yield Line("instance type", "warning", said, f"target={found}, or run on {wanted}")
    else:
        said = f"{found} with {visit.here.chip.name}, the plan is for {wanted} with {visit.target.chip.name}"
        yield Line("instance type", "missing", said, f"run on {wanted}")


def cores(visit: Visit) -> Iterator[Line]:
    """Neighbours, of devices that no process has open: which of a device's cores a process has reserved does not show."""
    machine, here = visit.machine, visit.here or visit.target
    holders = [processes for processes in machine.devices.values() for _ in range(here.cores // here.chips)]
    needed = cores_taken(visit.plan.tp, (call.args for call in visit.plan.calls))
    first = next((core for core in range(len(holders) - needed + 1) if not any(holders[core : core + needed])), None)
    processes = sorted({process for core in holders for process in core}, key=int)
    said = f"{sum(not core for core in holders)} of {len(holders)} cores free, the plan takes {needed}"
    if processes:
        said += f"; held by process {', '.join(processes)}"
    if machine.hidden:
        said += f"; as far as visible: not of {machine.hidden} processes of other users"
    given = f"run on {visit.plan.target}; a container has the devices it is given (--device=/dev/neuron0 …)"
    if not holders:
        yield Line("cores", "missing", "no /dev/neuron*", f"sudo modprobe neuron loads the driver; {given}")
    elif len(holders) < needed:
        yield Line("cores", "missing", said, given)
    elif first is None:
        remedy = "stop it (SIGTERM: a killed process may leave the device hanging until a reboot)"
        yield Line("cores", "missing", said, remedy)
    elif processes:
        chosen = f"{first}-{first + needed - 1}" if needed > 1 else str(first)
        remedy = f"export NEURON_RT_VISIBLE_CORES={chosen}, or a process asks for all cores"
        yield Line("cores", "warning", said, remedy)
    else:
        yield Line("cores", "ok", said, "")


def load_memory(visit: Visit) -> Iterator[Line]:
    """Every rank's weights pass through the host."""
    said, lacking = _memory(visit, "loading", visit.plan.budget.host.load_peak)
    if lacking <= 0:
        yield Line("memory to load", "ok", said, "")
    else:
        yield Line("memory to load", "missing", said, _more_swap(lacking))


def compile_memory(visit: Visit) -> Iterator[Line]:
    """A machine that only loads needs less."""
    host = visit.plan.budget.host
    said, lacking = _memory(visit, "compiling", host.compile_peak)
    if lacking <= 0:
        yield Line("memory to compile", "ok", said, "")
    else:
        elsewhere = f"compile on {host.compile_on} with compile.mirror=URL, or " if host.compile_on else ""
        yield Line("memory to compile", "warning", said, elsewhere + _more_swap(lacking))


def _memory(visit: Visit, doing: str, peak: int) -> tuple[str, int]:
    """What is there and what is needed beside the system, and the bytes that lack."""
    machine = visit.machine
    needed = peak + visit.sdk.stack.estimates.host_reserve.bytes
    said = f"{_gb(machine.memory_bytes)} and {_gb(machine.swap_bytes)} of swap; {doing} takes {_gb(needed)}"
    return said, needed - machine.memory_bytes - machine.swap_bytes


def _more_swap(lacking: int) -> str:
    """In a file of its own, beside the swap that is there."""
    made = f"fallocate -l {-(-lacking // GIB)}G $f && mkswap $f && swapon $f"
    return f"sudo sh -c 'f=$(mktemp /swap.XXXXXX) && {made}'"


def disk(visit: Visit) -> Iterator[Line]:
    """Rank files with the host's tables, and compiled graphs, where task=compile writes them."""
    sizes = visit.plan.budget.host.disk
    written = ((visit.rank_files, sizes.shards), (visit.artifacts, sizes.artifacts))
    for disk in visit.machine.disks:
        needed = sum(size for directory, size in written if directory in disk.directories)
        said = f"{' and '.join(disk.directories)}: {_gb(disk.free)} free, {_gb(needed)} needed"
        if disk.free >= needed:
            yield Line("disk", "ok", said, "")
        elif visit.rank_files in disk.directories:
            remedy = "cd to a larger disk and run there: rank files go to outputs/ of the working directory"
            yield Line("disk", "missing", said, remedy)
        else:
            yield Line("disk", "missing", said, "output=DIR on a larger disk")


def compile_cache(visit: Visit) -> Iterator[Line]:
    """A failure that was cached is answered from there, whatever has been mended."""
    cache, failed = visit.machine.compile_cache, visit.machine.failed_modules
    known = visit.sdk.stack.compile_cache
    if known is None:
        return
    if failed is None:
        remedy = f"delete what has a model.log and no model.neff there, or export {known.variable}=DIR"
        yield Line("compile cache", "not looked at", f"{cache}: no local directory", remedy)
    elif failed:
        said = f"{cache}: {len(failed)} cached failures ({Path(failed[0]).name})"
        yield Line("compile cache", "missing", said, f"rm -r {shlex.join(failed)}")
    else:
        yield Line("compile cache", "ok", f"{cache}: no cached failure", "")


def ports(visit: Visit) -> Iterator[Line]:
    """Where ranks meet while they are traced. Of those that can be moved, task=compile takes a spare one by itself."""
    meeting = visit.sdk.stack.rendezvous.get(visit.plan.recipe)
    if meeting is None:
        return
    if meeting.port not in visit.machine.used_ports:
        yield Line("port", "ok", f"{meeting.port} is free", "")
    elif meeting.variable is None:
        remedy = f"end what holds it, which sudo ss -ltnp 'sport = :{meeting.port}' names"
        yield Line("port", "missing", f"{meeting.port} is in use, and nothing names another", remedy)
    else:
        remedy = f"export {meeting.variable}=PORT, a free one, for scripts of your own"
        yield Line("port", "warning", f"{meeting.port} is in use", remedy)


def tokenizer(visit: Visit) -> Iterator[Line]:
    """Words are words, a turn's markers are one token each, and the chat template is there."""
    found = visit.tokenizer
    if found is None:
        said = "no local checkpoint, or no transformers to read it"
        yield Line("tokenizer", "not looked at", said, "checkpoint=DIR, and pip install transformers")
        return
    again = "copy tokenizer.json, tokenizer_config.json and chat_template.jinja of the checkpoint again"
    if found.trouble:
        yield Line("tokenizer", "missing", found.trouble, again)
    elif len(found.words) < 2:
        yield Line("tokenizer", "missing", f"'hello world' becomes {list(found.words)}", again)
    elif any(count != 1 for count in found.markers):
        yield Line(
            "tokenizer", "missing", f"{' and '.join(MARKERS)} become {list(found.markers)} tokens, not one each", again
        )
    else:
        yield Line("tokenizer", "ok", f"'hello world' becomes {list(found.words)}", "")
    if not found.trouble:
        alive = found.template is not None and MARKERS[0] in found.template
        said = "formats a turn" if alive else "absent, or of another model"
        yield Line("chat template", "ok" if alive else "missing", said, "" if alive else again)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


Need = Callable[[Visit], Iterator[Line]]

_NEEDS: tuple[Need, ...] = (
    packages,
    virtual_environment,
    compiler,
    instance_type,
    cores,
    load_memory,
    compile_memory,
    disk,
    compile_cache,
    ports,
    tokenizer,
)

_SERVED: tuple[Need, ...] = (packages, instance_type, load_memory, tokenizer)
"""Of a stack that makes its own graphs."""
