"""From a checkpoint to rank files and back, on checkpoints small enough to compare element by element."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharding.engine
import sharding.feeds
import sharding.restore
import sharding.rows
from sharding import check, merge, reshard
from sharding.convert import converter
from sharding.dtypes import DTYPES, dtype_bits
from sharding.errors import NoSpaceError, ShardingError
from sharding.headers import read_header
from sharding.manifest import read_manifest
from sharding.placement import Cut, Placement, Range, Whole, Zeros, cut_evenly, cut_units
from tests.sharding.synthetic import cut_plainly, data_of, device, read_tensors, write_parts, write_tensors

HOST = "host_tables.safetensors"


def rank_file(directory: Path, rank: int) -> Path:
    return directory / f"tp{rank}_sharded_checkpoint.safetensors"


def ranks_of(directory: Path, tp: int) -> list[dict[str, tuple[tuple[int, ...], str, bytes]]]:
    return [read_tensors(rank_file(directory, rank)) for rank in range(tp)]


def placed(**tensors: dict[str, Any]) -> dict[str, Any]:
    return {"tensors": tensors, "rank_tensors": {}}


PLACEMENTS: dict[str, tuple[tuple[int, ...], Placement]] = {
    "whole": ((3, 5), Whole()),
    "scalar": ((), Whole()),
    "dim0": ((8, 6), cut_evenly(0, 8, 4)),
    "dim1": ((6, 8), cut_evenly(1, 8, 4)),
    "dim2": ((4, 6, 12), cut_evenly(2, 12, 4)),
    "packed": ((4, 16, 6), cut_evenly(1, 16, 4, parts=2)),
    "padded": ((10, 6), cut_evenly(0, 10, 4)),
    "padded_rows": ((5, 10), cut_evenly(1, 10, 4)),
    "zeros_first": ((4, 6), cut_units(1, 2, [(None, 0), (None, 1), (2, None), (None, 2)])),
    "zeros_only": ((2, 4), Cut(1, ((Range(0, 4),), (Zeros(4),), (Zeros(4),), (Zeros(4),)))),
    "grouped": ((4, 6), cut_units(0, 2, [(0,), (0,), (1,), (1,)])),
    "backwards": ((8, 3), Cut(0, tuple((Range(2 * r + 1, 2 * r + 2), Range(2 * r, 2 * r + 1)) for r in range(4)))),
    "shuffled_columns": ((3, 8), cut_units(1, 2, [(3,), (1,), (0,), (2,)])),
    "overlapping": ((8, 2), Cut(0, ((Range(0, 5),), (Range(3, 8),), (Range(0, 5),), (Range(1, 6),)))),
    "empty": ((0, 4), cut_evenly(1, 4, 4)),
    "no_columns": ((4, 0), cut_evenly(0, 4, 4)),
}


@pytest.mark.parametrize("width", [1, 2, 8], ids=["U8", "BF16", "I64"])
@pytest.mark.parametrize("block", [8, 48, 2**23], ids=lambda size: f"block{size}")
@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_rank_holds_its_pieces(tmp_path, monkeypatch, name, block, width):
    monkeypatch.setattr(sharding.rows, "BLOCK_BYTES", block)
    monkeypatch.setattr(sharding.engine, "BLOCK_BYTES", block)
    monkeypatch.setattr(sharding.restore, "BLOCK_BYTES", block)
    dtype = {1: "U8", 2: "BF16", 8: "I64"}[width]
    shape, placement = PLACEMENTS[name]
    source = write_parts(tmp_path / "in", [{"x": (shape, dtype)}])

    reshard(placed(x=device(shape, placement, dtype)), 4, source, tmp_path / "out")

    for rank, tensors in enumerate(ranks_of(tmp_path / "out", 4)):
        expected = cut_plainly(data_of("x", shape, dtype), shape, width, placement, rank)
        assert tensors == {"x": (placement.local_shape(shape), dtype, expected)}
    merge(tmp_path / "out", tmp_path / "back")
    assert read_tensors(tmp_path / "back" / "model.safetensors") == read_tensors(source / "model.safetensors")
    assert check(tmp_path / "out", source) == ()


def test_long_runs_are_moved_as_they_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(sharding.rows, "RUN_BYTES", 8)
    shape, placement = (5, 16, 4), cut_evenly(1, 16, 4, parts=2)
    assert sharding.rows.rows_of(placement, shape, "BF16", 4).contiguous
    source = write_parts(tmp_path / "in", [{"x": (shape, "BF16")}])

    result = reshard(placed(x=device(shape, placement)), 4, source, tmp_path / "out")

    assert result.bytes_read == 5 * 16 * 4 * 2
    for rank, tensors in enumerate(ranks_of(tmp_path / "out", 4)):
        assert tensors["x"][2] == cut_plainly(data_of("x", shape, "BF16"), shape, 2, placement, rank)
    merge(tmp_path / "out", tmp_path / "back")
    assert read_tensors(tmp_path / "back" / "model.safetensors") == read_tensors(source / "model.safetensors")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path, dtype, dim):
    shape = (8, 8)
    source = write_parts(tmp_path / "in", [{"x": (shape, dtype)}])

    reshard(placed(x=device(shape, cut_evenly(dim, 8, 2), dtype)), 2, source, tmp_path / "out")

    first, second = ranks_of(tmp_path / "out", 2)
    assert first["x"][:2] == ((4, 8) if dim == 0 else (8, 4), dtype)
    rows = 1 if dim == 0 else 8
    size = 8 * dtype_bits(dtype) // rows
    halves = (np.frombuffer(tensors["x"][2], np.uint8).reshape(rows, size // 2) for tensors in (first, second))
    assert np.concatenate(list(halves), 1).tobytes() == data_of("x", shape, dtype)
    merge(tmp_path / "out", tmp_path / "back")
    assert read_tensors(tmp_path / "back" / "model.safetensors") == read_tensors(source / "model.safetensors")


def test_a_cut_through_a_byte_is_refused(tmp_path):
    source = write_parts(tmp_path / "in", [{"x": ((2, 3), "F4")}])
    with pytest.raises(ShardingError, match=r"'x'.*cuts through a byte"):
        reshard(placed(x=device((2, 3), cut_evenly(1, 3, 3), "F4")), 3, source, tmp_path / "out")


MODEL = {
    "model.embed.weight": ((16, 4), "BF16"),
    "model.layers.0.up": ((8, 4), "BF16"),
    "model.layers.0.down": ((4, 8), "F32"),
    "model.layers.0.scalar": ((1,), "BF16"),
    "model.layers.0.borrowed": ((2, 4), "BF16"),
    "tower.weight": ((3,), "F16"),
}


def model_placements() -> dict[str, Any]:
    prefix = "model.language_model."
    host = {"shape": [16, 4], "dtype": "bfloat16", "home": "host", "status": "required", "placement": None}
    unused = {"shape": [2, 4], "dtype": "bfloat16", "home": "unused", "status": "optional", "placement": None}
    head = device((16, 4), cut_evenly(0, 16, 2), "bfloat16", "lm_head.weight")
    return {
        "tensors": {
            "lm_head.weight": head | {"status": "tied", "source": prefix + "embed.weight"},
            prefix + "embed.weight": host,
            prefix + "layers.0.up": device((8, 4), cut_evenly(0, 8, 2), "bfloat16", "layers.0.up"),
            prefix + "layers.0.down": device((4, 8), cut_evenly(1, 8, 2), "float32", "layers.0.down"),
            prefix + "layers.0.scalar": device((1,), Whole(), "bfloat16", "layers.0.scalar"),
            prefix + "layers.0.borrowed": unused,
            prefix + "layers.1.borrowed": unused,
        },
        "rank_tensors": {"layers.0.ids": {"dtype": "int32", "values": [[0, 1], [2, 3]]}},
    }


NAMES = {"model.": "model.language_model."}


@pytest.mark.parametrize("parts", [1, 3])
def test_a_model(tmp_path, parts):
    names = sorted(MODEL)
    contents = [{name: MODEL[name] for name in names[part::parts]} for part in range(parts)]
    source = write_parts(tmp_path / "in", contents)

    result = reshard(model_placements(), 2, source, tmp_path / "out", names=NAMES, digests=True)

    embedding, up = (data_of(f"model.{name}", *MODEL[f"model.{name}"]) for name in ("embed.weight", "layers.0.up"))
    assert read_tensors(tmp_path / "out" / HOST) == {"model.language_model.embed.weight": ((16, 4), "BF16", embedding)}
    for rank, tensors in enumerate(ranks_of(tmp_path / "out", 2)):
        assert sorted(tensors) == sorted(
            ["layers.0.down", "layers.0.ids", "layers.0.scalar", "layers.0.up", "lm_head.weight"]
        )
        assert tensors["lm_head.weight"] == ((8, 4), "BF16", embedding[64 * rank : 64 * rank + 64])
        assert tensors["layers.0.up"] == ((4, 4), "BF16", up[32 * rank : 32 * rank + 32])
        assert tensors["layers.0.ids"] == ((2,), "I32", np.array([2 * rank, 2 * rank + 1], np.int32).tobytes())
    kept = {name for name in MODEL if name not in ("tower.weight", "model.layers.0.borrowed")}
    assert result.bytes_read == sum(len(data_of(name, *MODEL[name])) for name in kept)
    assert check(tmp_path / "out", source) == ()
    merge(tmp_path / "out", tmp_path / "back")
    restored = {}
    for file in (tmp_path / "back").glob("*.safetensors"):
        restored |= read_tensors(file)
    assert restored == {name: (*MODEL[name], data_of(name, *MODEL[name])) for name in kept}


def test_files_of_a_run(tmp_path):
    source = write_parts(tmp_path / "in", [MODEL])
    result = reshard(model_placements(), 2, source, tmp_path / "out", names=NAMES, placement_id="the plan's")

    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [".reshard", HOST, "manifest.json", *(rank_file(tmp_path, rank).name for rank in range(2))]
    header = read_header(rank_file(tmp_path / "out", 0))
    assert header.metadata["placement_id"] == "the plan's"
    assert header.metadata["job_id"] == result.job_id
    assert header.data_offset % 8 == 0
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest.placement_id == "the plan's"
    assert {name: file.size for name, file in manifest.files.items()} == {
        file.name: (tmp_path / "out" / file.name).stat().st_size for file in result.files
    }
    assert all(not file.tensors for file in manifest.files.values())


def test_digests_are_stated_on_request(tmp_path):
    from xxhash import xxh3_128_hexdigest

    source = write_parts(tmp_path / "in", [MODEL])
    reshard(model_placements(), 2, source, tmp_path / "out", names=NAMES, digests=True)

    for name, file in read_manifest(str(tmp_path / "out")).files.items():
        stored = read_tensors(tmp_path / "out" / name)
        assert file.tensors == {key: xxh3_128_hexdigest(data) for key, (_, _, data) in stored.items()}


def test_safetensors_reads_the_files(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    values = torch.arange(32, dtype=torch.float32).reshape(8, 4).bfloat16()
    data = values.view(torch.int16).numpy().tobytes()
    (tmp_path / "in").mkdir()
    write_tensors(tmp_path / "in" / "model.safetensors", {"odd": ((1,), "U8", b"x"), "x": ((8, 4), "BF16", data)})
    placements = placed(odd=device((1,), Whole(), "U8"), x=device((8, 4), cut_evenly(1, 4, 2)))

    reshard(placements, 2, tmp_path / "in", tmp_path / "out", dtype="float32")

    loaded = load_file(rank_file(tmp_path / "out", 1))
    assert torch.equal(loaded["x"], values[:, 2:].float())


CONVERSIONS = [(a, b) for a, b in itertools.permutations(("BF16", "F16", "F32", "F64"), 2) if b != "F64"]


@pytest.mark.parametrize(("source", "target"), CONVERSIONS, ids=lambda name: name)
def test_conversion_equals_torch(source, target):
    torch = pytest.importorskip("torch")
    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
    generator = np.random.default_rng(0)
    if dtype_bits(source) == 16:
        data = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    else:
        wide = np.concatenate(
            [
                generator.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32),
                np.array([0, -0.0, np.inf, -np.inf, 65504, 65519.99, 65520, 3.4e38, 1e-45, 6e-8], np.float32),
                np.arange(2**16, dtype=np.uint32).view(np.float32),
                ((np.arange(2**12, dtype=np.uint32) << 16) | 0x3F808000).view(np.float32),
            ]
        )
        data = (wide if source == "F32" else np.float64(wide.tolist())).view(np.uint8)
    values = torch.frombuffer(bytearray(data.tobytes()), dtype=types[source])
    expected = values.to(types[target])

    convert = converter(source, target)
    assert convert is not None
    found = torch.frombuffer(bytearray(b"".join(chunk.tobytes() for chunk in convert(data))), dtype=types[target])

    numbers = ~expected.isnan()
    assert torch.equal(found.isnan(), expected.isnan())
    integers = torch.int16 if dtype_bits(target) == 16 else torch.int32
    assert torch.equal(found.view(integers)[numbers], expected.view(integers)[numbers])


@pytest.mark.parametrize("name", PLACEMENTS)
def test_widened_tensors_are_restored_exactly(tmp_path, name):
    shape, placement = PLACEMENTS[name]
    source = write_parts(tmp_path / "in", [{"x": (shape, "BF16"), "ids": ((2,), "I32")}])
    placements = placed(x=device(shape, placement), ids=device((2,), Whole(), "I32"))

    reshard(placements, 4, source, tmp_path / "out", dtype="float32")

    for rank, tensors in enumerate(ranks_of(tmp_path / "out", 4)):
        narrow = cut_plainly(data_of("x", shape, "BF16"), shape, 2, placement, rank)
        wide = (np.frombuffer(narrow, np.uint16).astype(np.uint32) << 16).tobytes()
        assert tensors["x"] == (placement.local_shape(shape), "F32", wide)
        assert tensors["ids"][1] == "I32"
    merge(tmp_path / "out", tmp_path / "back")
    assert read_tensors(tmp_path / "back" / "model.safetensors") == read_tensors(source / "model.safetensors")
    assert check(tmp_path / "out", source) == ()


def test_host_tables_keep_their_dtype(tmp_path):
    source = write_parts(tmp_path / "in", [MODEL])
    reshard(model_placements(), 2, source, tmp_path / "out", dtype="float16", names=NAMES)

    (table,) = read_tensors(tmp_path / "out" / HOST).values()
    assert table[1] == "BF16"
    assert read_tensors(rank_file(tmp_path / "out", 0))["lm_head.weight"][1] == "F16"


X = device((4, 4), cut_evenly(0, 4, 2))
REFUSALS = {
    "missing": (placed(y=X), 2, "1 needed tensors are missing: 'y'"),
    "missing_tied_source": (placed(h=X | {"status": "tied", "source": "e"}), 2, r"'e' \(for 'h'\)"),
    "shape": (placed(x=device((4, 2), Whole())), 2, r"'x': its shape in model.safetensors is \[4, 4\]"),
    "dtype": (placed(x=device((4, 4), Whole(), "F32")), 2, "'x': it is bfloat16 in model.safetensors"),
    "ranks": (placed(x=X), 4, "'x': it is placed on 2 ranks, not on 4"),
    "dimension": (placed(x=device((4, 4), Cut(2, ((Range(0, 4),),)))), 1, "'x': it is cut on dimension 2"),
    "range": (placed(x=device((4, 4), Cut(0, ((Range(0, 5),),)))), 1, r"'x': \[0, 5\] is outside a dimension of 4"),
    "name_twice": (
        placed(x=X | {"local_name": "a"}, z=device((1,), Whole(), "F8_E4M3", "a")),
        2,
        "two tensors are called 'a'",
    ),
    "rank_tensor_ranks": (
        {"tensors": {"x": X}, "rank_tensors": {"ids": {"dtype": "int32", "values": [[0]]}}},
        2,
        "'ids' has values for 1 ranks, not for 2",
    ),
    "rank_tensor_values": (
        {"tensors": {"x": X}, "rank_tensors": {"ids": {"dtype": "int32", "values": [[2**40], [0]]}}},
        2,
        "'ids': not int32",
    ),
    "no_ranks": (placed(x=X), 0, "tp=0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_before_any_output(tmp_path, name):
    placements, tp, message = REFUSALS[name]
    source = write_parts(tmp_path / "in", [{"x": ((4, 4), "BF16"), "z": ((1,), "F8_E4M3")}])
    with pytest.raises(ShardingError, match=message):
        reshard(placements, tp, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scaled_types_are_not_converted(tmp_path):
    source = write_parts(tmp_path / "in", [{"x": ((4,), "F8_E4M3")}])
    with pytest.raises(ShardingError, match="'x': float8_e4m3fn is not converted to bfloat16"):
        reshard(placed(x=device((4,), Whole(), "F8_E4M3")), 2, source, tmp_path / "out", dtype="bfloat16")


def test_a_name_stored_twice_is_refused(tmp_path):
    source = write_parts(tmp_path / "in", [{"a.x": ((4,), "U8"), "b.x": ((4,), "U8")}])
    with pytest.raises(ShardingError, match=r"'x' is stored twice: as 'a.x' .* and as 'b.x'"):
        reshard(placed(x=device((4,), Whole(), "U8")), 1, source, tmp_path / "out", names={"a.": "", "b.": ""})


def test_a_disk_too_small_is_noticed_first(tmp_path):
    shape = (2**40, 2**10)
    source = tmp_path / "in"
    source.mkdir()
    write_tensors(source / "model.safetensors", {"x": ((4,), "U8", b"abcd")})
    huge = {"ids": {"dtype": "int32", "values": [[0]]}}
    placements = {"tensors": {"x": device((4,), Cut(0, ((Range(0, 4), Zeros(shape[0])),)), "U8")}, "rank_tensors": huge}
    with pytest.raises(NoSpaceError, match="bytes are needed"):
        reshard(placements, 1, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_merge_refuses_what_is_not_whole(tmp_path):
    source = write_parts(tmp_path / "in", [{"x": ((4, 4), "U8")}])
    partial = device((4, 4), Cut(0, ((Range(0, 1),), (Range(2, 3),))), "U8")
    reshard(placed(x=partial), 2, source, tmp_path / "out")
    with pytest.raises(ShardingError, match="'x': no rank holds byte 4"):
        merge(tmp_path / "out", tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


def test_merge_refuses_a_flipped_bit_and_an_occupied_destination(tmp_path):
    source = write_parts(tmp_path / "in", [{"x": ((4, 4), "U8")}])
    reshard(placed(x=device((4, 4), cut_evenly(0, 4, 2), "U8")), 2, source, tmp_path / "out")
    with pytest.raises(ShardingError, match="is there already"):
        merge(tmp_path / "out", source)
    data = bytearray(rank_file(tmp_path / "out", 1).read_bytes())
    data[-1] ^= 1
    rank_file(tmp_path / "out", 1).write_bytes(data)
    with pytest.raises(ShardingError, match=r"tp1_sharded_checkpoint\.safetensors: its checksum"):
        merge(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()
