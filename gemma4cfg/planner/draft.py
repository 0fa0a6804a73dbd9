"""Every decision for one machine, short of writing the plan down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4cfg.architecture.known import near_known
from gemma4cfg.config.schema import Config, OffloadChoice, Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.findings import Finding
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Budget, Decision, Estimate, HostPart, Layer, Shapes
from gemma4cfg.planner.attention import choose_layouts
from gemma4cfg.planner.budget import BudgetInputs, plan_budget
from gemma4cfg.planner.estimate import plan_estimate
from gemma4cfg.planner.facts import attention_facts, plan_facts
from gemma4cfg.planner.failures import failure_findings, published
from gemma4cfg.planner.feedforward import Feedforward, plan_feedforward
from gemma4cfg.planner.implementation import choose_implementation
from gemma4cfg.planner.kv import kv_bytes, kv_bytes_per_token, plan_kv
from gemma4cfg.planner.layers import plan_layers
from gemma4cfg.planner.lm_head import plan_lm_head
from gemma4cfg.planner.offload import ALL_ON_DEVICE, host_parts, offload_decisions
from gemma4cfg.planner.shapes import plan_dtype, plan_shapes
from gemma4cfg.planner.stack import RankMemory, choose_recipe, choose_sdk, graphs_per_core
from gemma4cfg.planner.structure import structure_decisions, structure_findings
from gemma4cfg.planner.tensors import PlacedTensor, local_weight_bytes, place_tensors
from gemma4cfg.planner.unread import refuse_unread_by_stack


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before its tensors, graphs and calls are written out. ``copies``: of weights and KV on the fullest core."""

    target: Target
    sdk: Sdk
    recipe: Recipe
    dtype: str
    shapes: Shapes
    offload: OffloadChoice
    split_lm_head: bool
    layers: tuple[Layer, ...]
    feedforward: Feedforward
    placed: Mapping[str, PlacedTensor]
    host: tuple[HostPart, ...]
    copies: int
    budget: Budget
    estimate: Estimate
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return self.budget.hbm_per_rank.total <= self.budget.hbm_per_rank.limit


def draft_plan(config: Config, target: Target, dtypes: Mapping[str, str]) -> Draft:
    """Decide everything for ``target``; ``dtypes`` are the tensors' stored types.

    Raises ConfigError for a combination that does not exist, PlanError where no recipe is left.
    """
    model, settings, tp = config.model, config.settings, config.settings.tp
    sdk, sdk_decision = choose_sdk(config.sdks, target)
    dtype, dtype_findings, dtype_decision = plan_dtype(settings.dtype, sdk)
    remarks = near_known(model, config.published)
    shapes = plan_shapes(settings.shapes, model, dtype, sdk, remarks)
    offload = ALL_ON_DEVICE if sdk.stack == "vllm" else settings.offload
    layouts, attention_decisions = choose_layouts(model, settings.attention, tp, dtype, shapes)
    feedforward = plan_feedforward(model, settings.moe, settings.ple, tp, dtype)
    split_lm_head, lm_head_decision = plan_lm_head(model, settings.lm_head.partition, tp, dtype)
    placed = place_tensors(model, layouts, feedforward, offload, split_lm_head, tp)
    weights = local_weight_bytes(placed, dtype) + _rank_tensor_bytes(feedforward)

    slots = plan_kv(model, layouts, shapes)
    kv, kv_per_token = kv_bytes(slots, shapes), kv_bytes_per_token(slots, shapes)
    buckets = len(shapes.prefill_buckets)
    memory = _memory(sdk, target, weights, kv, model.layers)
    recipe, recipe_decision, recipe_findings = choose_recipe(config.recipes, sdk, target, tp, buckets, memory)
    refuse_unread_by_stack(config.overrides, recipe)

    copies = graphs_per_core(recipe, buckets)
    facts = plan_facts(model, target, recipe, dtype, shapes, offload, split_lm_head, feedforward, tp, copies)
    of_layers = attention_facts(model, layouts, tp)
    implementation, implementation_decision, implementation_findings = choose_implementation(
        settings.attention.implementation, model, shapes, dtype, sdk, target, facts, of_layers
    )
    layers = plan_layers(model, layouts, feedforward, shapes, implementation, tp)
    of_layers = [{**layer, "attention_implementation": implementation} for layer in of_layers]

    # Published of graphs that return every row of the bucket, ours return the last: cited, not followed to other shapes.
    note = "; ".join(
        f"{failure.what} ({failure.source})"
        for _, failure in published(sdk, "softcap_on_host", {**facts, "prefill_rows": "all"}, of_layers)
    )
    host = host_parts(offload, model, placed, dtypes, note)
    budget = plan_budget(
        BudgetInputs(
            architecture=model,
            layers=layers,
            shapes=shapes,
            dtype=dtype,
            tp=tp,
            recipe=recipe,
            sdk=sdk,
            target=target,
            weights=weights,
            kv=kv,
            copies=copies,
            graphs_on_core=_graphs_on_core(recipe, buckets),
            graphs=1 if recipe.prefill == "host" else buckets + 1,
            host=host,
        )
    )
    decisions = (
        sdk_decision,
        recipe_decision,
        dtype_decision,
        *attention_decisions,
        implementation_decision,
        *structure_decisions(model, shapes, kv_per_token),
        *feedforward.decisions,
        lm_head_decision,
        *(offload_decisions(offload, model, placed, dtypes, dtype, note) if recipe.name != "vllm" else ()),
    )
    findings = (
        *remarks,
        *dtype_findings,
        *recipe_findings,
        *implementation_findings,
        *structure_findings(layers, layouts, tp, target, budget),
        *failure_findings(sdk, facts, of_layers),
    )
    return Draft(
        target=target,
        sdk=sdk,
        recipe=recipe,
        dtype=dtype,
        shapes=shapes,
        offload=offload,
        split_lm_head=split_lm_head,
        layers=layers,
        feedforward=feedforward,
        placed=placed,
        host=host,
        copies=copies,
        budget=budget,
        estimate=plan_estimate(placed, target, shapes, dtype, kv, kv_per_token),
        decisions=decisions,
        findings=findings,
    )


def _rank_tensor_bytes(feedforward: Feedforward) -> int:
    return sum(len(tensor.values[0]) * ITEM_BYTES[tensor.dtype] for tensor in feedforward.rank_tensors.values())


def _memory(sdk: Sdk, target: Target, weights: int, kv: int, layers: int) -> RankMemory:
    per_graph = sdk.estimates.code_per_layer.bytes * layers + sdk.estimates.spill_per_graph.bytes
    runtime = target.chip.runtime_bytes_per_core * target.cores_per_logical_core
    return RankMemory(weights, kv, per_graph, runtime)


def _graphs_on_core(recipe: Recipe, buckets: int) -> int:
    """Compiled programs resident on the fullest core."""
    if recipe.name == "vllm":
        return 1
    if recipe.placement == "core_each":
        return max(buckets, 1)
    return 1 if recipe.prefill == "host" else buckets + 1
