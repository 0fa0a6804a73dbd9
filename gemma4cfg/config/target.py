"""A machine as data: what ``conf/target`` and ``conf/chip`` state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30

Family = Literal["inf2", "trn1", "trn2", "g5g"]

_POSITIVE = {"minimum": 1}


@dataclass(frozen=True, slots=True)
class OnChipMemory:
    """SBUF or PSUM of one physical core: ``partitions`` rows of ``bytes_per_partition``."""

    partitions: int = field(metadata=_POSITIVE)
    bytes_per_partition: int = field(metadata=_POSITIVE)


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator. ``hbm_bytes``, ``bandwidth_bytes_per_s`` and ``tflops`` are of the whole chip; its ``cores`` are
    physical. ``runtime_bytes_per_core`` is what the runtime itself takes of a physical core's memory, ``link_bytes_per_s`` what
    passes between chips. ``sbuf`` and ``psum`` are null on a GPU, which has ``shared_memory_bytes`` per block instead. How much
    of these figures a program reaches is its stack's to say (``config.speeds``)."""

    name: str
    cores: int = field(metadata=_POSITIVE)
    hbm_bytes: int = field(metadata=_POSITIVE)
    bandwidth_bytes_per_s: int = field(metadata=_POSITIVE)
    tflops: dict[str, float]
    sbuf: OnChipMemory | None
    psum: OnChipMemory | None
    shared_memory_bytes: int | None
    runtime_bytes_per_core: int
    runtime_source: str
    link_bytes_per_s: int = field(metadata=_POSITIVE)
    link_source: str
    tensor_parallel: TensorParallelDegrees | None
    source: str


@dataclass(frozen=True, slots=True)
class TensorParallelDegrees:
    """TP degrees that were published as supported, or seen to run."""

    degrees: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars an hour, as quoted in ``region`` on ``date``."""

    usd_per_hour: float
    region: str | None
    date: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Prices:
    on_demand: Price | None
    spot: Price | None


@dataclass(frozen=True, slots=True)
class Target:
    """An instance. ``cores_per_logical_core`` (LNC) physical cores act as one rank's core."""

    name: str
    family: Family
    chips: int = field(metadata=_POSITIVE)
    cores_per_logical_core: int = field(metadata=_POSITIVE)
    vcpus: int = field(metadata=_POSITIVE)
    host_memory_gib: int = field(metadata=_POSITIVE)
    price: Prices
    chip: Chip
    source: str

    @property
    def cores(self) -> int:
        """Logical cores: how many ranks the machine can hold."""
        return self.chips * self.chip.cores // self.cores_per_logical_core

    @property
    def device_bytes(self) -> int:
        return self.chips * self.chip.hbm_bytes

    @property
    def hbm_bytes_per_core(self) -> int:
        """Device memory of one logical core: no core reaches a neighbour's."""
        return self.device_bytes // self.cores

    @property
    def bandwidth_per_core(self) -> int:
        """Bytes per second of one logical core's memory, nominal."""
        return self.chips * self.chip.bandwidth_bytes_per_s // self.cores

    def tflops_per_core(self, dtype: str) -> float:
        """Of one logical core; a type without a datapath runs at the fp32 rate."""
        return self.chips * self.chip.tflops.get(dtype, self.chip.tflops["float32"]) / self.cores

    @property
    def link_per_core(self) -> int:
        """Bytes per second of one logical core's share of its chip's links."""
        return self.chips * self.chip.link_bytes_per_s // self.cores

    @property
    def host_bytes(self) -> int:
        return self.host_memory_gib * GIB

    @property
    def usd_per_hour(self) -> float | None:
        """On demand; spot prices are another market and are not compared with it."""
        return self.price.on_demand.usd_per_hour if self.price.on_demand else None
