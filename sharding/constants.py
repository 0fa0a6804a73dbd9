"""Tensors that differ per rank and are in no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sharding.convert import converter
from sharding.dtypes import dtype_name, stored_dtype
from sharding.errors import ShardingError
from sharding.layout import rank_files


def rank_constants(
    rank_tensors: Mapping[str, Any], tp: int
) -> dict[str, dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """File to name to dtype, shape and bytes, of a plan's ``rank_tensors``. Raises ShardingError."""
    constants: dict[str, dict[str, tuple[str, tuple[int, ...], bytes]]] = {file: {} for file in rank_files(tp)}
    for name, tensor in rank_tensors.items():
        dtype, values = stored_dtype(tensor["dtype"]), tensor["values"]
        if len(values) != tp:
            raise ShardingError(f"rank tensor '{name}' has values for {len(values)} ranks, not for {tp}")
        for file, of_rank in zip(constants, values, strict=True):
            try:
                array = _array(of_rank, dtype)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ShardingError(f"rank tensor '{name}': not {tensor['dtype']}: {error}") from error
            constants[file][name] = (dtype, array.shape, array.tobytes())
    return constants


def _array(values: Any, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    if dtype == "BF16":
        narrow = converter("F32", "BF16")
        assert narrow is not None
        wide = np.array(values, np.float32)
        return np.concatenate(list(narrow(wide.reshape(-1).view(np.uint8)))).view(np.uint16).reshape(wide.shape)
    return np.array(values, np.dtype(dtype_name(dtype)))
