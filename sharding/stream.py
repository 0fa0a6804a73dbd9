"""The bytes of one local tensor, in order: hashed, and written to its place."""

from __future__ import annotations

from typing import Protocol

from sharding.checksum import hash_zeros, xxh3_128
from sharding.convert import Bytes, converter
from sharding.dtypes import dtype_bits
from sharding.layout import LocalTensor
from sharding.records import Meter


class Output(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview, offset: int) -> None: ...


class TensorStream:
    """Takes the source's bytes (of ``dtype``) and makes them the tensor's."""

    def __init__(self, tensor: LocalTensor, dtype: str, output: Output, meter: Meter) -> None:
        self._tensor, self._output, self._meter = tensor, output, meter
        self._convert = converter(dtype, tensor.dtype)
        self._from, self._to = dtype_bits(dtype), dtype_bits(tensor.dtype)
        self._hasher = xxh3_128()
        self._position = 0

    def append(self, data: Bytes) -> None:
        """The next bytes: whole elements, one contiguous array."""
        if self._convert is None:
            self._write(data)
        else:
            for converted in self._convert(data):
                self._write(converted)

    def skip(self, count: int) -> None:
        """``count`` source bytes of zeros: left out of the file, which reads as zeros there."""
        zeros = count * self._to // self._from
        hash_zeros(self._hasher, zeros)
        self._position += zeros
        self._meter.add(zeros)

    def finish(self) -> str:
        """The digest. It would be a silent fault if the tensor were not complete."""
        if self._position != self._tensor.size:
            raise AssertionError(f"'{self._tensor.name}': {self._position} of {self._tensor.size} bytes")
        return self._hasher.hexdigest()

    def _write(self, data: Bytes) -> None:
        if not data.size:
            return
        view = data.data
        self._hasher.update(view)
        self._output.write(view, self._tensor.start + self._position)
        self._position += len(view)
        self._meter.add(len(view))
