"""A Gemma-4 model as facts. Nothing about attention is a model-level scalar: it is asked of a layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from gemma4cfg.errors import ConfigError

LayerType = Literal["sliding_attention", "full_attention"]
LAYER_TYPES: tuple[LayerType, ...] = ("sliding_attention", "full_attention")

_POSITIVE = {"minimum": 1}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one layer type; ``type`` decides the frequency denominator (see ``inv_freq_length``)."""

    theta: float
    type: Literal["default", "proportional"]
    partial_rotary_factor: float = field(metadata={"minimum": 0.0, "maximum": 1.0})

    def rotary_pairs(self, head_dim: int) -> int:
        """Pairs of channels that really turn: 64 of head_dim 512 at a factor of 0.25."""
        return int(self.partial_rotary_factor * head_dim) // 2

    def inv_freq_length(self, head_dim: int) -> int:
        """Entries of the frequency table. ``proportional`` keeps head_dim / 2 of them, those past ``rotary_pairs`` zero,
        so that channel i pairs with i + head_dim / 2; ``default`` cuts the table to the rotary width."""
        return head_dim // 2 if self.type == "proportional" else self.rotary_pairs(head_dim)


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Attention of one layer type. ``window`` is null where every earlier key is visible."""

    q_heads: int = field(metadata=_POSITIVE)
    kv_heads: int = field(metadata=_POSITIVE)
    head_dim: int = field(metadata=_POSITIVE)
    window: int | None = field(metadata=_POSITIVE)
    k_eq_v: bool
    rope: Rope


@dataclass(frozen=True, slots=True)
class AttentionTypes:
    """The attention of either layer type."""

    sliding_attention: AttentionFacts
    full_attention: AttentionFacts


@dataclass(frozen=True, slots=True)
class MlpFacts:
    """The dense gated MLP. ``double_wide``: layers that borrow K/V have twice ``intermediate_size``."""

    intermediate_size: int = field(metadata=_POSITIVE)
    double_wide: bool


@dataclass(frozen=True, slots=True)
class PleFacts:
    """Per-layer embeddings: a table ``[vocab_size, layers * width]``, a projection of the token embedding, their sum."""

    width: int = field(metadata=_POSITIVE)
    vocab_size: int = field(metadata=_POSITIVE)
    embedding_scale: float
    projection_scale: float
    combine_scale: float


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """Experts beside the dense MLP of every layer."""

    experts: int = field(metadata=_POSITIVE)
    top_k: int = field(metadata=_POSITIVE)
    intermediate_size: int = field(metadata=_POSITIVE)


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer, everything resolved. ``owner`` is the layer whose K/V it reads: itself unless it borrows."""

    index: int
    type: LayerType
    attention: AttentionFacts
    owner: int
    intermediate_size: int

    @property
    def borrows(self) -> bool:
        return self.owner != self.index

    @property
    def value_source(self) -> Literal["v_proj", "k_proj", "owner"]:
        """What V is made of: ``k_proj`` where keys double as values (before k_norm and rotary)."""
        if self.borrows:
            return "owner"
        return "k_proj" if self.attention.k_eq_v else "v_proj"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A text decoder of the Gemma-4 family. ``name``, ``class_name``, ``hugging_face_id`` and
    ``checkpoint_dtype`` say what it is called and how it is stored, ``tower_elements`` how many elements of vision and audio
    its published checkpoint has beside the text decoder; they take no part in equality: two architectures are equal when
    every shape and every constant is.

    ``layer_pattern`` is repeated over ``layers``. ``embedding_scale`` is stated as the reference rounds it (to bfloat16).
    """

    layers: int = field(metadata=_POSITIVE)
    layer_pattern: tuple[LayerType, ...]
    hidden_size: int = field(metadata=_POSITIVE)
    vocab_size: int = field(metadata=_POSITIVE)
    max_positions: int = field(metadata=_POSITIVE)
    attention: AttentionTypes
    kv_shared_layers: int = field(metadata={"minimum": 0})
    mlp: MlpFacts
    ple: PleFacts | None
    moe: MoeFacts | None
    rms_norm_eps: float
    activation: Literal["gelu_pytorch_tanh"]
    attention_scale: float
    embedding_scale: float
    final_logit_softcap: float | None
    tied_embeddings: bool
    name: str = field(default="custom", compare=False)
    class_name: str = field(default="Gemma4ForConditionalGeneration", compare=False)
    hugging_face_id: str | None = field(default=None, compare=False)
    checkpoint_dtype: Literal["bfloat16", "float16", "float32"] = field(default="bfloat16", compare=False)
    tower_elements: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.layer_pattern:
            raise ConfigError("model.layer_pattern is empty; e.g. [sliding_attention, full_attention]")
        for name in LAYER_TYPES:
            facts = getattr(self.attention, name)
            if facts.q_heads % facts.kv_heads:
                raise ConfigError(
                    f"model.attention.{name}: q_heads={facts.q_heads} is not a multiple of kv_heads={facts.kv_heads}"
                )
            if (facts.window is None) == (name == "sliding_attention"):
                raise ConfigError(
                    f"model.attention.{name}.window={facts.window}: sliding layers have a window, full layers have null"
                )
        if self.moe and self.moe.top_k > self.moe.experts:
            raise ConfigError(f"model.moe.top_k={self.moe.top_k} is more than model.moe.experts={self.moe.experts}")
        if self.kv_shared_layers >= self.layers:
            raise ConfigError(
                f"model.kv_shared_layers={self.kv_shared_layers}: at least one of the {self.layers} layers must own K/V"
            )
        layer_facts(self)  # raises where a borrower finds no owner


@functools.lru_cache(maxsize=64)
def layer_facts(architecture: Architecture) -> tuple[LayerFacts, ...]:
    """Every layer in order. A borrower's owner is the last owning layer of its own type.

    Raises ConfigError where a borrower has none.
    """
    first_borrower = architecture.layers - architecture.kv_shared_layers
    last_owner: dict[str, int] = {}
    result = []
    for index in range(architecture.layers):
        kind = architecture.layer_pattern[index % len(architecture.layer_pattern)]
        borrows = index >= first_borrower
        if not borrows:
            last_owner[kind] = index
        elif kind not in last_owner:
            raise ConfigError(
                f"model.kv_shared_layers={architecture.kv_shared_layers}: layer {index} ({kind}) borrows K/V, but none of "
                f"the {first_borrower} owning layers has its type"
            )
        wide = 2 if borrows and architecture.mlp.double_wide else 1
        result.append(
            LayerFacts(
                index=index,
                type=kind,
                attention=getattr(architecture.attention, kind),
                owner=last_owner[kind],
                intermediate_size=architecture.mlp.intermediate_size * wide,
            )
        )
    return tuple(result)
