"""A plan on the terminal."""

from __future__ import annotations

import io
import json

from rich.console import Console

from gemma4cfg import build_plan, load_config
from gemma4cfg.views.terminal import show_plan


def test_a_command_is_printed_whole() -> None:
    """Every word, in order, to be copied; other long lists are cut short."""
    plan = json.loads(json.dumps(build_plan(load_config(["model=e2b", "target=g5g.2xlarge"])).to_json()))
    console = Console(file=io.StringIO(), width=2000)
    show_plan(plan, console)
    (serve,) = [call["args"]["command"] for call in plan["calls"] if call["api"] == "vllm serve"]
    assert f"command={' '.join(serve)}, env=" in console.file.getvalue()  # type: ignore[attr-defined]
