"""Element types as safetensors spells them, with their widths and torch's names."""

from __future__ import annotations

from math import prod

from sharding.files import FormatError

DTYPES = {
    "BOOL": (8, "bool"),
    "F4": (4, "float4_e2m1fn_x2"),
    "F6_E2M3": (6, "float6_e2m3"),
    "F6_E3M2": (6, "float6_e3m2"),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
    "C64": (64, "complex64"),
}
"""Spelling to bits of one element and torch's name."""


def dtype_name(dtype: str) -> str:
    """``BF16`` in torch's spelling, ``bfloat16``. Raises FormatError for a dtype that safetensors does not have."""
    return _dtype(dtype)[1]


def dtype_bits(dtype: str) -> int:
    """Bits of one element: 16 for ``BF16``, 4 for ``F4``."""
    return _dtype(dtype)[0]


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor. Raises FormatError where sub-byte elements do not fill whole bytes."""
    bits = prod(shape) * dtype_bits(dtype)
    if bits % 8:
        raise FormatError(f"{list(shape)} of {dtype} is {bits} bits, not a whole number of bytes")
    return bits // 8


def _dtype(dtype: str) -> tuple[int, str]:
    if dtype not in DTYPES:
        raise FormatError(f"unknown dtype {dtype!r}; safetensors has {', '.join(DTYPES)}")
    return DTYPES[dtype]


def stored_dtype(name: str) -> str:
    """safetensors' spelling, ``BF16``, of a dtype in either spelling. Raises FormatError for an unknown one."""
    if name in DTYPES:
        return name
    for stored, (_, torch_name) in DTYPES.items():
        if torch_name == name:
            return stored
    raise FormatError(f"unknown dtype {name!r}; there are {', '.join(torch_name for _, torch_name in DTYPES.values())}")
