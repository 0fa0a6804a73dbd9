"""Fake machines: one that passes, and one for each need that fails."""

from __future__ import annotations

import functools
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4cfg import build_plan, load_config
from gemma4cfg.config.catalog import choices, decode_choice, read_choice
from gemma4cfg.config.sdk import Rendezvous, Sdk
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.doctor.machine import Disk, Machine, device_holders, failed_modules, read_machine
from gemma4cfg.doctor.needs import Line, Visit, examine
from gemma4cfg.doctor.tokenizer import Tokenizer, read_tokenizer
from gemma4cfg.plan.records import Plan

ALIVE = Tokenizer((17534, 1902), (1, 1), "<bos><|turn>user\nhello<turn|>\n<|turn>model\n", None)


@functools.cache
def plan(*overrides: str) -> Plan:
    return build_plan(load_config(["model=12b", "tp=2", "target=inf2.8xlarge", *overrides]))


def release(name: str = "neuron-2.28") -> Sdk:
    return decode_choice(Sdk, "sdk", read_choice("sdk", name))


def fit() -> Machine:
    """An inf2.8xlarge of SDK 2.28's image."""
    return Machine(
        packages={name: f"{pin}.0" if name == "neuronx-cc" else pin for name, pin in release().pins.items()},
        programs={"neuronx-cc": "/opt/v/bin/neuronx-cc", "libneuronpjrt-path": "/opt/v/bin/libneuronpjrt-path"},
        instance_type="inf2.8xlarge",
        devices={0: ()},
        hidden=0,
        memory_bytes=128 * GIB,
        swap_bytes=0,
        disks=(Disk(("outputs/shards", "outputs/artifacts"), 500 * 10**9),),
        compile_cache="/var/tmp/neuron-compile-cache",
        failed_modules=(),
        virtual_environment="aws_neuronx_venv_pytorch_2_8_nxd_inference",
        environments=("aws_neuronx_venv_pytorch_2_8_nxd_inference",),
        used_ports=(),
    )


def lines(machine: Machine, tokenizer: Tokenizer | None = ALIVE, of: Plan | None = None) -> tuple[Line, ...]:
    of = of or plan()
    here = known(machine.instance_type) if machine.instance_type in choices("target") else None
    return examine(
        Visit(of, release(of.sdk), known(of.target), here, machine, "outputs/shards", "outputs/artifacts", tokenizer)
    )


def known(target: str) -> Target:
    return decode_choice(Target, "target", read_choice("target", target))


def only(need: str, machine: Machine, of: Plan | None = None) -> Line:
    (found,) = (line for line in lines(machine, of=of) if line.need == need)
    return found


def without(packages: dict[str, str] | None = None, **changed: object) -> Machine:
    """The fit machine, otherwise."""
    machine = replace(fit(), **changed)  # type: ignore[arg-type]
    if packages:
        kept = {name: found for name, found in {**machine.packages, **packages}.items() if found}
        machine = replace(machine, packages=kept)
    return machine


def test_a_fit_machine_passes() -> None:
    assert {line.status for line in lines(fit())} == {"ok"}
    assert {line.remedy for line in lines(fit())} == {""}


