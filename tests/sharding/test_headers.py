"""Every way in which a safetensors header can be wrong, and a good one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharding.dtypes import DTYPES, dtype_name, tensor_bytes
from sharding.errors import ShardingError
from sharding.files import FormatError, MissingFileError, file_names
from sharding.headers import TensorEntry, TruncatedError, checkpoint_parts, read_bytes, read_header


def write(path: Path, header: Any, data: int = 0, length: int | None = None) -> Path:
    """A file of a header (an object, or raw bytes) and ``data`` zero bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data))
    return path


def tensor(dtype: str = "BF16", shape: Any = (2, 3), offsets: Any = (0, 12)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_good_file(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": tensor("F32", [2], [12, 20]),
        "a": tensor(),
        "empty": tensor("I8", [0], [12, 12]),
    }
    found = read_header(write(tmp_path / "model.safetensors", header, 20))
    assert found.metadata == {"format": "pt"}
    assert found.tensors == {
        "a": TensorEntry("BF16", (2, 3), 0, 12),
        "b": TensorEntry("F32", (2,), 12, 20),
        "empty": TensorEntry("I8", (0,), 12, 12),
    }
    assert found.file_size == found.data_offset + 20
    assert found.span("b") == (found.data_offset + 12, found.data_offset + 20)
    assert len(found.digest) == 64


def test_scalar_and_no_tensors(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "a", {"s": tensor("F32", [], [0, 4])}, 4)).tensors["s"].shape == ()
    assert read_header(write(tmp_path / "b", {})).tensors == {}


def test_padded_header(tmp_path: Path) -> None:
    assert "a" in read_header(write(tmp_path / "a", json.dumps({"a": tensor()}).encode() + b"     ", 12)).tensors


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        pytest.param(b"{oops", 0, "not valid JSON", id="not-json"),
        pytest.param(b"\xff\xfe{}", 0, "not valid JSON", id="not-utf8"),
        pytest.param(b"[" * 100_000, 0, "not valid JSON", id="nested-too-deep"),
        pytest.param(b"[1, 2]", 0, "not an object", id="not-an-object"),
        pytest.param(b'{"a": 1, "a": 2}', 0, "'a' is defined twice", id="duplicate-tensor"),
        pytest.param(b'{"a": {"dtype": "I8", "dtype": "U8"}}', 0, "'dtype' is defined twice", id="duplicate-field"),
        pytest.param({"__metadata__": {"n": 1}}, 0, "__metadata__", id="metadata-not-text"),
        pytest.param({"a": 5}, 0, "tensor 'a' lacks", id="entry-not-an-object"),
        pytest.param({"a": {"dtype": "F32", "shape": []}}, 0, "lacks dtype, shape or data_offsets", id="no-offsets"),
        pytest.param({"a": tensor("BF17")}, 12, "unknown dtype 'BF17'", id="unknown-dtype"),
        pytest.param({"a": tensor(shape=[2, -3])}, 12, "not a list of whole numbers", id="negative-dim"),
        pytest.param({"a": tensor(shape=[2, 3.0])}, 12, "not a list of whole numbers", id="fractional-dim"),
        pytest.param({"a": tensor(shape=[True, 6])}, 12, "not a list of whole numbers", id="boolean-dim"),
        pytest.param({"a": tensor(shape=6)}, 12, "not a list of whole numbers", id="shape-not-a-list"),
        pytest.param({"a": tensor(offsets=[12, 0])}, 12, "not [start, stop]", id="offsets-backwards"),
        pytest.param({"a": tensor(offsets=[0, 6, 12])}, 12, "not [start, stop]", id="three-offsets"),
        pytest.param(
            {"a": tensor(offsets=[0, 10])}, 10, "is 12 bytes, its offsets span 10", id="shape-against-offsets"
        ),
        pytest.param({"a": tensor(), "b": tensor(offsets=[6, 18])}, 18, "tensor 'b' starts at 6", id="overlap"),
        pytest.param({"a": tensor(offsets=[4, 16])}, 16, "4 bytes before tensor 'a'", id="hole-at-start"),
        pytest.param({"a": tensor(), "b": tensor(offsets=[13, 25])}, 25, "1 bytes before tensor 'b'", id="hole"),
        pytest.param({"a": tensor("F4", [3], [0, 2])}, 2, "not a whole number of bytes", id="half-a-byte"),
        pytest.param({"a": tensor()}, 13, "1 bytes after the last tensor", id="trailing-bytes"),
    ],
)
def test_malformed(tmp_path: Path, header: Any, data: int, says: str) -> None:
    path = write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(FormatError) as error:
        read_header(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "0 bytes is too short", id="empty"),
        pytest.param(b"1234567", "7 bytes is too short", id="seven-bytes"),
        pytest.param((2**63).to_bytes(8, "little"), "over the limit", id="huge-header"),
        pytest.param((100_000_001).to_bytes(8, "little"), "over the limit", id="header-over-limit"),
        pytest.param((50).to_bytes(8, "little") + b"{}", "truncated inside its header: 10 of 58", id="header-past-end"),
    ],
)
def test_bad_length(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match=says):
        read_header(tmp_path / "model.safetensors")


