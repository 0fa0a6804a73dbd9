"""``verify.expect``: a plan that equals its reference, and whose text is nonsense, is disproved."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError, DisprovedError, UserError
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.tasks import verify
from gemma4cfg.verify import proof
from gemma4cfg.verify.proof import judge
from tests.trained import trained
from tests.trained.damage import damaged
from tests.trained.sizes import E2B_BY_KEYS
from tests.verify.breaking import broken

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


def test_equal_to_the_reference_and_nonsense_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only check that fails is the text's, and without it nothing would."""
    judged: list[tuple[Any, ...]] = []
    monkeypatch.setattr(proof, "judge", lambda *given: judged.append(given) or judge(*given))
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
    (given,) = judged
    with broken("meaning"):
        assert judge(*given).holds


def test_a_softcap_applied_twice_is_disproved_though_the_text_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in the graph, and once more by the host."""
    made = RankModule._head
    monkeypatch.setattr(RankModule, "_head", lambda module, hidden: torch.tanh(made(module, hidden) / 30) * 30)
    with pytest.raises(DisprovedError, match=r"the plan is disproved: prefill_logits, decode_logits$"):
        verified(tmp_path, f"checkpoint={trained('e2b')}", "verify.expect=Paris", *SHORT)
    checks = {check["name"]: check for check in json.loads((tmp_path / "verify.json").read_text())["checks"]}
    assert checks["meaning"]["detail"] == "'What is the capital of France?' gives 'Paris.'"


@pytest.mark.parametrize(
    "wrong,choices,reason",
    [
        pytest.param("no-template", (), "no chat template", id="no-template"),
        pytest.param(
            "literal-turn-markers",
            (),
            r"<\|turn> is read as literal text, 4 ids .*, not as one id",
            id="literal-markers",
        ),
        pytest.param("two-bos", (), "and not with one <bos>", id="two-bos"),
        pytest.param(
            None,
            (*E2B_BY_KEYS, "model.embedding_scale=1.0"),
            "token embeddings are multiplied by 1.0, and .* 32, 5.65625; leave model.embedding_scale out",
            id="embedding-scale",
        ),
    ],
)
def test_an_unsound_input_is_refused_before_anything_is_run(
    wrong: str | None, choices: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    directory = damaged(trained("e2b"), wrong, tmp_path / "wrong") if wrong else trained("e2b")
    with pytest.raises(UserError, match=reason):
        verified(tmp_path, f"checkpoint={directory}", "verify.expect=Paris", *choices, *SHORT)
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
        pytest.param([f"checkpoint={trained('e2b')}", "verify.expect="], "verify.expect is blank", id="nothing"),
        pytest.param([f"checkpoint={trained('e2b')}", "verify.expect=' '"], "verify.expect is blank", id="blank"),
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