@pytest.mark.parametrize(
    ("machine", "need", "status", "found", "remedy"),
    [
        pytest.param(
            without({"torch-neuronx": ""}),
            "package",
            "missing",
            "torch-neuronx absent",
            "pip install",
            id="package_absent",
        ),
        pytest.param(
            without({"neuronx-cc": "2.26.6360"}),
            "package",
            "missing",
            "neuronx-cc 2.26.6360",
            "2.23.6484",
            id="package_other",
        ),
        pytest.param(
            without({"neuronx-distributed": "0.1"}),
            "package",
            "missing",
            "neuronx-distributed 0.1",
            "extra-index",
            id="old",
        ),
        pytest.param(
            without({"torch-neuronx": "1.0"}),
            "package",
            "missing",
            "PyPI's empty placeholder",
            "extra-index",
            id="placeholder",
        ),
        pytest.param(
            without({"torch-neuronx": "unknown"}),
            "package",
            "missing",
            "torch-neuronx unknown, neuron-2.28 has 2.8.0.2.12.22436",
            "extra-index",
            id="no_version",
        ),
        pytest.param(
            without({"aws-neuronx-runtime-lib": "2.33.10"}),
            "package",
            "missing",
            "2.33.10",
            "apt-get",
            id="runtime_other",
        ),
        pytest.param(
            without({"transformers": "5.24.0"}), "package", "warning", "5.24.0", "5.13.0", id="transformers_other"
        ),
        pytest.param(
            without(programs={"libneuronpjrt-path": "/x"}),
            "compiler",
            "missing",
            "neuronx-cc: not on PATH",
            "export PATH=/opt/aws_neuronx_venv_pytorch_2_8_nxd_inference/bin",
            id="compiler_off_path",
        ),
        pytest.param(
            without(programs={"neuronx-cc": "/x"}, environments=()),
            "compiler",
            "missing",
            "libneuronpjrt-path",
            "the package libneuronxla",
            id="pjrt_path",
        ),
        pytest.param(
            without(instance_type="c7i.xlarge"),
            "instance type",
            "warning",
            "nothing is known",
            "inf2.8xlarge",
            id="other",
        ),
        pytest.param(
            without(instance_type="inf2.xlarge"),
            "instance type",
            "warning",
            "inf2.xlarge, the plan is for inf2.8xlarge",
            "target=inf2.xlarge",
            id="size",
        ),
        pytest.param(without(devices={}), "cores", "missing", "no /dev/neuron*", "inf2.8xlarge", id="no_device"),
        pytest.param(
            without(devices={0: ("4711",)}), "cores", "missing", "held by process 4711", "stop it", id="cores_held"
        ),
        pytest.param(
            without(memory_bytes=16 * GIB),
            "memory to load",
            "missing",
            "17.2 GB and 0.0 GB of swap",
            "swapon",
            id="memory",
        ),
        pytest.param(
            without(failed_modules=("/var/tmp/neuron-compile-cache/neuronxcc-2/MODULE_1", "/x/MODULE_2")),
            "compile cache",
            "missing",
            "2 cached failures (MODULE_1)",
            "rm -r /var/tmp/neuron-compile-cache/neuronxcc-2/MODULE_1 /x/MODULE_2",
            id="cached_failure",
        ),
        pytest.param(
            without(compile_cache="s3://my/cache", failed_modules=None),
            "compile cache",
            "not looked at",
            "s3://my/cache: no local directory",
            "NEURON_COMPILE_CACHE_URL=DIR",
            id="cache_elsewhere",
        ),
        pytest.param(
            without(virtual_environment="venv"),
            "virtual environment",
            "warning",
            "venv runs",
            "export PATH=/opt/aws_neuronx_venv_pytorch_2_8_nxd_inference/bin",
            id="other_environment",
        ),
        pytest.param(
            without(virtual_environment=None, environments=()),
            "virtual environment",
            "warning",
            "none runs",
            "an image of neuron-2.28",
            id="no_environment",
        ),
        pytest.param(without(used_ports=(29500,)), "port", "warning", "29500 is in use", "MASTER_PORT", id="port"),
    ],
)
def test_a_need_that_is_not_met(machine: Machine, need: str, status: str, found: str, remedy: str) -> None:
    answers = [line for line in lines(machine) if line.need == need and found in line.found]
    assert [line.status for line in answers] == [status]
    assert remedy in answers[0].remedy
    assert status == "ok" or answers[0].remedy
    others = {line.need for line in lines(machine) if line.status == "missing"} - {need}
    assert others <= {"memory to load"}, "nothing else is blamed"


@pytest.mark.parametrize(
    ("tokenizer", "need", "found"),
    [
        pytest.param(Tokenizer((), (), None, "no tokenizer.json"), "tokenizer", "no tokenizer.json", id="file"),
        pytest.param(replace(ALIVE, words=(3,)), "tokenizer", "'hello world' becomes [3]", id="one_unknown"),
        pytest.param(replace(ALIVE, markers=(7, 7)), "tokenizer", "[7, 7] tokens", id="literal_markers"),
        pytest.param(replace(ALIVE, template=None), "chat template", "absent", id="no_template"),
        pytest.param(
            replace(ALIVE, template="<start_of_turn>user"), "chat template", "another model", id="old_template"
        ),
    ],
)
def test_a_dead_tokenizer(tokenizer: Tokenizer, need: str, found: str) -> None:
    missing = [line for line in lines(fit(), tokenizer) if line.status == "missing"]
    assert [line.need for line in missing] == [need]
    assert found in missing[0].found
    assert missing[0].remedy.startswith("copy tokenizer.json")


def test_without_a_checkpoint_the_tokenizer_is_not_looked_at() -> None:
    answers = [line for line in lines(fit(), None) if line.status != "ok"]
    assert [(line.need, line.status, line.remedy) for line in answers] == [
        ("tokenizer", "not looked at", "checkpoint=DIR, and pip install transformers")
    ]


