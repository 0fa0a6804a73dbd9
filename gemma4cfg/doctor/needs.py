"""What a plan needs of a machine: a function for each need, a line for each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gemma4cfg.config.sdk import Sdk, version_parts
from gemma4cfg.config.target import Target
from gemma4cfg.doctor.machine import Machine
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
    """``tokenizer``: null where there is no local checkpoint. ``sdk`` and ``target`` are the plan's."""

    plan: Plan
    sdk: Sdk
    target: Target
    machine: Machine
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
        system = package == "aws-neuronx-runtime-lib"
        extra = f" --extra-index-url {index}" if index else ""
        remedy = f"apt-get install {package}={pin}*" if system else f"pip install '{package}=={pin}.*'{extra}"
        if found is None:
            yield Line("package", "missing", said, remedy)
        elif version_parts(found)[: len(version_parts(pin))] == version_parts(pin):
            yield Line("package", "ok", said, "")
        elif package in ("torch", "transformers"):
            yield Line("package", "warning", said, remedy)
        else:
            placeholder = version_parts(found)[0] < version_parts(pin)[0] and not system
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
        remedy = f"export PATH=/opt/{wanted}/bin:$PATH" if there else f"an image of {visit.sdk.name} has it under /opt"
        yield Line("virtual environment", "warning", said, remedy)


def compiler(visit: Visit) -> Iterator[Line]:
    """Programs that the SDK starts by name."""
    remedy = f"export PATH=/opt/{visit.sdk.virtual_environment or 'VENV'}/bin:/opt/aws/neuron/bin:$PATH"
    for program in ("neuronx-cc", "libneuronpjrt-path"):
        path = visit.machine.programs.get(program)
        yield Line(
            "compiler", "ok" if path else "missing", f"{program}: {path or 'not on PATH'}", "" if path else remedy
        )


def cores(visit: Visit) -> Iterator[Line]:
    """One owner at a time has a device's cores."""
    machine, target = visit.machine, visit.target
    there = machine.devices * target.chip.cores // target.cores_per_logical_core
    needed = cores_taken(visit.plan.tp, (call.args for call in visit.plan.calls))
    if not machine.devices:
        yield Line("cores", "missing", "no /dev/neuron*", f"run on {visit.plan.target}, with the driver loaded")
    elif machine.busy:
        held = f"{machine.devices} devices, held by process {', '.join(machine.busy)}"
        yield Line(
            "cores", "missing", held, "stop it (SIGTERM: a killed process may leave the device hanging until a reboot)"
        )
    elif there < needed:
        yield Line("cores", "missing", f"{there} cores, the plan takes {needed}", f"run on {visit.plan.target}")
    else:
        yield Line("cores", "ok", f"{there} cores, none in use; the plan takes {needed}", "")


def load_memory(visit: Visit) -> Iterator[Line]:
    """Every rank's weights pass through the host, beside what it needs for itself."""
    host, machine = visit.plan.budget.host, visit.machine
    needed = host.load_peak + visit.sdk.stack.estimates.host_reserve.bytes
    lacking = needed - machine.memory_bytes - machine.swap_bytes
    said = f"{_gb(machine.memory_bytes)} and {_gb(machine.swap_bytes)} of swap; loading peaks at {_gb(needed)}"
    if lacking <= 0:
        yield Line("memory to load", "ok", said, "")
    else:
        swap = -(-(machine.swap_bytes + lacking) // 2**30)
        remedy = f"fallocate -l {swap}G /swap && chmod 600 /swap && mkswap /swap && swapon /swap"
        yield Line("memory to load", "missing", said, remedy)


def compile_memory(visit: Visit) -> Iterator[Line]:
    """A machine that only loads needs less."""
    needed, machine = visit.plan.budget.host.compile_peak, visit.machine
    there = machine.memory_bytes + machine.swap_bytes
    said = f"{_gb(there)} with swap; compiling peaks at {_gb(needed)}"
    if needed <= there:
        yield Line("memory to compile", "ok", said, "")
    else:
        yield Line("memory to compile", "warning", said, "compile on a larger host and copy the artifacts, or add swap")


def scratch(visit: Visit) -> Iterator[Line]:
    """Rank files, and programs that carry weights of their own."""
    plan = visit.plan
    copies = 1 if plan.recipe == "model_builder" else 1 + len(plan.graphs)
    needed = copies * plan.tp * (plan.budget.hbm_per_rank.weights // plan.weight_copies)
    for directory, free in visit.machine.scratch.items():
        said = f"{directory}: {_gb(free)} free, {_gb(needed)} needed"
        ok = free >= needed
        yield Line("scratch space", "ok" if ok else "missing", said, "" if ok else "output=DIR on a larger disk")


def compile_cache(visit: Visit) -> Iterator[Line]:
    """A failure that was cached is answered from there, whatever has been mended."""
    machine = visit.machine
    if not machine.failed_modules:
        yield Line("compile cache", "ok", f"{machine.compile_cache}: no cached failure", "")
        return
    said = f"{machine.compile_cache}: {len(machine.failed_modules)} cached failures ({machine.failed_modules[0]})"
    yield Line("compile cache", "missing", said, f"rm -r {machine.compile_cache}")


def ports(visit: Visit) -> Iterator[Line]:
    """Where ranks meet while they are traced. Of those that can be moved, task=compile takes a spare one by itself."""
    meeting = visit.sdk.stack.rendezvous.get(visit.plan.recipe)
    if meeting is None:
        return
    if meeting.port not in visit.machine.used_ports:
        yield Line("port", "ok", f"{meeting.port} is free", "")
    elif meeting.variable is None:
        yield Line("port", "missing", f"{meeting.port} is in use, and nothing names another", "end what holds it")
    else:
        remedy = f"export {meeting.variable}=29600 for scripts of your own"
        yield Line("port", "warning", f"{meeting.port} is in use", remedy)


def tokenizer(visit: Visit) -> Iterator[Line]:
    """Words are words, a turn's markers are one token each, and the chat template is there."""
    found = visit.tokenizer
    if found is None:
        yield Line("tokenizer", "not looked at", "no local checkpoint", "checkpoint=DIR")
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
    cores,
    load_memory,
    compile_memory,
    scratch,
    compile_cache,
    ports,
    tokenizer,
)

_SERVED: tuple[Need, ...] = (packages, load_memory, tokenizer)
"""Of a stack that makes its own graphs."""
