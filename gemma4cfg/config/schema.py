"""What a user may say, as frozen records: the keys of ``conf/config.yaml`` and of the groups that are choices.

A record's hints and ranges are the schema that a composed configuration is checked against; defaults live in YAML only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.architecture.stored import Checkpoint
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target

GROUPS = ("model", "target", "sdk", "recipe")
"""Groups whose choice may be ``auto``."""

Place = Literal["host", "device"]
Policy = Literal["auto", "split", "group", "replicate", "pad"]

_POSITIVE = {"minimum": 1}


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """``policy`` holds for every layer; ``layers`` maps a selector (a layer type, an index, ``first-last``) to a policy."""

    policy: Policy
    layers: dict[str, Policy] | None
    implementation: Literal["auto", "eager", "sdpa"]


@dataclass(frozen=True, slots=True)
class MoeChoice:
    partition: Literal["auto", "intermediate", "experts"]


@dataclass(frozen=True, slots=True)
class LmHeadChoice:
    partition: Literal["auto", "split", "replicate"]


@dataclass(frozen=True, slots=True)
class PleChoice:
    partition: Literal["auto", "replicate", "split"]


@dataclass(frozen=True, slots=True)
class ShapesChoice:
    """Tokens, but for ``batch`` (streams). ``kv_dtype: auto`` is the plan's dtype."""

    batch: int = field(metadata=_POSITIVE)
    prefill_buckets: tuple[int, ...] = field(metadata={"minimum": 2})
    kv_length: int = field(metadata=_POSITIVE)
    kv_layout: Literal["linear", "ring"]
    kv_dtype: str
    prompt_chunking: bool


@dataclass(frozen=True, slots=True)
class OffloadChoice:
    token_embedding: Place
    per_layer_embedding: Place
    per_layer_projection: Place
    softcap: Place
    sampling: Place


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """How ``task=shard`` writes rank files. ``mirror`` is a second directory or fsspec URL for them."""

    mirror: str | None
    digests: bool
    check: bool


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search makes least, within bounds: a ceiling on the machine's dollars an hour on demand, a floor on decoded
    tokens a second. ``minimise: null`` is no search."""

    minimise: Literal["latency", "cost", "memory"] | None
    max_usd_per_hour: float | None = field(metadata={"minimum": 0.0})
    min_tokens_per_s: float | None = field(metadata={"minimum": 0.0})


@dataclass(frozen=True, slots=True)
class VerifyChoice:
    """How ``task=verify`` proves a plan. ``steps`` in tokens; ``layers`` of a checkpoint, null for all.
    ``backend``: the plan's own modules, or its exported programs as they are read back from disk."""

    dtype: Literal["float32", "bfloat16"]
    layers: int | None = field(metadata=_POSITIVE)
    steps: int = field(metadata=_POSITIVE)
    seed: int = field(metadata={"minimum": 0})
    transport: Literal["auto", "shared_memory", "gloo"]
    spmd: bool
    inject: str | None
    matrix: Literal["covering", "full"] | None
    expect: str | None
    check_inputs: bool
    backend: Literal["ranks", "artifact"]


@dataclass(frozen=True, slots=True)
class GenerateChoice:
    """How ``task=generate`` makes text; ranges of what sampling reads are ``Sampler``'s. ``tools`` is a file."""

    prompt: str | tuple[str, ...] | None
    max_new_tokens: int = field(metadata=_POSITIVE)
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    tools: str | None
    check_inputs: bool
    backend: Literal["ranks", "artifact"]


@dataclass(frozen=True, slots=True)
class CompileChoice:
    """How ``task=compile`` makes programs. ``mirror`` is a second directory or fsspec URL for them, ``workdir`` the
    compiler's own directory."""

    backend: Literal["auto", "sdk", "export"]
    explain: bool
    mirror: str | None
    workdir: str | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How graphs become programs. A field is null where the recipe has no such choice.

    ``api``: v1 or v2 of ModelBuilder. ``placement``: trace's two graphs on one core or on a core each.
    ``prefill``: where tp_alias runs the prompt.
    """

    name: Literal["trace", "tp_alias", "model_builder", "vllm"]
    api: Literal["v1", "v2"] | None = None
    placement: Literal["one_core", "core_each"] | None = None
    prefill: Place | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The plain keys, outside the groups that are looked up by name. Where ``tp`` is searched for, it is of no meaning."""

    task: Literal["plan", "shard", "verify", "generate", "compile", "doctor"]
    tp: int = field(metadata=_POSITIVE)
    dtype: Literal["auto", "bfloat16", "float32", "float16"]
    swap_gib: int = field(metadata={"minimum": 0})
    checkpoint: str | None
    output: str | None
    attention: AttentionChoice
    moe: MoeChoice
    lm_head: LmHeadChoice
    ple: PleChoice
    shapes: ShapesChoice
    offload: OffloadChoice
    objective: Objective
    shard: ShardChoice
    verify: VerifyChoice
    generate: GenerateChoice
    compile: CompileChoice


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The values that a search tries, in order of preference; one where it is given, none where the model has no such part.
    Machines are the configuration's ``targets``; ``offloads`` are choices by name, empty where one is given."""

    degrees: tuple[int, ...]
    policies: tuple[Policy, ...]
    moe_partitions: tuple[Literal["intermediate", "experts"], ...]
    lm_head_partitions: tuple[Literal["split", "replicate"], ...]
    ple_partitions: tuple[Literal["replicate", "split"], ...]
    offloads: Mapping[str, OffloadChoice]


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a plan is made from. A group left at ``auto`` holds its candidates in order of preference, a chosen one
    holds itself alone. ``search``: what an objective is to choose from, null without one. ``overrides`` are the words the user
    added, for provenance and to find values never read."""

    settings: Settings
    model: Architecture
    targets: tuple[Target, ...]
    sdks: tuple[Sdk, ...]
    recipes: tuple[Recipe, ...]
    checkpoint: Checkpoint | None
    known_targets: tuple[Target, ...]
    overrides: tuple[str, ...]
    published: Mapping[str, Architecture]
    search: SearchSpace | None
