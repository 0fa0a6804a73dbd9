"""The software release and the recipe for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, TurnedDown
from gemma4cfg.planner.calls import api_key
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.host_memory import all_ranks_peak


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes by which recipes are judged: one copy of weights and of KV on a rank, what each graph adds, what is there
    anyway; and the host's memory with its swap."""

    weights: int
    kv: int
    per_graph: int
    fixed: int
    host: int

    @classmethod
    def of(cls, division: Division, sdk: Sdk, target: Target, layers: int, swap_gib: int) -> RankMemory:
        per_graph = sdk.stack.estimates.code_per_layer.bytes * layers + sdk.stack.estimates.spill_per_graph.bytes
        fixed = target.chip.runtime_bytes_per_core * target.cores_per_logical_core
        return cls(division.weights, division.kv, per_graph, fixed, target.host_bytes + swap_gib * GIB)


def choose_sdk(sdks: Sequence[Sdk], target: Target) -> tuple[Sdk, Decision]:
    """Raises ConfigError where the release does not serve the machine's family."""
    if len(sdks) == 1:
        (sdk,) = sdks
        if target.family not in sdk.families:
            raise ConfigError(
                f"sdk={sdk.name} serves {', '.join(sdk.families)}, not {target.family} (target={target.name}); e.g. sdk=auto"
            )
        return sdk, Decision("sdk", sdk.name, (), Reason.REQUESTED, _pins(sdk))
    found = [sdk for sdk in sdks if target.family in sdk.default_for]
    if not found:
        raise ConfigError(f"target={target.name}: no release under conf/sdk is the default for {target.family}")
    over = tuple(
        TurnedDown(sdk.name, Reason.NOT_REQUESTED if target.family in sdk.families else Reason.NOT_SUPPORTED, "")
        for sdk in sdks
        if sdk is not found[0]
    )
    return found[0], Decision("sdk", found[0].name, over, Reason.SDK_OF_TARGET, _pins(found[0]))


def _pins(sdk: Sdk) -> str:
    return ", ".join(f"{package} {version}" for package, version in sdk.pins.items())


def copies_on_core(recipe: Recipe, prefill_graphs: int) -> int:
    """Copies of weights and KV on the fullest core: one per graph there, or one in all where graphs share them."""
    return 1 if recipe.name == "model_builder" else graphs_on_core(recipe, prefill_graphs)


def graphs_on_core(recipe: Recipe, prefill_graphs: int) -> int:
    """Compiled programs on the fullest core."""
    if recipe.name == "vllm" or recipe.prefill == "host":
        return 1
    return prefill_graphs if recipe.placement == "core_each" else prefill_graphs + 1


def cores_needed(recipe: Recipe, tp: int) -> int:
    """Cores that the recipe takes: one per rank, and trace's second graph on one of its own."""
    return 2 if recipe.placement == "core_each" else tp


def choose_recipe(
    recipes: Sequence[Recipe], sdk: Sdk, target: Target, tp: int, prefill_graphs: int, memory: RankMemory
) -> tuple[Recipe, Decision, tuple[Finding, ...]]:
    """The recipe asked for, checked; or the first of trace, tp_alias, model_builder that does.

    Raises ConfigError for one that does not exist on this release and machine, PlanError where none is left.
    """
    if len(recipes) == 1:
        (recipe,) = recipes
        _check_asked(recipe, sdk, target, tp)
        decision = Decision("recipe", recipe.name, (), Reason.REQUESTED, _detail(recipe, sdk, target))
        return recipe, decision, _unsupported(recipe, sdk, target)
    by_name = {recipe.name: recipe for recipe in recipes}
    if sdk.stack.name == "vllm":
        over = tuple(TurnedDown(name, Reason.OTHER_STACK, "") for name in sorted(by_name) if name != "vllm")
        detail = "vLLM plans, shards and serves by itself; one command"
        return by_name["vllm"], Decision("recipe", "vllm", over, Reason.STACK_OF_TARGET, detail), ()
    turned_down = [TurnedDown("vllm", Reason.OTHER_STACK, "")]
    for name in ("trace", "tp_alias", "model_builder"):
        recipe = by_name[name]
        objection = _objection(recipe, sdk, target, tp, prefill_graphs, memory)
        if objection is None:
            reason = {
                "trace": Reason.ONE_CORE,
                "tp_alias": Reason.ALL_RANKS_COMPILED_FIT,
                "model_builder": Reason.ONE_RANK_COMPILED,
            }[name]
            decision = Decision("recipe", name, tuple(turned_down), reason, _detail(recipe, sdk, target))
            return recipe, decision, _unsupported(recipe, sdk, target)
        turned_down.append(objection)
    reasons = "; ".join(f"{item.choice}: {item.detail or item.reason.sentence}" for item in turned_down)  # type: ignore[attr-defined]
    raise PlanError(f"no recipe does tp={tp} on {target.name} with {sdk.name}: {reasons}")


