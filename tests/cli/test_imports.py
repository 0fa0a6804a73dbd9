"""What planning imports, and what is never installed by accident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import gemma4cfg
from gemma4cfg.tasks.files import write_json
from tests.cli.runs import ROOT

HEAVY = ("torch", "transformers", "numpy", "fsspec", "jinja2", "safetensors")
DEVICE = ("torch_neuronx", "neuronx_distributed", "neuronxcc", "libneuronxla", "torch_xla", "vllm")

PLACEHOLDERS = {"torch-neuronx": "1.0", "neuronx-distributed": "0.1", "neuronx-cc": "1.0.post1"}
"""The newest release of each on PyPI: empty packages under the names of AWS's own."""


def imported_by(code: str, cwd: Path) -> set[str]:
    """Top-level modules that are there after ``code``."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}\nimport sys\nprint('MODULES', *{{name.partition('.')[0] for name in sys.modules}})",
        ],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "from gemma4cfg import build_plan, load_config\nbuild_plan(load_config(['model=31b', 'tp=8']))", id="api"
        ),
        pytest.param(
            "import sys\nfrom gemma4cfg.cli import run\nsys.argv = ['gemma4cfg', 'model=26b-a4b', 'tp=8']\nassert run() == 0",
            id="command",
        ),
        pytest.param(
            "import sys\nfrom gemma4cfg.cli import run\nsys.argv = ['gemma4cfg', 'model=31b', 'tp=1']\nassert run() == 2",
            id="refusal",
        ),
        pytest.param(
            "from gemma4cfg.diff import run\nassert run(['model=e2b', 'model=31b tp=8']) == 1", id="difference"
        ),
    ],
)
def test_planning_imports_nothing_heavy(code: str, tmp_path: Path) -> None:
    there = imported_by(code, tmp_path)
    assert "gemma4cfg" in there
    assert not there & {*HEAVY, *DEVICE}


def test_a_report_takes_templates_and_nothing_else_heavy(tmp_path: Path) -> None:
    there = imported_by("from gemma4cfg.report import run\nrun(['model=e2b'])", tmp_path)
    assert there & {*HEAVY, *DEVICE} == {"jinja2"}


def test_plans_that_are_read_are_compared_without_hydra(tmp_path: Path) -> None:
    write_json(tmp_path / "plan.json", gemma4cfg.build_plan(gemma4cfg.load_config(["model=e2b"])).to_json())
    there = imported_by("from gemma4cfg.diff import run\nassert run(['plan.json', '.']) == 0", tmp_path)
    assert not there & {*HEAVY, *DEVICE, "hydra", "omegaconf"}


def test_the_package_alone_imports_next_to_nothing(tmp_path: Path) -> None:
    before, there = imported_by("", tmp_path), imported_by("import gemma4cfg", tmp_path)
    assert there - before - sys.stdlib_module_names == {"gemma4cfg"}


def test_public_names() -> None:
    assert {"load_config", "build_plan", "Plan", "UserError", "diff_plans", "apply_diff", "PlanDiff"} <= set(
        gemma4cfg.__all__
    )
    for name in gemma4cfg.__all__:
        assert getattr(gemma4cfg, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = gemma4cfg.nothing


def project() -> dict[str, Any]:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib  # type: ignore[import-not-found,unused-ignore]

    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_placeholders_are_out_of_reach() -> None:
    """No release that PyPI has satisfies what the extra asks for, so pip fails where AWS's index is not named."""
    asked = {
        requirement.name: requirement for requirement in map(Requirement, project()["optional-dependencies"]["neuron"])
    }
    assert set(PLACEHOLDERS) <= set(asked)
    for name, version in PLACEHOLDERS.items():
        specifier = asked[name].specifier
        assert not specifier.contains(Version(version), prereleases=True), name
        floor = max(Version(part.version) for part in specifier if part.operator == ">=")
        assert floor > Version(version), name


def test_device_packages_are_in_no_other_extra() -> None:
    table = project()
    extras = {key: names for key, names in table["optional-dependencies"].items() if key != "neuron"}
    named = {Requirement(text).name for names in (table["dependencies"], *extras.values()) for text in names}
    assert not named & {*PLACEHOLDERS, "torch-xla", "libneuronxla"}
    assert not {Requirement(text).name for text in table["dependencies"]} & {"torch", "transformers"}