def test_truncated_keeps_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"a": tensor()}, 5)
    with pytest.raises(TruncatedError, match=r"truncated: \d+ of \d+ bytes") as error:
        read_header(path)
    assert error.value.header.tensors["a"].shape == (2, 3)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        read_header(tmp_path / "absent")
    with pytest.raises(MissingFileError, match="no such directory"):
        file_names(tmp_path / "absent")


def test_agrees_with_the_library(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    dtypes = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool,
              "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "C64": torch.complex64}  # fmt: skip
    tensors = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in dtypes.items()}
    path = tmp_path / "model.safetensors"
    library.save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    assert set(header.tensors) == set(tensors)
    for name, value in tensors.items():
        entry = header.tensors[name]
        assert (entry.dtype, entry.shape) == (name, (2, 3))
        assert f"torch.{dtype_name(entry.dtype)}" == str(value.dtype)
        assert read_bytes(path, *header.span(name)) == value.view(torch.uint8).numpy().tobytes()


def test_url_and_path_read_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"a": tensor()}, 12)
    assert read_header(f"file://{path}") == read_header(path)
    assert read_bytes(f"file://{path}", 0, 8) == path.read_bytes()[:8]
    assert checkpoint_parts(f"file://{tmp_path}") == checkpoint_parts(tmp_path)
    with pytest.raises(MissingFileError):
        read_header(f"file://{tmp_path}/absent")
    with pytest.raises(ShardingError, match="nosuchscheme"):
        read_header("nosuchscheme://bucket/model.safetensors")


def test_local_paths_load_no_fsspec(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"a": tensor()}, 12)
    code = f"import sys; from sharding.headers import read_header; read_header({str(path)!r}); print('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_read_past_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 1, 3) == b"23"
    assert read_bytes(f"file://{tmp_path}/a", 2, 2) == b""
    with pytest.raises(ShardingError, match="the file has 5"):
        read_bytes(tmp_path / "a", 3, 9)


@pytest.mark.parametrize(("dtype", "bits"), [(name, bits) for name, (bits, _) in DTYPES.items()], ids=list(DTYPES))
def test_sizes(dtype: str, bits: int) -> None:
    assert tensor_bytes(dtype, (4, 2)) == bits


def test_unknown_dtype_name() -> None:
    with pytest.raises(FormatError, match="unknown dtype"):
        dtype_name("Q4")


def test_single_file_wins_over_an_index(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert checkpoint_parts(tmp_path).names == ("model.safetensors",)


def test_any_single_file(tmp_path: Path) -> None:
    write(tmp_path / "weights.safetensors", {})
    assert checkpoint_parts(tmp_path).names == ("weights.safetensors",)
    write(tmp_path / "more.safetensors", {})
    with pytest.raises(ShardingError, match="2 safetensors files"):
        checkpoint_parts(tmp_path)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no model\.safetensors"):
        checkpoint_parts(tmp_path)


@pytest.mark.parametrize(("total", "read"), [(24, 24), (24.0, 24), (None, None), ("24", None), (True, None)])
def test_index(tmp_path: Path, total: Any, read: int | None) -> None:
    index = {"metadata": {"total_size": total}, "weight_map": {"a": "two.safetensors", "b": "sub/one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    parts = checkpoint_parts(tmp_path)
    assert parts.names == ("sub/one.safetensors", "two.safetensors")
    assert parts.index is not None
    assert parts.index.total_size == read


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("{", "not valid JSON", id="not-json"),
        pytest.param('{"metadata": {}}', "no weight_map", id="no-weight-map"),
        pytest.param('{"weight_map": {}}', "no weight_map", id="empty-weight-map"),
        pytest.param('{"weight_map": {"a": 1}}', "outside this directory", id="part-not-text"),
        pytest.param('{"weight_map": {"a": "x", "a": "y"}}', "'a' is defined twice", id="tensor-twice"),
        *(
            pytest.param(json.dumps({"weight_map": {"a": part}}), "outside this directory", id=f"part={part}")
            for part in (
                "/etc/passwd",
                "../x.safetensors",
                "a/../../x",
                "",
                ".",
                "a//b",
                "C:\\x",
                "s3://b/x",
                "a\\..\\b",
            )
        ),
    ],
)
def test_bad_index(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(FormatError, match=says):
        checkpoint_parts(tmp_path)
