"""The planner: one configuration in, one plan out, or a message that says what would work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma4cfg.architecture.inventory import EMBEDDING, inventory
from gemma4cfg.architecture.stored import Audit
from gemma4cfg.config.schema import Config
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding, errors_of
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Plan, TurnedDown
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import Draft, draft_plan
from gemma4cfg.planner.finish import finish_plan
from gemma4cfg.planner.fit import does_not_fit, figures
from gemma4cfg.planner.offload import check_offload
from gemma4cfg.planner.unread import refuse_unread, refuse_unread_by_task


def build_plan(config: Config) -> Plan:
    """The plan of a configuration. Pure: equal configurations give equal plans.

    Raises ConfigError for values that cannot be, PlanError (with findings) where the checkpoint contradicts the model or
    the plan does not fit, saying what would.
    """
    refuse_unread_by_task(config.overrides, config.settings.task)
    refuse_unread(config.overrides, config.model)
    check_offload(config.settings.offload, config.model)
    checked = _audit(config)
    if errors := errors_of(checked.findings):
        raise PlanError(_other_model(config) + _sentences(errors), checked.findings)
    draft, decision = _choose_target(config, checked.dtypes)
    return finish_plan(config, draft, decision, checked)


def _audit(config: Config) -> Audit:
    """What the headers say; a tensor that they lack is taken to be stored as the model's configuration declares."""
    checked = Audit((), {}, {}, {})
    if config.checkpoint:
        from gemma4cfg.architecture.audit import audit  # not paid for where there is no checkpoint

        checked = audit(config.model, config.checkpoint)
    declared = dict.fromkeys(inventory(config.model), checked.dtypes.get(EMBEDDING, config.model.checkpoint_dtype))
    return replace(checked, dtypes={**declared, **checked.dtypes})


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
                raise _too_few_cores(config, target)
            turned_down.append(TurnedDown(target.name, Reason.TOO_FEW_CORES, f"{target.cores} cores"))
            continue
        draft = draft_plan(config, target, dtypes, divide)
        if draft.fits:
            larger = (TurnedDown(other.name, Reason.LARGER_TARGET, "") for other in config.targets[position + 1 :])
            reason = Reason.REQUESTED if asked else Reason.SMALLEST_TARGET
            return draft, Decision("target", target.name, (*turned_down, *larger), reason, _machine(target))
        too_large.append(draft)
        turned_down.append(TurnedDown(target.name, Reason.DOES_NOT_FIT, figures(draft)))
    if not too_large:
        most = max(target.cores for target in config.targets)
        raise ConfigError(f"tp={config.settings.tp}: no known machine has so many cores (at most {most})")
    raise does_not_fit(config, max(too_large, key=lambda draft: draft.target.hbm_bytes_per_core), asked, dtypes)


def _too_few_cores(config: Config, target: Target) -> ConfigError:
    tp = config.settings.tp
    enough = [other.name for other in config.known_targets if other.family == target.family and other.cores >= tp]
    larger = f"; for tp={tp}: target={enough[0]}" if enough else ""
    return ConfigError(
        f"tp={tp}: {target.name} has {target.cores} cores, one a rank{larger}; here: tp={target.cores} or less"
    )


def _machine(target: Target) -> str:
    price = target.price.on_demand
    cost = f", {price.usd_per_hour} $/h on demand ({price.date})" if price else ", no price known"
    return (
        f"{target.chips} x {target.chip.name}, {target.cores} cores of {target.hbm_bytes_per_core / 2**30:.0f} GiB, "
        f"host {target.host_memory_gib} GiB{cost}"
    )


def _other_model(config: Config) -> str:
    """A first line for a checkpoint that by its own config.json is of another model."""
    from gemma4cfg.architecture.huggingface import architecture_from_config

    assert config.checkpoint is not None
    try:
        own = architecture_from_config(config.checkpoint.config)
    except ConfigError:
        return ""
    name = next((name for name, known in config.published.items() if own == known), "custom")
    return "" if own == config.model else f"the checkpoint's config.json is of {name}, not of {config.model.name}:\n"


def _sentences(findings: tuple[Finding, ...]) -> str:
    return "\n".join(f"{finding.message}. {finding.fix}" if finding.fix else finding.message for finding in findings)
