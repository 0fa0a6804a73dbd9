"""What a person sees of a long task."""

from __future__ import annotations

import io

from rich.console import Console

from gemma4cfg.views.progress import shown_progress, summary
from sharding.records import Progress, ReshardResult


def test_bars_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with shown_progress(console) as show:
        assert show is not None
        show(Progress("tp3_sharded_checkpoint.safetensors", 500_000_000, 1_000_000_000))
        show(Progress("tp3_sharded_checkpoint.safetensors", 1_000_000_000, 1_000_000_000))
    text = console.file.getvalue()
    assert "tp3 " in text
    assert "1.0/1.0 GB" in text


def test_quiet_off_a_terminal():
    console = Console(file=io.StringIO(), width=100)
    with shown_progress(console) as show:
        assert show is None
    assert console.file.getvalue() == ""


def test_summary():
    result = ReshardResult("out", "j", "p", (), ("a", "b"), ("c",), 10**9, 3 * 10**9, 1.5)
    assert summary(result).startswith("2 files written (3.00 GB), 1 kept in 1.5 s, 2.00 GB/s, peak memory ")
