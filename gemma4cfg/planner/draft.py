"""Every decision for one machine, short of writing the plan down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4cfg.architecture.known import near_known
from gemma4cfg.config.schema import Config, Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Budget, Decision, Estimate, HostPart, Layer
from gemma4cfg.planner.alternatives import alternatives
from gemma4cfg.planner.budget import plan_budget
from gemma4cfg.planner.device_memory import DeviceInputs
from gemma4cfg.planner.division import Divider, Division
from gemma4cfg.planner.estimate import EstimateInputs, plan_estimate
from gemma4cfg.planner.facts import attention_facts, plan_facts
from gemma4cfg.planner.failures import failure_findings, layers_of, overridden, published
from gemma4cfg.planner.host_memory import HostInputs
from gemma4cfg.planner.implementation import choose_implementation
from gemma4cfg.planner.kinds import layer_kinds
from gemma4cfg.planner.layers import plan_layers
from gemma4cfg.planner.offload import ALL_ON_DEVICE, host_parts, offload_decisions
from gemma4cfg.planner.on_chip import on_chip_findings
from gemma4cfg.planner.shapes import plan_dtype, plan_shapes
from gemma4cfg.planner.stack import RankMemory, choose_recipe, choose_sdk, copies_on_core, graphs_on_core
from gemma4cfg.planner.structure import structure_decisions, structure_findings
from gemma4cfg.planner.unread import refuse_unread_by_stack


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before its tensors, graphs and calls are written out. ``copies``: of weights and KV on the fullest core.
    ``speed`` is what the estimate is made from."""

    target: Target
    sdk: Sdk
    recipe: Recipe
    division: Division
    layers: tuple[Layer, ...]
    host: tuple[HostPart, ...]
    copies: int
    budget: Budget
    speed: EstimateInputs
    estimate: Estimate
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return self.budget.hbm_per_rank.total <= self.budget.hbm_per_rank.limit


def draft_plan(config: Config, target: Target, dtypes: Mapping[str, str], divide: Divider) -> Draft:
    """Decide everything for ``target``; ``dtypes`` are the tensors' stored types, ``divide`` is of the same ``config``.

    Raises ConfigError for a combination that does not exist, PlanError where no recipe is left.
    """
    model, settings, tp = config.model, config.settings, config.settings.tp
    sdk, sdk_decision = choose_sdk(config.sdks, target)
    dtype, dtype_findings, dtype_decision = plan_dtype(settings.dtype, sdk)
    remarks = near_known(model, config.published)
    shapes = plan_shapes(settings.shapes, model, dtype, sdk, remarks)
    division = divide(dtype, shapes, ALL_ON_DEVICE if sdk.stack.name == "vllm" else settings.offload)

    buckets = len(shapes.prefill_buckets)
    memory = RankMemory.of(division, sdk, target, model.layers, settings.swap_gib)
    recipe, recipe_decision, recipe_findings = choose_recipe(config.recipes, sdk, target, tp, buckets, memory)
    refuse_unread_by_stack(config.overrides, recipe)

    copies = copies_on_core(recipe, buckets)
    facts = plan_facts(model, target, recipe, division, tp, copies, settings.swap_gib)
    of_layers = attention_facts(model, division.layouts, tp)
    implementation, implementation_decision, implementation_findings = choose_implementation(
        settings.attention.implementation, model, shapes, dtype, sdk, target, facts, of_layers
    )
    layers = plan_layers(model, division.layouts, division.feedforward, division.slots, implementation, tp)
    of_layers = [{**layer, "attention_implementation": implementation} for layer in of_layers]

    # Published of graphs that return every row of the bucket, ours return the last: cited, not followed to other shapes.
    capped = published(sdk, "softcap_on_host", {**facts, "prefill_rows": "all"}, of_layers)
    note = "; ".join(f"{failure.what} ({failure.source})" for _, failure in capped)
    holding = (*(published(sdk, effect, facts, of_layers) for effect in ("eager_attention", "warning")), capped)
    failing = {name: layers_of(failure, of_layers) for group in holding for name, failure in group}
    host = host_parts(division.offload, model, division.placed, dtypes, note)
    kinds = layer_kinds(layers)
    device = DeviceInputs(
        architecture=model,
        kinds=kinds,
        division=division,
        recipe=recipe,
        sdk=sdk,
        target=target,
        copies=copies,
        graphs_on_core=graphs_on_core(recipe, buckets),
    )
    budget = plan_budget(
        device,
        HostInputs(
            architecture=model,
            division=division,
            tp=tp,
            recipe=recipe,
            sdk=sdk,
            target=target,
            known_targets=config.known_targets,
            graphs=1 if recipe.prefill == "host" else buckets + 1,
            host=host,
            swap=settings.swap_gib * GIB,
        ),
        failing,
    )
    speed = EstimateInputs(model, division, kinds, tp, target, recipe, sdk)
    decisions = (
        sdk_decision,
        recipe_decision,
        dtype_decision,
        *division.attention_decisions,
        implementation_decision,
        *structure_decisions(model, division, served=recipe.name == "vllm"),
        *division.feedforward.decisions,
        division.lm_head_decision,
        *(offload_decisions(division, model, dtypes, note) if recipe.name != "vllm" else ()),
    )
    findings = (
        *remarks,
        *dtype_findings,
        *recipe_findings,
        *implementation_findings,
        *(overridden(capped) if division.offload.softcap == "device" else ()),
        *on_chip_findings(budget.on_chip, implementation, division.offload.softcap),
        *structure_findings(layers, division.layouts, tp, target, budget, settings.swap_gib),
        *failure_findings(sdk, facts, of_layers),
    )
    return Draft(
        target=target,
        sdk=sdk,
        recipe=recipe,
        division=division,
        layers=layers,
        host=host,
        copies=copies,
        budget=budget,
        speed=speed,
        estimate=plan_estimate(speed, alternatives(device, layers, tp)),
        decisions=decisions,
        findings=findings,
    )
