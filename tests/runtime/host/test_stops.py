"""Stop ids: where they are stated, in which form, and what is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg.errors import UserError
from gemma4cfg.runtime.host.stops import stop_ids

PUBLISHED = {"eos_token_id": [1, 106, 50]}


def write(directory: Path, generation: Any, config: Any) -> str:
    for name, value in (("generation_config.json", generation), ("config.json", config)):
        if value is not None:
            (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return str(directory)


@pytest.mark.parametrize(
    "generation,config,tools,expected",
    [
        pytest.param(PUBLISHED, {"eos_token_id": 1}, False, {1, 106}, id="published"),
        pytest.param(PUBLISHED, {"eos_token_id": 1}, True, {1, 106, 50}, id="published-tools"),
        pytest.param({"eos_token_id": 1}, None, True, {1}, id="base-int"),
        pytest.param({"eos_token_id": 0}, None, False, {0}, id="zero-is-an-id"),
        pytest.param(None, {"eos_token_id": [1, 106]}, False, {1, 106}, id="config"),
        pytest.param({"temperature": 1.0}, {"eos_token_id": 7}, False, {7}, id="generation-without"),
        pytest.param({"eos_token_id": None}, {"eos_token_id": 7}, False, {7}, id="generation-null"),
        pytest.param(None, {"text_config": {"eos_token_id": [1, 50]}}, False, {1}, id="text-config"),
        pytest.param(
            None, {"eos_token_id": 106, "text_config": {"eos_token_id": 1}}, False, {106}, id="top-level-first"
        ),
    ],
)
def test_stated(generation: Any, config: Any, tools: bool, expected: set[int], tmp_path: Path) -> None:
    assert stop_ids(write(tmp_path, generation, config), tools) == expected


@pytest.mark.parametrize(
    "generation,config,file,message",
    [
        pytest.param(None, None, "generation_config.json", "no eos_token_id, and none in", id="no-files"),
        pytest.param({}, {"text_config": {}}, "generation_config.json", "no eos_token_id, and none in", id="nowhere"),
        pytest.param({"eos_token_id": []}, None, "generation_config.json", r"eos_token_id=\[\]", id="empty"),
        pytest.param({"eos_token_id": "1"}, None, "generation_config.json", "eos_token_id='1'", id="text"),
        pytest.param({"eos_token_id": [1, True]}, None, "generation_config.json", "expected a token id", id="bool"),
        pytest.param(None, {"eos_token_id": -1}, "config.json", "eos_token_id=-1", id="negative"),
        pytest.param({"eos_token_id": 50}, None, "generation_config.json", "tool response alone", id="tools-only"),
        pytest.param("{", {"eos_token_id": 1}, "generation_config.json", "not valid JSON", id="broken"),
        pytest.param("[]", {"eos_token_id": 1}, "generation_config.json", "not an object", id="no-object"),
    ],
)
def test_refused(generation: Any, config: Any, file: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        stop_ids(write(tmp_path, generation, config))
    assert str(caught.value).startswith(str(tmp_path / file))
