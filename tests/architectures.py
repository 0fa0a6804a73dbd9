"""Random small architectures of the family, and configurations around them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from gemma4cfg.architecture.model import (
    Architecture,
    AttentionFacts,
    AttentionTypes,
    MlpFacts,
    MoeFacts,
    PleFacts,
    Rope,
)
from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import (
    AttentionChoice,
    Config,
    LmHeadChoice,
    MoeChoice,
    OffloadChoice,
    PleChoice,
    Recipe,
    ShapesChoice,
)

SLIDING, FULL = "sliding_attention", "full_attention"
TP_DEGREES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24, 32)
POLICIES = ("auto", "split", "group", "replicate", "pad")
RECIPES = (
    None,
    Recipe("trace", placement="one_core"),
    Recipe("trace", placement="core_each"),
    Recipe("tp_alias", prefill="device"),
    Recipe("tp_alias", prefill="host"),
    Recipe("model_builder", api="v1"),
    Recipe("model_builder", api="v2"),
)
"""None: left to the planner."""

SMALL = Architecture(
    layers=4,
    layer_pattern=(SLIDING, FULL),
    hidden_size=8,
    vocab_size=37,
    max_positions=64,
    attention=AttentionTypes(
        AttentionFacts(8, 4, 2, 16, False, Rope(1e4, "default", 1.0)),
        AttentionFacts(8, 2, 4, None, True, Rope(1e6, "proportional", 0.25)),
    ),
    kv_shared_layers=0,
    mlp=MlpFacts(12, False),
    ple=None,
    moe=None,
    rms_norm_eps=1e-6,
    activation="gelu_pytorch_tanh",
    attention_scale=1.0,
    embedding_scale=2.828125,
    final_logit_softcap=30.0,
    tied_embeddings=True,
)


@st.composite
def attention_types(draw: st.DrawFn, window: int | None) -> AttentionFacts:
    kv_heads = draw(st.integers(1, 8))
    head_dim = draw(st.sampled_from([2, 4, 6, 8]))
    full = window is None
    rope = Rope(1e6, "proportional", 0.25) if full else Rope(1e4, "default", 1.0)
    return AttentionFacts(kv_heads * draw(st.integers(1, 8)), kv_heads, head_dim, window, draw(st.booleans()), rope)


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """One to eight layers, the last full; every part there or not; sizes small enough to cut and join."""
    layers = draw(st.integers(1, 8))
    types = st.sampled_from([SLIDING, FULL])
    pattern = (*draw(st.lists(types, min_size=layers - 1, max_size=layers - 1)), FULL)
    legal = [n for n in range(layers) if set(pattern[layers - n :]) <= set(pattern[: layers - n])]
    hidden, vocab = draw(st.integers(3, 12)), draw(st.integers(2, 70))
    experts = draw(st.sampled_from([0, 1, 2, 4, 6, 8, 12, 16]))
    ple_width = draw(st.sampled_from([0, 1, 4, 6, 9]))
    return replace(
        SMALL,
        layers=layers,
        layer_pattern=pattern,
        hidden_size=hidden,
        vocab_size=vocab,
        attention=AttentionTypes(
            draw(attention_types(window=draw(st.integers(1, 80)))),
            draw(attention_types(window=None)),
        ),
        kv_shared_layers=draw(st.sampled_from(legal)),
        mlp=MlpFacts(draw(st.integers(1, 40)), draw(st.booleans())),
        ple=PleFacts(ple_width, vocab + draw(st.integers(0, 3)), 2.0, 0.5, 0.75) if ple_width else None,
        moe=MoeFacts(experts, 1, draw(st.integers(1, 24))) if experts else None,
        final_logit_softcap=draw(st.sampled_from([None, 30.0])),
        tied_embeddings=draw(st.booleans()),
        checkpoint_dtype=draw(st.sampled_from(["bfloat16", "float32"])),
    )


@functools.cache
def _base() -> Config:
    return load_config(["model=e2b"])


def config(model: Architecture, recipe: Recipe | None = None, **settings: Any) -> Config:
    """The default configuration with another model, recipe and settings, as if nothing had been said about its parts."""
    base = _base()
    return replace(
        base,
        model=model,
        recipes=base.recipes if recipe is None else (recipe,),
        settings=replace(base.settings, **settings),
        overrides=(),
    )


def shapes(**changed: Any) -> ShapesChoice:
    """Short ones, that ``SMALL`` has positions for."""
    default = ShapesChoice(
        batch=1, prefill_buckets=(8,), kv_length=32, kv_layout="linear", kv_dtype="auto", prompt_chunking=True
    )
    return replace(default, **changed)


def small(model: Architecture = SMALL, tp: int = 1, policy: str = "auto", **settings: Any) -> Config:
    """A configuration of a small model; ``settings`` as in ``config``."""
    attention = AttentionChoice(policy, None, "auto")
    return config(model, **{"tp": tp, "attention": attention, "shapes": shapes(), **settings})


@dataclass(frozen=True)
class Choices:
    """What ``config`` takes, as short to print as a failing example should be."""

    model: Architecture
    recipe: Recipe | None
    settings: dict[str, Any]

    def config(self) -> Config:
        return config(self.model, self.recipe, **self.settings)


@st.composite
def configurations(draw: st.DrawFn) -> Choices:
    """A random architecture under random choices."""
    place = st.sampled_from(["host", "device"])
    buckets = draw(st.sampled_from([(8,), (4, 8), (2, 4, 8)]))
    model = draw(architectures())
    even = [tp for tp in TP_DEGREES if all(_divides(heads, tp) for heads in _attention(model))]
    tp = draw(st.sampled_from(even[1:] or even) | st.sampled_from(TP_DEGREES))
    recipes = RECIPES if tp == 1 else [recipe for recipe in RECIPES if recipe is None or recipe.name != "trace"]
    settings = {
        "tp": tp,
        "dtype": draw(st.sampled_from(["auto", "bfloat16", "float32"])),
        "attention": AttentionChoice(
            draw(st.sampled_from(POLICIES)),
            draw(st.none() | st.dictionaries(st.just(FULL), st.sampled_from(POLICIES))),
            draw(st.sampled_from(["auto", "eager", "sdpa"])),
        ),
        "moe": MoeChoice(draw(st.sampled_from(["auto", "intermediate", "experts"]))),
        "lm_head": LmHeadChoice(draw(st.sampled_from(["auto", "split", "replicate"]))),
        "ple": PleChoice(draw(st.sampled_from(["auto", "replicate", "split"]))),
        "shapes": shapes(
            batch=draw(st.integers(1, 3)),
            prefill_buckets=buckets,
            kv_length=draw(st.integers(8, 64)),
            kv_layout=draw(st.sampled_from(["linear", "ring"])),
            kv_dtype=draw(st.sampled_from(["auto", "float32"])),
            prompt_chunking=draw(st.booleans()),
        ),
        "offload": OffloadChoice(
            token_embedding=(home := draw(place)),
            per_layer_embedding=(table := draw(place) if home == "device" else "host"),
            per_layer_projection=draw(place) if home == table == "host" else "device",
            softcap=draw(place),
            sampling=draw(place),
        ),
    }
    return Choices(model, draw(st.sampled_from(recipes)), settings)


def _attention(model: Architecture) -> list[AttentionFacts]:
    return [getattr(model.attention, kind) for kind in set(model.layer_pattern)]


def _divides(heads: AttentionFacts, tp: int) -> bool:
    """Whether no cut needs padding or copies of whole layers; without this most random degrees would be refused."""
    return heads.kv_heads % tp == 0 or (tp % heads.kv_heads == 0 and heads.q_heads % tp == 0)
