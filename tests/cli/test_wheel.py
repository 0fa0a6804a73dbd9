"""The wheel, installed and run where no checkout is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from gemma4cfg.plan.encode import canonical
from tests.cli.runs import ROOT, run


def command(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**bare, **env}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with what is installed; by pip with its own build environment where hatchling is not."""
    out = tmp_path_factory.mktemp("wheel")
    if find_spec("hatchling") and find_spec("build"):
        command("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), cwd=ROOT)
    else:
        command("-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(out), cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    words = ("install", "--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(site), str(wheel))
    command("-m", "pip", *words, cwd=site)
    return site


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"gemma4cfg", "sharding"}
    shipped = {name.removeprefix("gemma4cfg/conf/") for name in names if name.startswith("gemma4cfg/conf/")}
    conf = ROOT / "conf"
    assert shipped == {str(path.relative_to(conf)) for path in conf.rglob("*") if path.is_file()}
    assert "gemma4cfg/plan/plan.schema.json" in names
    assert {f"gemma4cfg/views/report/templates/{name}" for name in ("plan.html", "style.css", "map.svg")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_it_plans_from_any_directory(installed: Path, tmp_path: Path) -> None:
    elsewhere, checkout = tmp_path / "elsewhere", tmp_path / "checkout"
    elsewhere.mkdir()
    checkout.mkdir()
    where = command(
        "-c",
        "import gemma4cfg, sharding; from gemma4cfg.config.catalog import conf_directory;"
        "print(gemma4cfg.__file__, sharding.__file__, conf_directory(), sep='\\n')",
        cwd=elsewhere,
        PYTHONPATH=str(installed),
    ).stdout.splitlines()
    package = installed / "gemma4cfg"
    assert where == [str(package / "__init__.py"), str(installed / "sharding" / "__init__.py"), str(package / "conf")]
    command("-m", "gemma4cfg", "model=26b-a4b", "tp=8", cwd=elsewhere, PYTHONPATH=str(installed))
    (path,) = elsewhere.glob("outputs/runs/*/plan.json")
    here = run("model=26b-a4b", "tp=8", cwd=checkout).plan
    assert canonical(json.loads(path.read_text(encoding="utf-8"))) == canonical(here)
