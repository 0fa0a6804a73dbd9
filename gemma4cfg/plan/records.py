"""The plan's frozen records. Field names are the keys of ``plan.json``, format 1.0; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemma4cfg.architecture.model import LayerType
from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import identities, to_plain

FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Shapes:
    """``prefill_buckets`` and ``kv_length`` in tokens; sliding layers' KV is a ring of min(window, kv_length) if asked."""

    batch: int
    prefill_buckets: tuple[int, ...]
    kv_length: int
    kv_layout: Literal["linear", "ring"]
    kv_dtype: str
    prompt_chunking: bool


@dataclass(frozen=True, slots=True)
class PleNumerics:
    embedding_scale: float
    projection_scale: float
    combine_scale: float


@dataclass(frozen=True, slots=True)
class Numerics:
    """The constants of the forward pass, scales as the reference rounds them."""

    rms_norm_eps: float
    activation: str
    attention_scale: float
    final_logit_softcap: float | None
    embedding_scale: float
    ple: PleNumerics | None


@dataclass(frozen=True, slots=True)
class TurnedDown:
    """An option not taken; ``reason`` is of the closed list."""

    choice: Any
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Decision:
    """``reason`` is of the closed list (``plan.reasons``); ``detail`` gives the figures."""

    id: str
    choice: Any
    over: tuple[TurnedDown, ...]
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Heads per rank. Padding heads are counted in ``local_*`` and left out of ``*_heads_of_rank``."""

    mode: Literal["split", "group", "replicate", "pad"]
    implementation: str
    local_q_heads: int
    local_kv_heads: int
    replication: int
    reduce: bool
    q_heads_of_rank: tuple[tuple[int, ...], ...]
    kv_heads_of_rank: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerKv:
    """``shape`` is [batch, local_kv_heads, length, head_dim], of K and of V each; null where the layer borrows."""

    owner: int
    writes: bool
    slot: int | None
    shape: tuple[int, ...] | None
    layout: Literal["linear", "ring"] | None


@dataclass(frozen=True, slots=True)
class LayerRope:
    theta: float
    type: str
    rotary_pairs: int
    inv_freq_length: int


@dataclass(frozen=True, slots=True)
class LayerMlp:
    intermediate: int
    local_intermediate: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class LayerPle:
    width: int
    local_width: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class LayerMoe:
    experts: int
    top_k: int
    intermediate: int
    partition: Literal["intermediate", "experts"]
    local_experts: int
    local_intermediate: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class Layer:
    index: int
    type: LayerType
    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    attention: LayerAttention
    kv: LayerKv
    value_source: Literal["v_proj", "k_proj", "owner"]
    rope: LayerRope
    mlp: LayerMlp
    ple: LayerPle | None
    moe: LayerMoe | None


@dataclass(frozen=True, slots=True)
class RankTensor:
    """``values[rank]``: what differs per rank and is in no checkpoint."""

    dtype: str
    values: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class HostPart:
    what: Literal["token_embedding", "per_layer_embedding", "per_layer_projection", "softcap", "sampling"]
    tensor: str | None
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Port:
    """One named tensor at a graph's edge or in its state."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Collectives:
    all_reduce: int
    all_gather: int


@dataclass(frozen=True, slots=True)
class Graph:
    """``id`` is the SHA-256 of what decides the compiled graph; artifacts carry it."""

    id: str
    name: str
    kind: Literal["prefill", "decode"]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state: tuple[Port, ...]
    collectives: Collectives


