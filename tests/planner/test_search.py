"""Objectives: the choice is that of brute force over the whole space, and every loser has its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any, get_args

import pytest
from rich.console import Console

from gemma4cfg import UserError, build_plan, load_config
from gemma4cfg.config.catalog import choices, every_choice
from gemma4cfg.config.schema import Config, OffloadChoice, Policy
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.planner import build, fit
from gemma4cfg.planner.check import check
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import draft_plan
from gemma4cfg.planner.search import SearchResult, search_plans
from gemma4cfg.views.search import show_search

DEGREES = (1, 2, 4, 8, 12, 16, 24, 32)
MINIMISE = ("latency", "cost", "memory")


def search(*words: str) -> SearchResult:
    return search_plans(load_config(words))


def space(model: str) -> Iterator[tuple[str, Config]]:
    """The words and the configuration of every combination, the most preferred first."""
    base = load_config([f"model={model}"])
    offloads = dict(zip(choices("offload"), every_choice(OffloadChoice, "offload"), strict=True))
    named = ["host", *(name for name in offloads if name != "host")]
    experts = ("intermediate", "experts") if base.model.moe else (None,)
    gates = ("replicate", "split") if base.model.ple else (None,)
    for target, tp, policy, moe, head, ple, offload in product(
        base.targets, DEGREES, get_args(Policy), experts, ("split", "replicate"), gates, named
    ):
        words = [f"target={target.name}", f"tp={tp}", f"attention.policy={policy}"]
        words += [f"moe.partition={moe}"] if moe else []
        words += [f"lm_head.partition={head}"]
        words += [f"ple.partition={ple}"] if ple else []
        words += [f"offload={offload}"]
        old = base.settings
        settings = replace(
            old,
            tp=tp,
            attention=replace(old.attention, policy=policy),
            moe=replace(old.moe, partition=moe or "auto"),
            lm_head=replace(old.lm_head, partition=head),
            ple=replace(old.ple, partition=ple or "auto"),
            offload=offloads[offload],
        )
        yield " ".join(words), replace(base, settings=settings, targets=(target,))


def measured(found: Any, config: Config) -> dict[str, float]:
    """Of a plan or a draft. ``trace`` has its second graph on a core of its own."""
    low = found.estimate.decode_tokens_per_s.low
    price = config.targets[0].price.on_demand
    recipe = found.recipe if isinstance(found.recipe, str) else found.recipe.name
    cores = 2 if recipe == "trace" else config.settings.tp
    return {
        "latency": 1e3 * config.settings.shapes.batch / low,
        "cost": price.usd_per_hour / 3600 / low * 1e6 if price else inf,
        "memory": cores * found.budget.hbm_per_rank.total,
    }


def rounded(figures: dict[str, float], minimise: str) -> tuple[float, ...]:
    """What is minimised, then the rest."""
    ordered = (figures[minimise], *(figures[name] for name in MINIMISE if name != minimise))
    return tuple(value if value == inf else float(f"{value:.6g}") if value < 1e6 else value for value in ordered)


@pytest.mark.parametrize("model", choices("model"))
def test_the_choice_is_that_of_brute_force(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All combinations through ``build_plan``, which knows nothing of the search. So that this takes seconds, plans are not
    written down and refusals do not look for what would fit: neither changes what fits and what it comes to."""
    with monkeypatch.context() as patch:
        patch.setattr(build, "finish_plan", lambda _config, draft, *_: draft)
        patch.setattr(fit, "_what_would_fit", lambda *_: ["nothing was looked for"])
        fitting = []
        count = 0
        for words, config in space(model):
            count += 1
            try:
                fitting.append((words, measured(build_plan(config), config)))
            except UserError:
                continue
    for minimise in MINIMISE:
        best_words, best = min(fitting, key=lambda item: rounded(item[1], minimise))
        asked = (f"model={model}", "tp=auto", "target=auto", f"objective={minimise}")
        if best[minimise] == inf:
            with pytest.raises(UserError, match="no price is known"):
                search(*asked)
            continue
        found = search(*asked)
        assert found.combinations == count
        assert found.best.overrides == best_words
        assert rounded(best, minimise)[0] == pytest.approx(
            {
                "latency": found.best.figures.latency_ms,
                "cost": found.best.figures.usd_per_million_tokens,
                "memory": found.best.figures.device_bytes,
            }[minimise]
        )
        alone = build_plan(load_config([f"model={model}", *best_words.split()]))
        assert (alone.plan_id, alone.estimate) == (found.plan.plan_id, found.plan.estimate)
        front = {choice.overrides for choice in found.front}
        figures = dict(fitting)
        for words in front:
            mine = rounded(figures[words], "latency")
            assert not any(
                all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
                for other in (rounded(it, "latency") for it in figures.values())
            ), words
        shown = [rounded(figures[words], "latency") for words in front]
        for words, measures in fitting:
            mine = rounded(measures, "latency")
            left_out = minimise == "cost" and measures["cost"] == inf
            assert left_out or any(all(a <= b for a, b in zip(it, mine, strict=True)) for it in shown), words


