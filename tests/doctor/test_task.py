"""``task=doctor`` on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.runs import run


def test_output_is_what_compile_takes(tmp_path: Path) -> None:
    result = run("model=12b", "tp=2", "task=doctor", "output=s3://bucket/x", cwd=tmp_path)
    assert result.exit_code == 2
    assert "output=s3://bucket/x: the compiler writes to local directories" in result.err
    assert "free" not in result.out
