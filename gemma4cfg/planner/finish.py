"""A draft written down: tensors, graphs, calls, provenance and identities."""

from __future__ import annotations

from typing import Any

from gemma4cfg import __version__
from gemma4cfg.architecture.stored import Audit
from gemma4cfg.config.schema import Config
from gemma4cfg.plan.encode import digest, identities, to_plain
from gemma4cfg.plan.records import FORMAT_VERSION, Decision, Plan
from gemma4cfg.planner.calls import CallInputs, build_calls, compiler_flags
from gemma4cfg.planner.draft import Draft
from gemma4cfg.planner.graphs import GraphInputs, plan_graphs
from gemma4cfg.planner.layers import plan_numerics
from gemma4cfg.planner.tensors import tensor_entries


def finish_plan(config: Config, draft: Draft, target_decision: Decision, checked: Audit) -> Plan:
    """The plan of ``draft``; its ids are of the contents that they name."""
    model, tp, division = config.model, config.settings.tp, draft.division
    numerics = plan_numerics(model, division.dtype)
    known: dict[int, Any] = {}
    graphs = plan_graphs(
        GraphInputs(
            architecture=model,
            layers=draft.layers,
            shapes=division.shapes,
            dtype=division.dtype,
            tp=tp,
            offload=division.offload,
            split_lm_head=division.split_lm_head,
            numerics=numerics,
            recipe=draft.recipe,
            sdk=draft.sdk,
            target=draft.target,
            compiler_flags=compiler_flags(draft.recipe, draft.sdk, draft.target),
        ),
        known,
    )
    calls = build_calls(
        CallInputs(
            recipe=draft.recipe,
            tp=tp,
            dtype=division.dtype,
            graphs=graphs,
            shapes=division.shapes,
            target=draft.target,
            sdk=draft.sdk,
            model=model,
            kv_slots=sum(layer.kv.writes for layer in draft.layers),
            host=draft.host,
        )
    )
    fields: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "model": model.name,
        "target": draft.target.name,
        "sdk": draft.sdk.name,
        "recipe": draft.recipe.name,
        "tp": tp,
        "dtype": division.dtype,
        "weight_copies": draft.copies,
        "shapes": division.shapes,
        "numerics": numerics,
        "layers": draft.layers,
        "tensors": tensor_entries(division.placed, checked.dtypes),
        "rank_tensors": division.feedforward.rank_tensors,
        "host": draft.host,
        "graphs": graphs,
        "calls": calls,
    }
    placement_id, plan_id = identities(
        {key: value if key == "tensors" else to_plain(value, known) for key, value in fields.items()}
    )
    return Plan(
        **fields,
        plan_id=plan_id,
        placement_id=placement_id,
        provenance=_provenance(config, draft, checked),
        decisions=(target_decision, *draft.decisions),
        budget=draft.budget,
        estimate=draft.estimate,
        findings=(*checked.findings, *draft.findings),
    )


def _provenance(config: Config, draft: Draft, checked: Audit) -> dict[str, Any]:
    """Where the plan comes from; the only part that may differ between equal plans."""
    chosen = {"target": draft.target, "sdk": draft.sdk, "recipe": draft.recipe}
    checkpoint = config.checkpoint
    return {
        "gemma4cfg": __version__,
        "overrides": list(config.overrides),
        "config_hash": digest({**to_plain(config.settings), **to_plain(chosen), "model": to_plain(config.model)}),
        "class_name": config.model.class_name,
        "checkpoint": config.settings.checkpoint,
        "checkpoint_header_hash": checkpoint.header_hash if checkpoint else None,
        "checkpoint_names": dict(checked.names),
        "other_modules": to_plain(checked.other_modules),
        "output": config.settings.output,
        "price": to_plain(draft.target.price),
    }
