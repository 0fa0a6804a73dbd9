"""Random placements tile, pad and restore, whatever the block size; conversions against arithmetic on exact fractions."""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sharding import check, merge, reshard
from sharding.convert import converter
from sharding.dtypes import DTYPES, dtype_bits
from sharding.errors import ShardingError
from sharding.placement import coverage, cut_evenly, from_json
from tests.checkpoints import bytes_of
from tests.twins import Stored, merged_tensors, read_directory, write_file

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)

Ranges = list[list[Any]]
"""Of each rank, ``[start, stop]`` or ``{"zeros": n}``, as a plan writes them."""


@dataclass(frozen=True)
class Tensor:
    """A random tensor and where it goes; ``ranges`` is null where every rank holds it whole."""

    shape: tuple[int, ...]
    dtype: str
    dim: int
    ranges: Ranges | None

    def entry(self) -> dict[str, Any]:
        placement = {"dim": None} if self.ranges is None else {"dim": self.dim, "ranges": self.ranges}
        return {"shape": list(self.shape), "dtype": self.dtype, "home": "device", "placement": placement}

    def data(self, name: str) -> bytes:
        return bytes_of(name, prod(self.shape) * dtype_bits(self.dtype) // 8)


@st.composite
def ranges_of(draw: st.DrawFn, length: int, tp: int, step: int) -> Ranges:
    """Pieces of ``length`` elements, in steps of ``step``, that together hold all of them, some of them twice; zeros where
    a rank would be shorter than another, and elsewhere."""
    ranks: Ranges = [[] for _ in range(tp)]
    if length:
        cuts = draw(st.sets(st.integers(1, max(1, length // step - 1)), max_size=2 * tp))
        bounds = [0, *sorted(cut * step for cut in cuts if cut * step < length), length]
        for piece in pairwise(bounds):
            holders = draw(st.sets(st.integers(0, tp - 1), min_size=1, max_size=2))
            for rank in holders:
                ranks[rank].append(list(piece))
    if draw(st.booleans()):
        ranks = [draw(st.permutations(pieces)) if pieces else [] for pieces in ranks]
    extra = draw(st.sampled_from([0, 0, step, 3 * step]))
    longest = max(sum(stop - start for start, stop in pieces) for pieces in ranks) + extra
    assume(longest)
    for pieces in ranks:
        missing = longest - sum(stop - start for start, stop in pieces)
        while missing:
            zeros = draw(st.integers(1, missing // step)) * step
            pieces.insert(draw(st.integers(0, len(pieces))), {"zeros": zeros})
            missing -= zeros
    return ranks


@st.composite
def tensors_of(draw: st.DrawFn, tp: int) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPES)))
    step = 4 if dtype_bits(dtype) % 8 else 1  # 4 elements of 4 or 6 bits fill whole bytes
    dims = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    dims[-1] *= step
    dim = draw(st.integers(0, len(dims) - 1))
    if draw(st.integers(0, 9)) == 0:
        dims[draw(st.integers(0, len(dims) - 1))] = 0
    if draw(st.integers(0, 5)) == 0:
        return Tensor(tuple(dims), dtype, 0, None)
    along = step if dim == len(dims) - 1 else 1
    return Tensor(tuple(dims), dtype, dim, draw(ranges_of(dims[dim], tp, along)))


@st.composite
def models(draw: st.DrawFn) -> tuple[int, dict[str, Tensor]]:
    """A TP degree and a few tensors."""
    tp = draw(st.integers(1, 5))
    count = draw(st.integers(1, 4))
    return tp, {f"t{number}": draw(tensors_of(tp)) for number in range(count)}


@contextmanager
def block_of(size: int, run: int) -> Iterator[None]:
    """Blocks of that many bytes, and runs of ``run`` bytes moved as they lie, in every module of the package."""
    limits = {"BLOCK_BYTES": size, "RUN_BYTES": run}
    places = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("sharding.")
        for name in limits
        if hasattr(module, name)
    ]
    assert {module.__name__ for module, _ in places} >= {f"sharding.{name}" for name in ("engine", "rows", "restore")}
    before = [getattr(module, name) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, limits[name])
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def bits_of(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """One element of the array for each bit: every dtype cut alike."""
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(-1, dtype_bits(dtype))


def cut_bits(tensor: Tensor, name: str, rank: int) -> tuple[tuple[int, ...], bytes]:
    """A rank's shape and bytes, bit by bit. Elements narrower than a byte lie from the low bits up, as in the file."""
    whole = bits_of(tensor.data(name), tensor.dtype).reshape(*tensor.shape, dtype_bits(tensor.dtype))
    if tensor.ranges is None:
        return tensor.shape, tensor.data(name)
    pieces = []
    for piece in tensor.ranges[rank]:
        if isinstance(piece, dict):
            shape = list(whole.shape)
            shape[tensor.dim] = piece["zeros"]
            pieces.append(np.zeros(shape, np.uint8))
        else:
            pieces.append(np.take(whole, range(*piece), tensor.dim))
    local = np.concatenate(pieces, tensor.dim)
    return local.shape[:-1], np.packbits(local.reshape(-1), bitorder="little").tobytes()


@settings(SETTINGS, max_examples=250)
@given(
    models(),
    st.integers(1, 3),
    st.sampled_from([8, 16, 40, 64, 200, 1024, 2**23]),
    st.sampled_from([1, 8, 24, 2**17]),
    st.integers(0, 2),
)
def test_random_placements_tile_pad_and_restore(
    model: tuple[int, dict[str, Tensor]], parts: int, block: int, run: int, padding: int
) -> None:
    tp, tensors = model
    with tempfile.TemporaryDirectory() as directory, block_of(block, run):
        source = write_parts(Path(directory) / "in", tensors, min(parts, len(tensors)), padding)
        placements = {"tensors": {name: tensor.entry() for name, tensor in tensors.items()}, "rank_tensors": {}}
        out, back = Path(directory) / "out", Path(directory) / "back"

        reshard(placements, tp, source, out)

        found = read_directory(out)
        assert sorted(found) == sorted(f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(tp))
        for rank in range(tp):
            expected = {}
            for name, tensor in tensors.items():
                shape, data = cut_bits(tensor, name, rank)
                expected[name] = (tensor.dtype, shape, data)
            assert found[f"tp{rank}_sharded_checkpoint.safetensors"] == expected
        assert check(out, source) == ()
        merge(out, back)
        stored = merged_tensors(read_directory(source))
        assert merged_tensors(read_directory(back)) == {name: stored[name] for name in tensors}


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor((2, 1, 0), "BF16", 1, [[[0, 1]], [{"zeros": 1}]]),
        Tensor((3, 0), "BF16", 1, [[{"zeros": 2}], [{"zeros": 2}]]),
        Tensor((0, 4), "BF16", 1, [[[0, 2]], [[2, 4]]]),
        Tensor((0,), "F32", 0, None),
    ],
    ids=lambda tensor: "x".join(map(str, tensor.shape)),
)
def test_tensors_without_elements(tensor: Tensor, tmp_path: Path) -> None:
    tensors = {"t": tensor, "u": Tensor((4, 2), "BF16", 0, [[[0, 2]], [[2, 4]]])}
    source = write_parts(tmp_path / "in", tensors, 1, 1)
    placements = {"tensors": {name: each.entry() for name, each in tensors.items()}, "rank_tensors": {}}
    reshard(placements, 2, source, tmp_path / "out")
    for rank, (_, held) in enumerate(sorted(read_directory(tmp_path / "out").items())):
        assert held == {name: (each.dtype, *cut_bits(each, name, rank)) for name, each in tensors.items()}
    merge(tmp_path / "out", tmp_path / "back")
    assert read_directory(tmp_path / "back")["model.safetensors"].keys() == tensors.keys()


def write_parts(directory: Path, tensors: dict[str, Tensor], parts: int, padding: int) -> Path:
    """A checkpoint in a few parts, whose tensors begin at any byte: ``padding`` of a tensor that nothing reads before them."""
    directory.mkdir()
    weight_map = {}
    names = list(tensors)
    for number in range(parts):
        part = "model.safetensors" if parts == 1 else f"model-{number + 1:05}-of-{parts:05}.safetensors"
        stored: Stored = {}
        if padding:
            stored[f"odd{number}"] = ("U8", (padding,), b"\xff" * padding)
        stored |= {
            name: (tensors[name].dtype, tensors[name].shape, tensors[name].data(name)) for name in names[number::parts]
        }
        write_file(directory / part, stored)
        weight_map.update(dict.fromkeys(stored, part))
    if parts > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@SETTINGS
@given(models(), st.sampled_from([8, 32, 256, 2**23]), st.sampled_from(["bfloat16", "float16", "float32"]))
def test_block_sizes_change_no_byte_of_what_is_converted(
    model: tuple[int, dict[str, Tensor]], block: int, dtype: str
) -> None:
    tp, drawn = model
    tensors = {
        name: Tensor(tensor.shape, ("F32", "BF16", "F16", "F64")[index], tensor.dim, tensor.ranges)
        for index, (name, tensor) in enumerate(drawn.items())
    }
    placements = {"tensors": {name: tensor.entry() for name, tensor in tensors.items()}, "rank_tensors": {}}
    with tempfile.TemporaryDirectory() as directory:
        source = write_parts(Path(directory) / "in", dict(tensors), 1, 1)
        reshard(placements, tp, source, Path(directory) / "plain", dtype)
        with block_of(block, 8):
            reshard(placements, tp, source, Path(directory) / "blocks", dtype)
        assert read_directory(Path(directory) / "blocks") == read_directory(Path(directory) / "plain")


@SETTINGS
@given(models(), st.data())
def test_a_placement_that_leaves_something_out_is_not_merged(
    model: tuple[int, dict[str, Tensor]], data: st.DataObject
) -> None:
    tp, tensors = model
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[name]
    assume(tensor.ranges is not None and prod(tensor.shape))
    assert tensor.ranges is not None
    victim = data.draw(st.sampled_from([piece for rank in tensor.ranges for piece in rank if isinstance(piece, list)]))
    left = [
        [{"zeros": piece[1] - piece[0]} if isinstance(piece, list) and piece == victim else piece for piece in rank]
        for rank in tensor.ranges
    ]
    tensors = {**tensors, name: Tensor(tensor.shape, tensor.dtype, tensor.dim, left)}
    placements = {"tensors": {key: value.entry() for key, value in tensors.items()}, "rank_tensors": {}}
    with tempfile.TemporaryDirectory() as directory:
        source = write_parts(Path(directory) / "in", tensors, 1, 0)
        reshard(placements, tp, source, Path(directory) / "out")
        with pytest.raises(ShardingError, match=f"'{name}': no rank holds byte"):
            merge(Path(directory) / "out", Path(directory) / "back")
        assert list((Path(directory) / "back").iterdir()) == []


@SETTINGS
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9), st.integers(1, 12))
def test_even_cuts_hold_everything_once(parts: int, part: int, tp: int, other: int) -> None:
    placement = cut_evenly(1, parts * part, tp, parts)
    assert coverage(placement, parts * part, tp) == [1] * (parts * part)
    assert placement.local_shape((other, parts * part)) == (other, parts * -(-part // tp))
    assert from_json(placement.to_json()) == placement


# Conversions, against exact fractions.


def float_of(bits: int) -> float:
    found: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return found


def nearest_bfloat16(bits: int) -> int:
    """The bfloat16 nearest to a float32 that is no NaN, ties to even, found by comparing exact distances."""
    sign, magnitude = bits >> 31 << 15, bits & 0x7FFFFFFF
    if magnitude == 0x7F800000:
        return sign | 0x7F80
    below = magnitude >> 16
    value = Fraction(float_of(magnitude))
    low, high = exact(below), exact(below + 1)
    if value - low == high - value:
        return sign | (below + (below & 1))
    return sign | (below if value - low < high - value else below + 1)


def exact(bfloat16: int) -> Fraction:
    """Its value; infinity counts as what would come after the largest number."""
    return Fraction(2) ** 128 if bfloat16 == 0x7F80 else Fraction(float_of(bfloat16 << 16))


def convert(data: np.ndarray[Any, Any], source: str, target: str) -> bytes:
    function = converter(source, target)
    assert function is not None
    return b"".join(chunk.tobytes() for chunk in function(data.view(np.uint8)))


FLOAT32_BITS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from(
        [0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF]
    ),
    st.builds(
        lambda top, low: top << 16 | low, st.integers(0, 2**16 - 1), st.sampled_from([0, 0x7FFF, 0x8000, 0x8001])
    ),
    st.floats(width=32, allow_nan=False).map(lambda value: struct.unpack("<I", struct.pack("<f", value))[0]),
)


@settings(SETTINGS, max_examples=400)
@given(st.lists(FLOAT32_BITS, min_size=1, max_size=64))
def test_narrowing_is_to_nearest_even(bits: list[int]) -> None:
    bits = [value for value in bits if value & 0x7FFFFFFF <= 0x7F800000]
    assume(bits)
    found = np.frombuffer(convert(np.array(bits, np.uint32), "F32", "BF16"), np.uint16).tolist()
    assert found == [nearest_bfloat16(value) for value in bits]


@pytest.mark.parametrize("sign", [0, 0x80000000], ids=["plus", "minus"])
@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_narrowing_at_every_exponent(sign: int, low: int) -> None:
    """Subnormals, powers of two and the largest number, just below, at and just above the ties."""
    tops = sorted({(exponent << 7 | fraction) for exponent in range(255) for fraction in (0, 1, 2, 63, 126, 127)})
    bits = [sign | top << 16 | low for top in tops]
    found = np.frombuffer(convert(np.array(bits, np.uint32), "F32", "BF16"), np.uint16).tolist()
    assert found == [nearest_bfloat16(value) for value in bits]


def test_infinity_and_nan() -> None:
    infinities = np.frombuffer(convert(np.array([0x7F800000, 0xFF800000], np.uint32), "F32", "BF16"), np.uint16)
    assert infinities.tolist() == [0x7F80, 0xFF80]
    payloads = np.concatenate([np.arange(1, 2**16, 257), np.arange(2**16, 2**23, 40961), [2**22, 2**23 - 1, 1, 0x8000]])
    for sign in (0, 0x80000000):
        bits = (sign | 0x7F800000 | payloads).astype(np.uint32)
        found = np.frombuffer(convert(bits, "F32", "BF16"), np.uint16)
        assert np.all(found & 0x7F80 == 0x7F80)
        assert np.all(found & 0x7F != 0), "a NaN became an infinity"
        assert np.all(found >> 15 == sign >> 31)


def test_widening_is_exact() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    wide = convert(every, "BF16", "F32")
    for bits in every.tolist():
        pattern = wide[4 * bits : 4 * bits + 4]
        assert pattern == b"\0\0" + struct.pack("<H", bits)
        if bits & 0x7FFF <= 0x7F80:
            sign = -1.0 if bits >> 15 else 1.0
            exponent, fraction = bits >> 7 & 0xFF, bits & 0x7F
            magnitude = (
                float("inf")
                if exponent == 255
                else Fraction(fraction, 128) * Fraction(2) ** -126
                if exponent == 0
                else (1 + Fraction(fraction, 128)) * Fraction(2) ** (exponent - 127)
            )
            assert struct.unpack("<f", pattern)[0] == sign * float(magnitude)


def test_there_and_back_is_exact() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    assert convert(np.frombuffer(convert(every, "BF16", "F32"), np.uint32), "F32", "BF16") == every.tobytes()


@pytest.mark.parametrize(("source", "dtype"), [("BF16", "float32"), ("F32", "bfloat16")])
@pytest.mark.parametrize("dim", [0, 1])
def test_conversion_on_the_way(source: str, dtype: str, dim: int, tmp_path: Path) -> None:
    """Through files: every bfloat16 there is, widened; as many float32, narrowed, beside integers that stay."""
    shape, tp = (256, 256), 4
    if source == "BF16":
        data = np.arange(2**16, dtype=np.uint16).reshape(shape)
        expected = data.astype(np.uint32) << 16
    else:
        bits = np.random.default_rng(5).integers(0, 2**32, shape, dtype=np.uint64)
        bits[bits & 0x7FFFFFFF > 0x7F800000] = 0x3F808000
        data = bits.astype(np.uint32)
        expected = np.array([nearest_bfloat16(value) for value in data.reshape(-1).tolist()], np.uint16).reshape(shape)
    (tmp_path / "in").mkdir()
    ids = np.arange(6, dtype=np.int32)
    stored: Stored = {
        "odd": ("U8", (1,), b"x"),
        "x": (source, shape, data.tobytes()),
        "ids": ("I32", (6,), ids.tobytes()),
    }
    write_file(tmp_path / "in" / "model.safetensors", stored)
    x = Tensor(shape, source, dim, [[[64 * rank, 64 * rank + 64]] for rank in range(tp)])
    placements = {
        "tensors": {"x": x.entry(), "ids": Tensor((6,), "I32", 0, None).entry()},
        "rank_tensors": {},
    }

    reshard(placements, tp, tmp_path / "in", tmp_path / "out", dtype)

    for rank in range(tp):
        held = read_directory(tmp_path / "out")[f"tp{rank}_sharded_checkpoint.safetensors"]
        local = np.take(expected, range(64 * rank, 64 * rank + 64), dim)
        assert held["x"] == ("F32" if source == "BF16" else "BF16", local.shape, local.tobytes())
        assert held["ids"] == stored["ids"]
