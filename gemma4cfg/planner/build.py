"""The planner: one configuration in, one plan out, or a message that says what would work."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4cfg.config.schema import Config
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Plan, TurnedDown
from gemma4cfg.planner.check import check
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import Draft, draft_plan
from gemma4cfg.planner.finish import finish_plan
from gemma4cfg.planner.fit import does_not_fit, figures
from gemma4cfg.planner.machine import describe_machine
from gemma4cfg.planner.offload import check_offload


def build_plan(config: Config) -> Plan:
    """The plan of a configuration. Pure: equal configurations give equal plans.

    Raises ConfigError for values that cannot be, PlanError (with findings) where the checkpoint contradicts the model or
    the plan does not fit, saying what would. With an objective, the best plan of its space.
    """
    if config.search is not None:
        from gemma4cfg.planner.search import search_plans  # not paid for where there is nothing to search

        return search_plans(config).plan
    checked = check(config)
    check_offload(config.settings.offload, config.model)
    draft, decision = _choose_target(config, checked.dtypes)
    return finish_plan(config, draft, decision, checked)


def _choose_target(config: Config, dtypes: Mapping[str, str]) -> tuple[Draft, Decision]:
    """The draft on the machine asked for, or on the first candidate where it fits.

    Raises ConfigError where no machine has the cores, PlanError where it fits none.
    """
    asked, divide = len(config.targets) == 1, Divider(config)
    turned_down: list[TurnedDown] = []
    too_large: list[Draft] = []
    for position, target in enumerate(config.targets):
        if config.settings.tp > target.cores:
            if asked:
                raise too_few_cores(config, target)
            turned_down.append(TurnedDown(target.name, Reason.TOO_FEW_CORES, f"{target.cores} cores"))
            continue
        draft = draft_plan(config, target, dtypes, divide)
        if draft.fits:
            larger = (TurnedDown(other.name, Reason.LARGER_TARGET, "") for other in config.targets[position + 1 :])
            reason = Reason.REQUESTED if asked else Reason.SMALLEST_TARGET
            return draft, Decision("target", target.name, (*turned_down, *larger), reason, describe_machine(target))
        too_large.append(draft)
        turned_down.append(TurnedDown(target.name, Reason.DOES_NOT_FIT, figures(draft)))
    if not too_large:
        most = max(target.cores for target in config.targets)
        raise ConfigError(f"tp={config.settings.tp}: no known machine has so many cores (at most {most})")
    raise does_not_fit(config, max(too_large, key=lambda draft: draft.target.hbm_bytes_per_core), asked, dtypes)


def too_few_cores(config: Config, target: Target) -> ConfigError:
    """The refusal of more ranks than ``target`` has cores."""
    tp = config.settings.tp
    enough = [other.name for other in config.known_targets if other.family == target.family and other.cores >= tp]
    larger = f"; for tp={tp}: target={enough[0]}" if enough else ""
    return ConfigError(
        f"tp={tp}: {target.name} has {target.cores} cores, one a rank{larger}; here: tp={target.cores} or less"
    )
