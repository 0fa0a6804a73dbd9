"""How fast a stack runs on a chip, and what it takes to compile there: constants fitted to published runs, as data.

No constant may speak of one run only, but for a serving stack's memory, of which there is one: a test changes each in turn
and counts the published runs whose figures move.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SHARE = {"minimum": 0.0, "maximum": 1.0}
_FACTOR = {"minimum": 1.0}


@dataclass(frozen=True, slots=True)
class SourcedBytes:
    bytes: int = field(metadata={"minimum": 0})
    source: str


@dataclass(frozen=True, slots=True)
class SourcedRates:
    """Bytes per second, from ``low`` to ``high``."""

    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Share:
    """Shares (0 to 1) of a nominal figure that published runs reach, and where they were measured."""

    low: float = field(metadata=_SHARE)
    high: float = field(metadata=_SHARE)
    source: str

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Prefill takes the largest of three: bytes over the decode bandwidth, operations over ``compute_share`` of the peak, and
    ``seconds_per_layer``, below which no layer comes however small it is. Published runs lie within ``factor`` either way."""

    compute_share: float = field(metadata=_SHARE)
    seconds_per_layer: float = field(metadata={"minimum": 0.0})
    factor: float = field(metadata=_FACTOR)
    source: str


@dataclass(frozen=True, slots=True)
class CompileFit:
    """Seconds for each layer of each graph, and for each layer and row of a prefill graph; within ``factor`` either way."""

    seconds_per_layer: float = field(metadata={"minimum": 0.0})
    seconds_per_layer_and_row: float = field(metadata={"minimum": 0.0})
    factor: float = field(metadata=_FACTOR)
    source: str


@dataclass(frozen=True, slots=True)
class Sourced:
    """Seconds, of whatever the field is named for."""

    seconds: float = field(metadata={"minimum": 0.0})
    source: str


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of one stack on ``chips``. ``bandwidth``: share of the nominal memory bandwidth in decode. ``collective``: latency of
    one all-reduce or all-gather. ``host_byte``: for each byte that crosses between host and device in a call. ``compile`` is
    null where nothing is compiled ahead, ``host_prefill`` (float32 weight bytes a second of a prompt on the host) where no
    recipe does that."""

    chips: tuple[str, ...]
    bandwidth: Share
    prefill: PrefillFit
    collective: Sourced
    host_byte: Sourced
    compile: CompileFit | None
    host_prefill: SourcedRates | None


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A GPU kernel's tiles: ``tiles_held`` of ``tile`` rows of one head are in shared memory at once; a patch halves the tile,
    never below ``smallest_tile``, until they take at most ``budget_bytes``."""

    tile: int = field(metadata={"minimum": 1})
    tiles_held: int = field(metadata={"minimum": 1})
    smallest_tile: int = field(metadata={"minimum": 1})
    budget_bytes: int = field(metadata={"minimum": 1})
    source: str


@dataclass(frozen=True, slots=True)
class Serving:
    """What a stack that serves by itself takes: ``memory_share`` of what the card has left beside its own runtime, in it
    ``chunk_tokens`` of every sliding layer beside its window, in pages of ``page_tokens``."""

    memory_share: float = field(metadata=_SHARE)
    chunk_tokens: int = field(metadata={"minimum": 0})
    page_tokens: int = field(metadata={"minimum": 1})
    attention: AttentionKernel
    source: str


@dataclass(frozen=True, slots=True)
class Estimates:
    """Measured constants behind the inexact parts of a budget.

    ``code_per_layer``: device bytes of one graph's instructions per layer. ``spill_per_graph``: scratch that the compiler
    itself asks for. ``compiler_peak``: host bytes of one compiler process. ``host_reserve``: what the system keeps of host
    memory. ``serving`` is null but for a stack that serves by itself."""

    code_per_layer: SourcedBytes
    spill_per_graph: SourcedBytes
    compiler_peak: SourcedBytes
    host_reserve: SourcedBytes
    serving: Serving | None
    speeds: dict[str, Speeds]

    def speeds_on(self, chip: str) -> Speeds:
        """Raises KeyError for a chip that this stack does not know; a release's families name known ones only."""
        for speeds in self.speeds.values():
            if chip in speeds.chips:
                return speeds
        raise KeyError(chip)
