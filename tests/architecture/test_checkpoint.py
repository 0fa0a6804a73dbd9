"""Reading a checkpoint directory, whole and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg.architecture.audit import audit
from gemma4cfg.architecture.checkpoint import Checkpoint, read_checkpoint
from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.errors import ConfigError
from sharding.headers import read_header
from tests.checkpoints import MODELS, Tensors, published_config, published_tensors, write_checkpoint

EMBEDDING = "model.language_model.embed_tokens.weight"
SMALL: Tensors = {EMBEDDING: ((64, 8), "BF16"), "model.language_model.norm.weight": ((8,), "BF16")}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def problems(checkpoint: Checkpoint) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.code, problem.message) for problem in checkpoint.problems]


def one_problem(directory: Path) -> tuple[str, str, str]:
    (problem,) = problems(read_checkpoint(str(directory)))
    return problem


def edit_index(directory: Path, **changes: Any) -> None:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("model", MODELS)
def test_published_checkpoint(model: str, tmp_path: Path) -> None:
    """Sixty gigabytes of sparse files: everything is known from the headers."""
    pytest.importorskip("transformers")
    tensors = published_tensors(model)
    checkpoint = read_checkpoint(str(write_checkpoint(tmp_path, published_config(model), tensors, parts=2)))
    assert checkpoint.problems == ()
    assert checkpoint.config == published_config(model)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == {n: v[0] for n, v in tensors.items()}
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"bfloat16"}
    assert checkpoint.head_equals_embedding is None
    found = audit(architecture_from_config(checkpoint.config), checkpoint)
    assert [finding.severity for finding in found.findings if finding.severity != "info"] == []


def test_url_reads_alike(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, SMALL, parts=2)
    there, here = read_checkpoint(f"file://{tmp_path}"), read_checkpoint(str(tmp_path))
    assert (there.tensors, there.header_hash, there.problems) == (here.tensors, here.header_hash, here.problems)


def test_header_hash_is_of_the_headers_alone(tmp_path: Path) -> None:
    plain = read_checkpoint(str(write_checkpoint(tmp_path / "a", {}, SMALL)))
    filled = read_checkpoint(str(write_checkpoint(tmp_path / "b", {"x": 1}, SMALL, real_bytes=True)))
    other = read_checkpoint(str(write_checkpoint(tmp_path / "c", {}, {**SMALL, "more": ((1,), "F32")})))
    assert plain.header_hash == filled.header_hash != other.header_hash


def test_part_missing(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, {}, SMALL, parts=2) / SECOND).unlink()
    assert one_problem(tmp_path) == (
        "error",
        "checkpoint_part_missing",
        f"{SECOND} is absent: 1 tensor, 16 bytes (model.language_model.norm.weight)",
    )


def test_part_truncated(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {}, SMALL) / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 6)
    assert one_problem(tmp_path) == (
        "error",
        "checkpoint_part_truncated",
        f"model.safetensors is truncated: {size - 6:,} of {size:,} bytes; 1 tensor incomplete "
        "(model.language_model.norm.weight), 6 bytes lacking",
    )
    assert set(read_checkpoint(str(tmp_path)).tensors) == set(SMALL)


def test_header_invalid(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {}, SMALL, parts=2) / FIRST
    path.write_bytes(b"<html>404</html>")
    severity, code, message = one_problem(tmp_path)
    assert (severity, code) == ("error", "checkpoint_header_invalid")
    assert FIRST in message
    assert f"1 tensor, 1,024 bytes ({EMBEDDING})" in message


def test_index_names_a_tensor_that_no_part_has(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, SMALL, parts=2)
    edit_index(tmp_path, weight_map={EMBEDDING: FIRST, "model.language_model.norm.weight": SECOND, "ghost": SECOND})
    assert one_problem(tmp_path) == (
        "error",
        "checkpoint_index_disagrees",
        f"{SECOND} lacks 1 tensor the index puts there (ghost)",
    )


def test_index_puts_a_tensor_in_another_part(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {**SMALL, "a": ((1,), "F32"), "b": ((1,), "F32")}, parts=2)
    weight_map = {EMBEDDING: SECOND, "model.language_model.norm.weight": FIRST, "a": SECOND, "b": SECOND}
    edit_index(tmp_path, weight_map=weight_map)
    severity, code, message = one_problem(tmp_path)
    assert (severity, code) == ("error", "checkpoint_index_disagrees")
    assert message == f"the index puts 1 tensor in {SECOND}, stored in {FIRST} ({EMBEDDING})"


def test_tensor_in_two_parts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, SMALL, parts=2)
    (tmp_path / SECOND).write_bytes((tmp_path / FIRST).read_bytes())
    edit_index(tmp_path, weight_map={EMBEDDING: FIRST, "norm": SECOND})
    codes = {
        (severity, message.partition(" (")[0]) for severity, _, message in problems(read_checkpoint(str(tmp_path)))
    }
    assert ("error", f"1 tensor stored in two parts, {FIRST} and {SECOND}") in codes


def test_index_leaves_a_tensor_out(tmp_path: Path) -> None:
    tensors = {**SMALL, "a": ((1,), "F32"), "b": ((1,), "F32")}
    write_checkpoint(tmp_path, {}, tensors, parts=2)
    edit_index(tmp_path, weight_map={EMBEDDING: FIRST, "model.language_model.norm.weight": FIRST, "a": SECOND})
    severity, code, message = one_problem(tmp_path)
    assert (severity, code, message) == (
        "warning",
        "checkpoint_index_incomplete",
        "1 stored tensor not named by the index (b)",
    )


def test_total_size_differs(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, SMALL, parts=2)
    edit_index(tmp_path, metadata={"total_size": 2080})
    assert one_problem(tmp_path) == (
        "warning",
        "checkpoint_total_size_differs",
        "the index says total_size=2,080 bytes, the headers hold 1,040",
    )


def test_an_absent_part_is_not_reported_tensor_by_tensor(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = published_config("e2b")
    (write_checkpoint(tmp_path, config, published_tensors("e2b"), parts=2) / SECOND).unlink()
    found = audit(architecture_from_config(config), read_checkpoint(str(tmp_path)))
    assert [finding.code for finding in found.findings if finding.severity == "error"] == ["checkpoint_part_missing"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        pytest.param(None, r"no such directory; e\.g\. checkpoint=", id="no-directory"),
        pytest.param({}, r"config\.json: no such file", id="no-config"),
        pytest.param({"config.json": "{"}, r"config\.json: not valid JSON", id="config-not-json"),
        pytest.param({"config.json": "[]"}, r"config\.json: the JSON is not an object", id="config-not-an-object"),
        pytest.param({"config.json": '{"a": 1, "a": 2}'}, r"config\.json: 'a' is defined twice", id="config-twice"),
        pytest.param({"config.json": "{}"}, r"no \*\.safetensors; e\.g\. checkpoint=", id="no-safetensors"),
        pytest.param(
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "../b"}}'},
            "outside this directory",
            id="index-outside",
        ),
    ],
)
def test_unusable_location(tmp_path: Path, files: dict[str, str] | None, says: str) -> None:
    directory = tmp_path / "checkpoint"
    if files is not None:
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_text(content)
    with pytest.raises(ConfigError, match=says) as error:
        read_checkpoint(str(directory))
    assert str(directory) in str(error.value)


def write_head(tmp_path: Path, rows: int, columns: int, at: int | None = None) -> Path:
    """An embedding and a head of equal bytes, but for one byte of the head where ``at`` is given."""
    shape = (rows, columns)
    write_checkpoint(tmp_path, {}, {EMBEDDING: (shape, "BF16"), "lm_head.weight": (shape, "BF16")})
    if at is not None:
        path = tmp_path / "model.safetensors"
        start = read_header(path).span("lm_head.weight")[0]
        with path.open("r+b") as file:
            file.seek(start + at)
            file.write(b"\1")
    return tmp_path


@pytest.mark.parametrize("at", [None, 0, 1023], ids=["equal", "first-byte", "last-byte"])
def test_small_heads_are_compared_whole(tmp_path: Path, at: int | None) -> None:
    """Case 72."""
    checkpoint = read_checkpoint(str(write_head(tmp_path, 64, 8, at)))
    assert checkpoint.head_equals_embedding is (at is None)
    assert checkpoint.head_comparison == "all 1,024 bytes"


@pytest.mark.parametrize("at", [None, 0, 262144 * 2816 * 2 - 1], ids=["equal", "first-byte", "last-byte"])
def test_large_heads_are_sampled_at_both_ends(tmp_path: Path, at: int | None) -> None:
    """Case 72."""
    checkpoint = read_checkpoint(str(write_head(tmp_path, 262144, 2816, at)))
    assert checkpoint.head_equals_embedding is (at is None)
    assert checkpoint.head_comparison == "sampled 4.2 MB of 1,476,395,008 bytes"


def test_heads_of_another_shape_or_dtype_differ(tmp_path: Path) -> None:
    tensors: Tensors = {EMBEDDING: ((64, 8), "BF16"), "lm_head.weight": ((64, 8), "F16")}
    assert read_checkpoint(str(write_checkpoint(tmp_path, {}, tensors))).head_equals_embedding is False


def test_a_truncated_head_is_not_compared(tmp_path: Path) -> None:
    path = write_head(tmp_path, 64, 8) / "model.safetensors"
    os.truncate(path, path.stat().st_size - 8)
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.head_equals_embedding is None
    assert "not compared" in checkpoint.head_comparison