def test_a_stack_that_is_built() -> None:
    """vLLM's own packages leave the chip out."""
    of = plan("model=e2b", "tp=1", "target=g5g.xlarge")
    answers = lines(without({"vllm": "", "torch": "2.12.0+cu132"}, instance_type="g5g.xlarge"), of=of)
    (line,) = (line for line in answers if line.status != "ok")
    assert (line.status, line.found) == ("missing", "vllm absent, vllm-0.27.2rc0 has 0.27.2rc0")
    assert line.remedy == "an image with torch 2.12.0, and the build of the plan's first call (task=plan)"
    assert not {line.need for line in answers} & {"compiler", "cores", "compile cache", "port"}


def test_a_core_each_takes_two() -> None:
    """Two traces on a core each take two cores at tp=1."""
    of = plan("model=e2b", "tp=1", "recipe=trace", "recipe.placement=core_each")
    assert only("cores", fit(), of).found == "2 of 2 cores free, the plan takes 2"


def test_another_chip() -> None:
    """Its cores are counted, not those of the plan's."""
    of = plan("tp=4", "target=trn2.3xlarge", "sdk=neuron-2.28")
    other = only("instance type", fit(), of)
    assert (other.status, other.found) == (
        "missing",
        "inf2.8xlarge with inferentia2, the plan is for trn2.3xlarge with trainium2",
    )
    assert other.remedy == "run on trn2.3xlarge"
    few = only("cores", fit(), of)
    assert (few.status, few.found) == ("missing", "2 of 2 cores free, the plan takes 4")


def test_a_machine_without_a_name() -> None:
    """Taken for the plan's."""
    nameless = without(instance_type=None)
    assert only("instance type", nameless).status == "not looked at"
    assert only("cores", nameless).status == "ok"


@pytest.mark.parametrize(
    ("tp", "held", "status", "visible"),
    [
        pytest.param(2, {0}, "warning", "=2-3,", id="behind"),
        pytest.param(1, {0, 2}, "warning", "=2,", id="between"),
        pytest.param(4, {0, 3, 6, 9}, "warning", "=2-5,", id="neighbours"),
        pytest.param(8, {0, 4, 8}, "missing", "SIGTERM", id="no_neighbours"),
    ],
)
def test_some_devices_are_held(tp: int, held: set[int], status: str, visible: str) -> None:
    alone = ("recipe=trace", "recipe.placement=one_core") if tp == 1 else ()
    of = plan("model=e2b", f"tp={tp}", "target=inf2.48xlarge", "shapes=kv512", *alone)
    machine = without(
        instance_type="inf2.48xlarge", devices={device: ("4711",) if device in held else () for device in range(12)}
    )
    found = only("cores", machine, of)
    assert found.status == status
    assert visible in found.remedy
    assert found.found == f"{24 - 2 * len(held)} of 24 cores free, the plan takes {tp}; held by process 4711"


def test_processes_that_hide_what_they_hold() -> None:
    found = only("cores", without(hidden=83))
    assert (found.status, found.remedy) == ("ok", "")
    assert "as far as visible: not of 83 processes" in found.found


