"""What is wrong with a configuration whatever the machine: values never read, and a checkpoint of another model."""

from __future__ import annotations

from dataclasses import replace

from gemma4cfg.architecture.inventory import EMBEDDING, inventory
from gemma4cfg.architecture.stored import Audit
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding, errors_of
from gemma4cfg.planner.unread import refuse_unread, refuse_unread_by_task


def check(config: Config) -> Audit:
    """What the checkpoint's headers say; a tensor that they lack is taken to be stored as the configuration declares.

    Raises ConfigError for a value that would never be read, PlanError where the checkpoint contradicts the model.
    """
    refuse_unread_by_task(config.overrides, config.settings.task)
    refuse_unread(config.overrides, config.model)
    checked = Audit((), {}, {}, {})
    if config.checkpoint:
        from gemma4cfg.architecture.audit import audit  # not paid for where there is no checkpoint

        checked = audit(config.model, config.checkpoint)
    if errors := errors_of(checked.findings):
        raise PlanError(_other_model(config) + _sentences(errors), checked.findings)
    declared = dict.fromkeys(inventory(config.model), checked.dtypes.get(EMBEDDING, config.model.checkpoint_dtype))
    return replace(checked, dtypes={**declared, **checked.dtypes})


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
