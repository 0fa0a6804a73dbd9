"""``verify.expect``: a plan that equals its reference, and whose text is nonsense, is disproved."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError, DisprovedError, UserError
from gemma4cfg.tasks import verify
from tests.trained import trained
from tests.trained.damage import damaged

SHORT = (
    "tp=2",
    "dtype=float32",
    "verify.steps=1",
    "shapes.kv_length=64",
    "shapes.prefill_buckets=[40]",
    "shapes.batch=5",
)


def verified(directory: Path, *overrides: str) -> None:
    verify.run(load_config(["task=verify", *overrides]), directory, Console(file=io.StringIO(), width=160))


def test_equal_to_the_reference_and_nonsense_all_the_same(tmp_path: Path) -> None:
    """The only check that fails is the text's."""
    directory = damaged(trained("e2b"), "no-template", tmp_path / "wrong")
    choices = ("verify.expect=Paris", "verify.check_inputs=false", *SHORT)
    with pytest.raises(DisprovedError, match=r"the plan is disproved: meaning$") as caught:
        verified(tmp_path, f"checkpoint={directory}", *choices)
    (finding,) = caught.value.findings
    assert finding.code == "verify.meaning"
    assert "gives 'sorry.', not what verify.expect=Paris says" in finding.message
    checks = {check["name"]: check["passed"] for check in json.loads((tmp_path / "verify.json").read_text())["checks"]}
    assert [name for name, passed in checks.items() if not passed] == ["meaning"]
    assert {"prefill_logits", "decode_logits", "tokens"} < set(checks)


def test_an_unsound_input_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    directory = damaged(trained("e2b"), "no-template", tmp_path / "wrong")
    with pytest.raises(UserError, match="no chat template"):
        verified(tmp_path, f"checkpoint={directory}", "verify.expect=Paris", *SHORT)
    assert not (tmp_path / "verify.json").exists()


@pytest.mark.parametrize(
    "overrides,message",
    [
        pytest.param(
            ["model=e2b", "verify.expect=Paris"],
            "a tiny twin's weights are random, so its text means nothing",
            id="twin",
        ),
        pytest.param(
            [f"checkpoint={trained('12b')}", "verify.expect=Paris", "verify.layers=6"],
            "verify.expect=Paris is never read with verify.layers=6",
            id="layers",
        ),
        pytest.param(
            [f"checkpoint={trained('12b')}", "verify.expect=Paris", "verify.inject=all"],
            "verify.expect=Paris is never read with verify.inject=all",
            id="inject",
        ),
        pytest.param(
            ["model=e2b", "verify.check_inputs=false"],
            "verify.check_inputs is never read without verify.expect",
            id="checks-of-nothing",
        ),
        pytest.param(
            [
                f"checkpoint={trained('12b')}",
                "verify.expect=Paris",
                "shapes.kv_length=20",
                "shapes.prefill_buckets=[8]",
            ],
            r"verify.expect: 20 of the prompt \+ 1 new = 21 tokens, shapes.kv_length=20",
            id="too-short-a-context",
        ),
    ],
)
def test_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        verified(tmp_path, *overrides)