def test_who_has_a_device_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = {"9": ("/dev/null", "/dev/neuron0"), "10": ("/dev/neuron0", "/dev/neuron11"), "7": (), "self": ("/x",)}
    for process, targets in opened.items():
        (tmp_path / process / "fd").mkdir(parents=True)
        for number, target in enumerate(targets):
            (tmp_path / process / "fd" / str(number)).symlink_to(target)
    (tmp_path / "8").mkdir()  # ended
    assert device_holders(tmp_path) == ({0: ("9", "10"), 11: ("10",)}, 0)
    listed = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == tmp_path / "10" / "fd":
            raise PermissionError(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert device_holders(tmp_path) == ({0: ("9",)}, 1)


@pytest.mark.parametrize(
    ("recipe", "used", "status"),
    [
        pytest.param("trace", (2022, 29500), None, id="no_ranks"),
        pytest.param("tp_alias", (29500,), "ok", id="another_recipes"),
        pytest.param("tp_alias", (2022,), "missing", id="no_other_is_taken"),
    ],
)
def test_each_recipe_has_its_port(recipe: str, used: tuple[int, ...], status: str | None) -> None:
    of = plan("model=e2b", f"tp={1 if recipe == 'trace' else 2}", f"recipe={recipe}")
    found = [line.status for line in lines(without(used_ports=used), of=of) if line.need == "port"]
    assert found == ([] if status is None else [status])


@pytest.mark.parametrize("recipe", ["model_builder", "tp_alias"])
def test_the_disk_takes_what_the_plan_says(recipe: str) -> None:
    """The host's tables too, which are more than half of E2B."""
    of = plan("model=e2b", f"recipe={recipe}")
    disk = of.budget.host.disk
    needed = disk.shards + disk.artifacts
    both = ("outputs/shards", "outputs/artifacts")
    answers = {free: only("disk", without(disks=(Disk(both, free),)), of) for free in (needed - 1, needed)}
    assert [line.status for line in answers.values()] == ["missing", "ok"]
    assert f"{needed / 1e9:.1f} GB needed" in answers[needed].found
    assert answers[needed - 1].remedy.startswith("cd to a larger disk")


def test_a_disk_each() -> None:
    """``output=`` moves artifacts only."""
    disk = plan().budget.host.disk
    machine = without(disks=(Disk(("outputs/shards",), disk.shards), Disk(("outputs/artifacts",), disk.artifacts - 1)))
    answers = [line for line in lines(machine) if line.need == "disk"]
    assert [(line.status, line.remedy) for line in answers] == [("ok", ""), ("missing", "output=DIR on a larger disk")]


@pytest.mark.parametrize("what", ["load", "compile"])
def test_swap_makes_up_for_memory(what: str) -> None:
    """The plan's own figure of what lacks, with a reserve for the system."""
    of = plan("target=inf2.xlarge")
    host = of.budget.host
    lacking = {"load": host.swap, "compile": host.compile_swap}[what]
    assert lacking > 4 * GIB
    xlarge = without(instance_type="inf2.xlarge", memory_bytes=host.limit)
    assert only(f"memory to {what}", replace(xlarge, swap_bytes=lacking), of).status == "ok"
    line = only(f"memory to {what}", replace(xlarge, swap_bytes=lacking - 4 * GIB), of)
    assert line.status == {"load": "missing", "compile": "warning"}[what]
    assert f"17.2 GB and {(lacking - 4 * GIB) / 1e9:.1f} GB of swap" in line.found
    assert "mktemp /swap.XXXXXX) && fallocate -l 4G $f" in line.remedy, "what lacks, in a file of its own"
    assert line.remedy.startswith("compile on inf2.8xlarge with compile.mirror=URL, or sudo") == (what == "compile")


def test_too_few_cores() -> None:
    of = plan("model=31b", "tp=8", "target=inf2.24xlarge")
    found = only("cores", without(instance_type="inf2.24xlarge"), of)
    assert (found.status, found.found) == ("missing", "2 of 2 cores free, the plan takes 8")
    assert found.remedy.startswith("run on inf2.24xlarge; a container has the devices it is given")


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        sdk = release()
        meetings = {"tp_alias": Rendezvous(port, None, "here"), "trace": Rendezvous(1, None, "nobody")}
        sdk = replace(sdk, stack=replace(sdk.stack, rendezvous=meetings))
        machine = read_machine(sdk, (tmp_path / "not" / "yet", tmp_path, tmp_path))
    assert machine.used_ports == (port,)
    assert machine.memory_bytes > 0
    assert "torch" in machine.packages
    (disk,) = machine.disks
    assert disk.directories == (str(tmp_path / "not" / "yet"), str(tmp_path))
    assert 0 < disk.free <= shutil.disk_usage(tmp_path).total


def test_a_cached_failure_is_a_log_without_a_program(tmp_path: Path) -> None:
    for name, files in {"MODULE_1": ("model.log",), "MODULE_2": ("model.log", "model.neff"), "MODULE_3": ()}.items():
        (tmp_path / "neuronxcc-2" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "neuronxcc-2" / name / file).touch()
    assert failed_modules(str(tmp_path)) == (str(tmp_path / "neuronxcc-2" / "MODULE_1"),)
    assert failed_modules(str(tmp_path / "absent")) == ()
    assert failed_modules("s3://my/cache") is None


def test_system_packages_and_programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of either package manager; programs beside the interpreter too, as task=compile has them."""
    system, beside = tmp_path / "system", tmp_path / "environment"
    for path, text in (
        (system / "dpkg-query", "exit 1"),
        (system / "rpm", "test $3 = aws-neuronx-runtime-lib && echo 2.30.51.0"),
        (beside / "neuronx-cc", ""),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(system))
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    machine = read_machine(release(), (tmp_path,))
    assert machine.packages["aws-neuronx-runtime-lib"] == "2.30.51.0"
    assert machine.programs["neuronx-cc"] == str(beside / "neuronx-cc")


def test_a_directory_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_tokenizer(str(tmp_path))
    assert found is not None and found.trouble == f"{tmp_path}: no tokenizer.json"
    (tmp_path / "tokenizer.json").write_text("{")
    found = read_tokenizer(str(tmp_path))
    assert found is not None and found.trouble
    assert read_tokenizer(None) is None
    assert read_tokenizer("s3://bucket/x") is None
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert read_tokenizer(str(tmp_path)) is None, "its files are not blamed"