def _check_asked(recipe: Recipe, sdk: Sdk, target: Target, tp: int) -> None:
    if (recipe.name == "vllm") != (sdk.stack.name == "vllm"):
        raise ConfigError(f"recipe={recipe.name} does not go with sdk={sdk.name}; e.g. recipe=auto")
    if recipe.name == "trace" and tp > 1:
        raise ConfigError(f"recipe=trace makes single-core graphs, tp={tp} needs recipe=model_builder (or tp=1)")
    if sdk.support_of(api_key(recipe), target.family) == "absent":
        there = [key for key in sdk.stack.apis if sdk.support_of(key, target.family) != "absent"]
        raise ConfigError(
            f"recipe={recipe.name}: {sdk.name} has no {api_key(recipe)} on {target.family}; there: {', '.join(there)}"
        )
    if cores_needed(recipe, tp) > target.cores:
        raise ConfigError(
            f"recipe.placement={recipe.placement} needs {cores_needed(recipe, tp)} cores, {target.name} has {target.cores}"
        )


def _objection(
    recipe: Recipe, sdk: Sdk, target: Target, tp: int, prefill_graphs: int, memory: RankMemory
) -> TurnedDown | None:
    support = sdk.support_of(api_key(recipe), target.family)
    if recipe.name == "trace" and tp > 1:
        return TurnedDown("trace", Reason.TOO_FEW_CORES, f"single-core graphs, and the plan has {tp} ranks")
    if support == "absent" or (support == "unsupported" and recipe.name == "tp_alias"):
        source = sdk.stack.apis[api_key(recipe)].source if api_key(recipe) in sdk.stack.apis else ""
        return TurnedDown(
            recipe.name, Reason.NOT_SUPPORTED, f"{api_key(recipe)} on {target.family}: {support}. {source}"
        )
    if recipe.name == "trace":
        return _trace_objection(recipe, target, tp, prefill_graphs, memory)
    if recipe.name == "tp_alias":
        estimates = sdk.stack.estimates
        need = all_ranks_peak(tp, memory.weights, estimates.compiler_peak.bytes) + estimates.host_reserve.bytes
        if need > memory.host:
            detail = (
                f"compiling {tp} ranks at once takes {need:,} bytes of {memory.host:,} with swap, a reserve included"
            )
            return TurnedDown("tp_alias", Reason.DOES_NOT_FIT, detail)
    return None


def _trace_objection(
    recipe: Recipe, target: Target, tp: int, prefill_graphs: int, memory: RankMemory
) -> TurnedDown | None:
    if cores_needed(recipe, tp) > target.cores:
        return TurnedDown("trace", Reason.TOO_FEW_CORES, f"{recipe.placement} takes {cores_needed(recipe, tp)} cores")
    copies = copies_on_core(recipe, prefill_graphs)
    need = copies * (memory.weights + memory.kv + memory.per_graph) + memory.fixed
    if copies > 1 and need > target.hbm_bytes_per_core:
        detail = f"{copies} graphs on a core own {copies} copies: {need:,} bytes of {target.hbm_bytes_per_core:,}"
        return TurnedDown("trace", Reason.DOES_NOT_FIT, detail)
    return None


def _unsupported(recipe: Recipe, sdk: Sdk, target: Target) -> tuple[Finding, ...]:
    if sdk.support_of(api_key(recipe), target.family) != "unsupported":
        return ()
    return (
        Finding(
            "warning",
            "api_unsupported",
            None,
            f"{api_key(recipe)} is present in {sdk.name} and no longer supported: {sdk.stack.apis[api_key(recipe)].source}",
            "recipe=model_builder",
        ),
    )


def _detail(recipe: Recipe, sdk: Sdk, target: Target) -> str:
    parts = [api_key(recipe), f"{sdk.support_of(api_key(recipe), target.family)} in {sdk.name} on {target.family}"]
    if recipe.placement:
        parts.append(recipe.placement)
    if recipe.prefill:
        parts.append(f"prefill on the {recipe.prefill}")
    return ", ".join(parts)