def test_plans_of_a_small_space_in_full() -> None:
    """Without any short cut: every plan of one machine written down."""
    figures = {}
    for words, config in space("12b"):
        if words.startswith("target=inf2.8xlarge ") and "attention.policy=auto" in words:
            try:
                figures[words] = measured(build_plan(config), config)
            except UserError:
                continue
    found = search("model=12b", "tp=auto", "target=inf2.8xlarge", "attention.policy=auto", "objective=cost")
    best = min(figures, key=lambda words: rounded(figures[words], "cost"))
    assert f"target=inf2.8xlarge {found.best.overrides}".split()[:2] == best.split()[:2]
    assert found.best.figures.usd_per_million_tokens == pytest.approx(figures[best]["cost"], rel=1e-5)


def test_build_plan_searches() -> None:
    config = load_config(["model=12b", "tp=auto", "objective=memory"])
    found = search_plans(config)
    assert found.config.search is None
    assert build_plan(config).plan_id == found.plan.plan_id == build_plan(found.config).plan_id


def test_what_is_given_is_kept() -> None:
    found = search(
        "model=e2b", "tp=2", "target=inf2.24xlarge", "offload=device", "lm_head.partition=split", "objective=memory"
    )
    assert (found.plan.tp, found.plan.target) == (2, "inf2.24xlarge")
    assert {part.what for part in found.plan.host} == set()
    assert not any(key in found.best.overrides for key in ("tp=", "target=", "offload=", "lm_head"))


def test_the_search_shows_its_front_and_what_its_speeds_count() -> None:
    """Collectives among it, as of every estimate: ``test_budget`` recounts one."""
    found = search("model=e2b", "target=inf2.xlarge", "tp=2", "objective=latency")
    console = Console(record=True, width=160)
    show_search(found.to_json(), console)
    lines = [line.strip("* ") for line in console.export_text(clear=False).splitlines()]
    assert len(found.front) > 1
    assert all(any(line.startswith(choice.overrides) for line in lines) for choice in found.front)
    assert "bytes read, collectives, and what crosses between host and device" in console.export_text()
    counted = found.plan.estimate.basis.partition("prefill")[0]
    assert all(word in counted for word in ("bytes a step", "collectives of", "bytes across"))


def test_a_shape_moves_the_choice() -> None:
    """A short cache fits where a long one does not."""
    words = ("model=12b", "tp=auto", "objective=memory", "shapes.batch=8")
    short, long = search(*words, "shapes.kv_length=512"), search(*words, "shapes.kv_length=32768")
    assert short.best.figures.device_bytes < long.best.figures.device_bytes
    assert short.best.overrides != long.best.overrides


def test_a_ceiling_on_the_price() -> None:
    words = ("model=e2b", "tp=auto", "objective=latency")
    free, bound = search(*words), search(*words, "objective.max_usd_per_hour=1")
    assert free.best.figures.usd_per_hour is None, "the fastest machine has no known price"
    assert bound.plan.target == "inf2.xlarge"
    reasons = {loss.choice: loss.reason for loss in bound.lost}
    assert reasons["target=inf2.8xlarge"] == Reason.ABOVE_PRICE_CEILING
    assert reasons["target=trn2.48xlarge"] == Reason.PRICE_UNKNOWN


def test_a_floor_on_speed() -> None:
    words = ("model=31b", "tp=auto", "objective=memory")
    slow, fast = search(*words), search(*words, "objective.min_tokens_per_s=50")
    assert slow.best.figures.tokens_per_s < 50 <= fast.best.figures.tokens_per_s
    assert slow.best.figures.device_bytes < fast.best.figures.device_bytes
    assert {loss.choice: loss.reason for loss in fast.lost}["tp=4"] == Reason.BELOW_SPEED_FLOOR


def test_unknown_prices_drop_out_with_a_finding() -> None:
    found = search("model=e2b", "tp=auto", "target=auto", "objective=cost")
    finding = next(it for it in found.plan.findings if it.code == "price_unknown")
    assert finding.severity == "warning"
    for name in ("inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"):
        assert name in finding.message
        assert {loss.choice: loss.reason for loss in found.lost}[f"target={name}"] == Reason.PRICE_UNKNOWN
    assert "inf2.8xlarge" not in finding.message
    assert all(choice.figures.usd_per_million_tokens is not None for choice in found.front)


def test_a_price_that_is_told_counts() -> None:
    price = "target.price.on_demand={usd_per_hour: 6.49, region: null, date: null, source: a quote}"
    found = search("model=31b", "tp=auto", "target=inf2.24xlarge", price, "objective=cost")
    assert (found.plan.tp, found.best.figures.usd_per_hour) == (12, 6.49)
    assert not any(it.code == "price_unknown" for it in found.plan.findings)


