"""Floating tensors from one type to another, as bytes.

Widening is exact. Narrowing rounds to nearest, ties to even, through float32 (so float64 to a 16-bit type rounds twice,
as torch does); what is too large becomes infinite. A NaN stays a NaN of the same sign, with as much of its payload as fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from sharding.dtypes import dtype_bits, dtype_name
from sharding.errors import ShardingError

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types that are converted into each other."""

OTHER_FLOATS = ("F4", "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64")
"""Floating types whose values mean little alone (they are scaled by another tensor) or fit no real type."""

Bytes = npt.NDArray[np.uint8]
Converter = Callable[[Bytes], Iterator[Bytes]]

_CHUNK = 2**19
"""Elements converted at a time: what is in between stays small."""

_NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def target_dtype(source: str, wanted: str | None) -> str:
    """What a tensor of ``source`` becomes where floating tensors are wanted as ``wanted`` (null: as they are).

    Raises ShardingError for a floating type that cannot be converted.
    """
    if wanted is None or wanted == source or source not in FLOATS + OTHER_FLOATS:
        return source
    if source in OTHER_FLOATS or wanted not in FLOATS:
        raise ShardingError(f"{dtype_name(source)} is not converted to {dtype_name(wanted)}")
    return wanted


def converter(source: str, target: str) -> Converter | None:
    """A function from source bytes (whole elements) to the target's bytes, in chunks; null where they are the same."""
    if source == target:
        return None
    width = dtype_bits(source) // 8

    def convert(data: Bytes) -> Iterator[Bytes]:
        for start in range(0, data.size, _CHUNK * width):
            chunk = data[start : start + _CHUNK * width]
            yield _from_float(_to_float(np.ascontiguousarray(chunk), source), target).view(np.uint8)

    return convert


def _to_float(data: Bytes, dtype: str) -> npt.NDArray[np.floating]:
    if dtype == "BF16":
        wide: npt.NDArray[np.uint32] = data.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    values: npt.NDArray[np.floating] = data.view(_NUMPY[dtype])
    return values


def _from_float(values: npt.NDArray[np.floating], dtype: str) -> npt.NDArray[np.generic]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype == "BF16":
            return _to_bfloat16(values.astype(np.float32, copy=False))
        return values.astype(_NUMPY[dtype], copy=False)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint16] = (
        (bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    ).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        top = (bits[nan] >> np.uint32(16)).astype(np.uint16)
        quiet = np.where(top & np.uint16(0x7F), top, top | np.uint16(0x40))  # its payload lay in the lost half
        rounded[nan] = quiet
    return rounded
