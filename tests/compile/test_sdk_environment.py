"""What the SDK needs of a process and does not say, in the process itself and in those that it spawns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4cfg.compile.script import render
from tests.cli.runs import ROOT
from tests.compile.recipes import subject

IMPORT = "from transformers.utils.fx import HFTracer, symbolic_trace"
"""As NxD does, wherever it is imported; transformers 5 has no such module."""

SPAWN = f"""
    import multiprocessing
    from gemma4cfg.compile.sdk_environment import prepare
    prepare()
    child = multiprocessing.get_context("spawn").Process(target=exec, args=({IMPORT!r},))
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""
COMMAND = f"from gemma4cfg.__main__ import main\n\nif __name__ == '__main__':{SPAWN}"
"""As pip writes the ``gemma4cfg`` command."""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("MASTER_PORT", "GEMMA4CFG_SDK_PREPARED")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    given = {**kept, "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, *words], env=given, capture_output=True, text=True, check=False)


def test_a_process_is_made_fit_once() -> None:
    said = (
        "import os, json; from gemma4cfg.compile.sdk_environment import prepare; first, second = prepare(), prepare()"
    )
    done = python("-c", f"{said}; {IMPORT}; print(json.dumps([first, second, dict(os.environ)]))", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    first, second, environment = json.loads(done.stdout)
    assert [line.partition(":")[0] for line in first if "neuron/bin" not in line] == [
        "PATH",
        "transformers.utils.fx",
        "MASTER_PORT",
    ]
    assert second == []
    assert str(Path(sys.executable).parent) in environment["PATH"].split(os.pathsep)
    assert 1024 <= int(environment["MASTER_PORT"]) < 65536


@pytest.mark.parametrize("kind", ["command", "script"])
def test_processes_that_it_spawns_are_fit_too(kind: str, tmp_path: Path) -> None:
    """``parallel_model_trace`` sends a function of NxD's to each rank's process."""
    script = tmp_path / ("gemma4cfg" if kind == "command" else "compile.py")
    text = COMMAND if kind == "command" else render(subject("12b", 2, "tp_alias_device").plan)
    script.write_text(text.replace("\n    main()\n", SPAWN))
    assert "spawn" in script.read_text()
    done = python(str(script))
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_process_that_nobody_made_fit_is_left_alone() -> None:
    done = python("-c", f"import gemma4cfg.__main__; {IMPORT}")
    assert "ModuleNotFoundError: No module named 'transformers.utils.fx'" in done.stderr