def test_every_value_not_chosen_has_a_reason() -> None:
    found = search("model=26b-a4b", "tp=auto", "objective=latency")
    named = [loss.choice.partition("=")[0] for loss in found.lost]
    assert {key: named.count(key) for key in dict.fromkeys(named)} == {
        "target": 8,
        "tp": 7,
        "attention.policy": 4,
        "moe.partition": 1,
        "lm_head.partition": 1,
        "offload": 3,
    }
    assert all(loss.reason in set(Reason) for loss in found.lost)
    told = {loss.choice: (loss.reason, loss.detail) for loss in found.lost}
    assert told["tp=1"][0] == Reason.DOES_NOT_FIT and "available" in told["tp=1"][1]
    assert told["attention.policy=split"][0] == Reason.NOT_POSSIBLE
    assert told["attention.policy=pad"][0] == Reason.SAME_PLAN


def test_decisions_say_that_the_search_took_them() -> None:
    plan = search("model=e2b", "tp=auto", "objective=latency").plan
    decisions = {decision.id: decision for decision in plan.decisions}
    for name in ("target", "objective", "ple.partition", "lm_head.partition"):
        assert decisions[name].reason == Reason.BEST_BY_OBJECTIVE, name
    assert "tp=32" in decisions["objective"].choice
    kept = search("model=e2b", "tp=auto", "target=inf2.xlarge", "ple.partition=split", "objective=latency").plan
    assert {it.id: it.reason for it in kept.decisions}["target"] == Reason.REQUESTED
    assert {it.id: it.reason for it in kept.decisions}["ple.partition"] == Reason.REQUESTED


def test_a_machine_that_serves_by_itself() -> None:
    found = search("model=e2b", "target=g5g.2xlarge", "objective=memory")
    assert found.plan.recipe == "vllm"
    assert {loss.reason for loss in found.lost if loss.choice.startswith("offload=")} == {Reason.OTHER_STACK}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["tp=auto"], "tp=auto: by what? Add objective=cost|latency|memory", id="auto-without-objective"),
        pytest.param(["objective.min_tokens_per_s=5"], "min_tokens_per_s is never read", id="floor-without-objective"),
        pytest.param(["objective=speed"], "objective=speed: no such choice", id="objective"),
        pytest.param(["objective=cost", "objective.max_usd_per_hour=-1"], "must be at least 0", id="negative"),
        pytest.param(["objective=memory", "tp=64", "target=inf2.xlarge"], "the machine has fewer cores", id="cores"),
        pytest.param(["objective=memory", "shapes.kv_length=300000"], "31b has positions up to 262144", id="one-cause"),
        pytest.param(
            ["objective=latency", "tp=auto", "objective.min_tokens_per_s=1e6"], "fewer tokens a second", id="floor"
        ),
        pytest.param(
            ["objective=cost", "objective.max_usd_per_hour=nan"], "max_usd_per_hour=nan: expected a fin", id="nan"
        ),
        pytest.param(
            ["objective=cost", "objective.min_tokens_per_s=inf"], "min_tokens_per_s=inf: expected a fin", id="inf"
        ),
        pytest.param(
            ["objective=memory", "tp=2", "target=inf2.xlarge", "offload=host", "lm_head.partition=split"],
            "it does not fit, nearest attention.policy=auto: weights alone are 28.6 GiB a core",
            id="fit",
        ),
    ],
)
def test_nothing_is_left(words: list[str], told: str) -> None:
    with pytest.raises(UserError) as raised:
        build_plan(load_config(["model=31b", *words]))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        pytest.param(["objective=cost"], "objective.min_tokens_per_s=5000", id="floor"),
        pytest.param(["objective=latency"], "objective.max_usd_per_hour=0.5", id="ceiling"),
        pytest.param(["objective=memory", "objective.max_usd_per_hour=1"], "objective.min_tokens_per_s=90", id="both"),
    ],
)
def test_a_bound_that_leaves_nothing(words: list[str], asked: str) -> None:
    """Key and value, how many there were, and the nearest bound, which is as far as one has to go."""
    opened = ["model=e2b", "tp=auto", "target=auto", "offload=host"]
    key, _, value = asked.partition("=")
    with pytest.raises(UserError) as raised:
        search(*opened, *words, asked)
    assert asked in str(raised.value)
    assert f"nothing is left of {search(*opened, *words).combinations:,} combinations" in str(raised.value)
    fix = raised.value.findings[0].fix
    nearest = next(word for word in fix.split() if word.startswith(f"{key}="))
    assert search(*opened, *words, nearest).fitting > 0
    least = float(nearest.partition("=")[2])
    with pytest.raises(UserError):
        search(*opened, *words, f"{key}={least + (0.001 if float(value) > least else -0.001)}")


def test_of_what_does_not_fit_the_nearest_is_told() -> None:
    """Of all on one machine, the one with the fewest bytes too many: recounted without a search."""
    found = search("model=31b", "tp=auto", "objective=memory")
    told = {loss.choice: loss for loss in found.lost}["target=inf2.xlarge"]
    over = {}
    for words, config in space("31b"):
        if words.startswith("target=inf2.xlarge ") and config.settings.tp <= 2:
            try:
                draft = draft_plan(config, config.targets[0], check(config).dtypes, Divider(config))
            except UserError:
                continue
            over[words] = draft.budget.hbm_per_rank.total - draft.budget.hbm_per_rank.limit
    assert told.reason == Reason.DOES_NOT_FIT
    assert over[told.detail.partition(": ")[0]] == min(over.values())
