"""A tiny twin of a configuration: every structure of its plan at sizes that eight processes run in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4cfg.architecture.huggingface_writer import config_json
from gemma4cfg.architecture.model import Architecture, AttentionTypes, MlpFacts, MoeFacts, PleFacts
from gemma4cfg.architecture.rounding import embedding_scales
from gemma4cfg.config.schema import AttentionChoice, Config, LmHeadChoice, MoeChoice, PleChoice, ShapesChoice
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan, Shapes
from gemma4cfg.planner.attention import choose_layouts
from gemma4cfg.verify.structure import structure
from gemma4cfg.verify.twin_sizes import same_cut, small_expert_count, small_head_dim

HIDDEN_SIZES = tuple(size * octave for octave in (1, 2, 4, 8, 16, 32, 64) for size in (32, 40, 48, 56))
"""The first that keeps every layer's head layout: where heads are padded, the cheapest way depends on the width."""

TWIN_WINDOW = 8
"""In keys."""

_MLP, _EXPERTS, _EXPERT_WIDTH, _PLE_WIDTH, _VOCABULARY = 32, 16, 8, 8, 128
_HEAD_DIM, _GLOBAL_HEAD_DIM = 8, 16


class TwinError(RuntimeError):
    """The twin's plan is not of the same structure as the plan it stands for: a defect of the twin, not of the plan."""


def twin_config(config: Config, plan: Plan, *, batch: int, prefill_buckets: Sequence[int], kv_length: int) -> Config:
    """A small configuration of ``verify.dtype`` whose plan has the structure of ``plan``, which ``config`` gave.

    What the planner chose for ``config`` is asked for, so that small sizes cannot decide otherwise. There are as many
    ``prefill_buckets`` as the plan has. Raises ConfigError for a plan without graphs, and for a model that no Hugging Face
    class can run.
    """
    if plan.recipe == "vllm":
        raise ConfigError(
            "recipe=vllm: task=verify needs a recipe with graphs, and vLLM makes its own; e.g. recipe=auto with "
            "target=inf2.8xlarge"
        )
    config_json(config.model)
    shapes = ShapesChoice(
        batch=batch,
        prefill_buckets=tuple(prefill_buckets),
        kv_length=kv_length,
        kv_layout=plan.shapes.kv_layout,
        kv_dtype="auto",
        prompt_chunking=plan.shapes.prompt_chunking,
    )
    chosen = {decision.id: decision.choice for decision in plan.decisions}
    attention = AttentionChoice(
        policy="auto",
        layers={str(layer.index): layer.attention.mode for layer in plan.layers},
        implementation=plan.layers[0].attention.implementation,  # type: ignore[arg-type]
    )
    settings = replace(
        config.settings,
        dtype=config.settings.verify.dtype,
        checkpoint=None,
        attention=attention,
        moe=MoeChoice(chosen.get("experts", "auto")),
        lm_head=LmHeadChoice(chosen["lm_head.partition"]),
        ple=PleChoice(chosen.get("ple.partition", "auto")),
        shapes=shapes,
    )
    return replace(
        config,
        settings=settings,
        model=_small(config.model, plan, chosen, attention, shapes),
        targets=(_named(plan.target, (*config.targets, *config.known_targets)),),
        sdks=(_named(plan.sdk, config.sdks),),
        recipes=(_named(plan.recipe, config.recipes),),
        checkpoint=None,
        overrides=(),
    )


def check_twin(plan: Plan, twin: Plan) -> None:
    """Raises TwinError, with every difference, where the structure of ``twin`` is not that of ``plan``."""
    ours, theirs = dict(structure(plan)), dict(structure(twin))
    different = [
        f"{key}: {theirs.get(key)} instead of {ours.get(key)}"
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key)
    ]
    if different:
        raise TwinError("the twin is not a twin of the plan: " + "; ".join(different))


def _named(name: str, among: Sequence[Any]) -> Any:
    return next(item for item in among if item.name == name)


def _small(
    model: Architecture, plan: Plan, chosen: Mapping[str, Any], attention: AttentionChoice, shapes: ShapesChoice
) -> Architecture:
    small = _narrow(model, plan.tp, chosen, shapes.kv_length)
    planned = Shapes(
        shapes.batch, shapes.prefill_buckets, shapes.kv_length, shapes.kv_layout, "float32", shapes.prompt_chunking
    )
    heads = [(layer.attention.local_q_heads, layer.attention.local_kv_heads) for layer in plan.layers]
    for hidden in HIDDEN_SIZES:
        twin = _wide(small, hidden)
        layouts, _ = choose_layouts(twin, attention, plan.tp, "float32", planned)
        if [(layout.local_q_heads, layout.local_kv_heads) for layout in layouts] == heads:
            return twin
    raise ConfigError(
        f"no tiny twin pads the heads as this plan does at tp={plan.tp}, where bytes of weights and of K/V are close; "
        "verify real weights with checkpoint=DIR, or a tp that divides the query heads"
    )


def _narrow(model: Architecture, tp: int, chosen: Mapping[str, Any], kv_length: int) -> Architecture:
    """``model`` with every size but the hidden one small; a size that is not cut is free of TP."""
    sliding, full = model.attention.sliding_attention, model.attention.full_attention
    full_head_dim = small_head_dim(full, _GLOBAL_HEAD_DIM)
    equal_heads = sliding.head_dim == full.head_dim
    assert sliding.window is not None
    vocabulary = same_cut(model.vocab_size, tp if chosen["lm_head.partition"] == "split" else 1, _VOCABULARY)
    moe = None
    if model.moe:
        whole = chosen["experts"] == "experts"
        moe = MoeFacts(
            experts=small_expert_count(model.moe, tp, whole, _EXPERTS),
            top_k=model.moe.top_k,
            intermediate_size=same_cut(model.moe.intermediate_size, 1 if whole else tp, _EXPERT_WIDTH),
        )
    ple = None
    if model.ple:
        width = same_cut(model.ple.width, tp if chosen["ple.partition"] == "split" else 1, _PLE_WIDTH)
        ple = replace(model.ple, width=width, vocab_size=vocabulary, embedding_scale=embedding_scales(width)[0])
    return replace(
        model,
        name="custom",
        checkpoint_dtype="float32",
        vocab_size=vocabulary,
        max_positions=kv_length,
        attention=AttentionTypes(
            replace(
                sliding,
                head_dim=full_head_dim if equal_heads else small_head_dim(sliding, _HEAD_DIM),
                window=min(TWIN_WINDOW, sliding.window),
            ),
            replace(full, head_dim=full_head_dim),
        ),
        mlp=MlpFacts(
            same_cut(model.mlp.intermediate_size, tp, _MLP, (1, 2) if model.mlp.double_wide else (1,)),
            model.mlp.double_wide,
        ),
        ple=ple,
        moe=moe,
    )


def _wide(model: Architecture, hidden: int) -> Architecture:
    """``model`` with another hidden size, and the scales that follow from it."""
    ple: PleFacts | None = replace(model.ple, projection_scale=hidden**-0.5) if model.ple else None
    return replace(model, hidden_size=hidden, embedding_scale=embedding_scales(hidden)[0], ple=ple)