@dataclass(frozen=True, slots=True)
class Call:
    """One API call: ``api`` is an import path, ``args`` plain values or ``{"ref": "graphs/decode"}`` into this plan."""

    api: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HbmBudget:
    """Bytes on one rank's core. ``weights`` and ``kv`` are exact, the others estimates (``Budget.basis`` says whose)."""

    weights: int
    kv: int
    scratch: int
    code: int
    runtime: int
    total: int
    limit: int

    def on_cores(self, cores: int) -> int:
        """Bytes of so many cores together, each counted as the fullest."""
        return cores * self.total


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """Some of the bytes of one part of ``HbmBudget``, whose lines add up to it."""

    part: Literal["weights", "kv", "scratch", "code", "runtime"]
    what: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Device bytes of one graph beside weights and KV."""

    graph: str
    activations: int
    logits: int
    spill: int
    code: int


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """``bytes`` of one partition of on-chip memory (a block's shared memory on a GPU) against its ``limit``; ``psum_banks``
    of its eight are in use. ``published`` names the published failure that decides beside this arithmetic."""

    graph: str
    layers: str
    what: str
    bytes: int
    limit: int
    fits: bool
    psum_banks: int | None
    published: str | None


@dataclass(frozen=True, slots=True)
class MaximumContext:
    """Tokens that a stream can hold with all else as planned: one ``step`` (the largest prefill bucket, or a serving stack's
    page) more does not fit the memory, or is more positions than the model has."""

    tokens: int
    step: int
    limited_by: Literal["memory", "positions"]


@dataclass(frozen=True, slots=True)
class CompilePeaks:
    """Host bytes to compile: one rank from its rank file, one rank after reading the whole checkpoint in a type, all ranks at
    once in a type."""

    one_rank_streamed: int
    one_rank_bfloat16: int
    one_rank_float32: int
    all_ranks_bfloat16: int
    all_ranks_float32: int


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Bytes of the published checkpoint, of rank files with the host's tables, and of compiled graphs with the weights that
    they carry."""

    checkpoint: int
    shards: int
    artifacts: int


@dataclass(frozen=True, slots=True)
class HostAbility:
    """Whether the host's memory and the swap it has are enough, a reserve for the system kept."""

    shard: bool
    compile: bool
    load: bool
    serve: bool


@dataclass(frozen=True, slots=True)
class HostBudget:
    """Bytes of host memory; ``swap`` and ``compile_swap`` are what loading and compiling lack. ``compile`` is null where
    nothing is compiled ahead; ``compile_on`` is the smallest machine with this chip whose host compiles the plan."""

    shard_peak: int
    compile_peak: int
    load_peak: int
    steady: int
    limit: int
    swap: int
    compile_swap: int
    compile: CompilePeaks | None
    disk: DiskBudget
    can: HostAbility
    compile_on: str | None


@dataclass(frozen=True, slots=True)
class Budget:
    hbm_per_rank: HbmBudget
    host: HostBudget
    basis: Mapping[str, str]
    lines: tuple[BudgetLine, ...]
    graphs: tuple[GraphMemory, ...]
    on_chip: tuple[WorkingSet, ...]
    maximum_context: MaximumContext


@dataclass(frozen=True, slots=True)
class Span:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BytesPerToken:
    """Per rank: weight bytes read for one decoded token, and KV bytes that one token occupies."""

    weights: int
    kv: int


@dataclass(frozen=True, slots=True)
class Floors:
    """Milliseconds that no program for this chip can be under: bytes or operations over its limits, and the collectives."""

    decode_ms: float
    prefill_ms: float


@dataclass(frozen=True, slots=True)
class Costs:
    """US dollars for a million decoded tokens, one copy of the model on the machine; null where no price is known."""

    on_demand: Span | None
    spot: Span | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """An option that is open here, ``taken`` or not, with what can be said of it in figures."""

    choice: str
    option: str
    taken: bool
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``compile_s`` is null where nothing is compiled ahead. ``prefill_ms`` is of the largest bucket, ``prefill_ms_by_bucket``
    of each."""

    decode_tokens_per_s: Span
    prefill_ms: Span
    bytes_per_token_per_rank: BytesPerToken
    basis: str
    floors: Floors
    prefill_ms_by_bucket: Mapping[str, Span]
    compile_s: Span | None
    usd_per_million_tokens: Costs
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """See the README's reference for every key. ``tensors`` stays in JSON form: one dictionary per checkpoint name."""

    format_version: str
    plan_id: str
    placement_id: str
    provenance: Mapping[str, Any]
    model: str
    target: str
    sdk: str
    recipe: str
    tp: int
    dtype: str
    weight_copies: int
    shapes: Shapes
    numerics: Numerics
    decisions: tuple[Decision, ...]
    layers: tuple[Layer, ...]
    tensors: Mapping[str, Mapping[str, Any]]
    rank_tensors: Mapping[str, RankTensor]
    host: tuple[HostPart, ...]
    graphs: tuple[Graph, ...]
    calls: tuple[Call, ...]
    budget: Budget
    estimate: Estimate
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, the contents of ``plan.json``. It shares ``tensors`` with the plan: not to be changed."""
        plain: dict[str, Any] = to_plain(replace(self, tensors={}))
        return {**plain, "tensors": self.tensors}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """A plan read back.

        Raises ConfigError for a foreign format, a missing or unknown key, or ids that the contents do not give.
        """
        if data.get("format_version") != FORMAT_VERSION:
            raise ConfigError(f"plan format_version={data.get('format_version')}: this version reads {FORMAT_VERSION}")
        plan = decode(cls, data, "plan")
        for key, expected in zip(("placement_id", "plan_id"), identities(data), strict=True):
            if data[key] != expected:
                raise ConfigError(
                    f"the plan was changed after it was made: its {key} is {data[key]}, its contents give {expected}"
                )
        return plan
