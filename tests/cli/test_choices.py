"""Every choice of every group is composed and planned through the real command line. Nothing here names a choice that
has to be kept up to date: a new file is a new job, and one that does not plan fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.config.catalog import choices, conf_directory, every_choice, read_choice
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.planner.calls import api_key
from tests.checkpoints import published_config, write_checkpoint
from tests.cli.runs import run

Command = tuple[str, ...]

FACTS = {"chip": "target", "stack": "sdk", "failures": "stack", "operators": "stack"}
"""Directories that are no groups, and where their files are named."""


def groups() -> list[str]:
    """Groups as conf/config.yaml lists them, Hydra's own left out."""
    defaults = yaml.safe_load((conf_directory() / "config.yaml").read_text())["defaults"]
    named = [name for entry in defaults if isinstance(entry, dict) for name in entry]
    return [name for name in named if not name.startswith("override ")]


def stems(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))


def machine_of(family: str) -> str:
    machines: list[str] = [target.name for target in every_choice(Target, "target") if target.family == family]
    return machines[0]


def model_commands() -> Iterator[Command]:
    yield (f"model={','.join(choices('model'))}", "tp=8")
    yield ("model=auto", "checkpoint=checkpoint")


def sdk_commands() -> Iterator[Command]:
    """Each release, and auto, on each family that it serves."""
    served: dict[tuple[str, ...], list[str]] = {}
    for family in sorted({target.family for target in every_choice(Target, "target")}):
        releases = tuple(sdk.name for sdk in every_choice(Sdk, "sdk") if family in sdk.families)
        served.setdefault(releases, []).append(machine_of(family))
    for releases, machines in served.items():
        yield ("model=e2b", f"target={','.join(machines)}", f"sdk={','.join(['auto', *releases])}")


def recipe_commands() -> Iterator[Command]:
    """Each recipe on a release and machine that have its interface."""
    places: dict[tuple[str, str], list[str]] = {}
    for recipe in every_choice(Recipe, "recipe"):
        key = api_key(recipe)
        release, family = next(
            (sdk.name, family)
            for sdk in every_choice(Sdk, "sdk")
            if key in sdk.stack.apis
            for family, support in sdk.stack.apis[key].support.items()
            if support != "absent"
        )
        places.setdefault((release, machine_of(family)), []).append(recipe.name)
    for (release, machine), names in places.items():
        yield ("model=e2b", f"target={machine}", f"sdk={release}", f"recipe={','.join([*names, 'auto'])}")


def plain_commands(group: str) -> Iterator[Command]:
    """The smallest model on the machine that the planner chooses."""
    yield ("model=e2b", f"{group}={','.join(stems(group))}")


def experiment_commands() -> Iterator[Command]:
    yield (f"experiment={','.join(stems('experiment'))}",)


COMMANDS: dict[str, Callable[[], Iterator[Command]]] = {
    "model": model_commands,
    "sdk": sdk_commands,
    "recipe": recipe_commands,
    "experiment": experiment_commands,
}
"""Groups whose choices need company; of the others each choice goes with the defaults."""


def test_every_directory_is_a_group_or_named_by_another() -> None:
    directories = {path.name for path in conf_directory().iterdir() if path.is_dir()}
    assert directories == {*groups(), *FACTS}
    for facts, where in FACTS.items():
        named = (read_choice(where, name)[facts] for name in choices(where))
        assert {name for name in named if isinstance(name, str)} == set(stems(facts))  # else the facts stand there


@pytest.mark.parametrize("group", groups())
def test_every_choice_plans(group: str, tmp_path: Path) -> None:
    config = published_config("e2b")
    held = inventory(architecture_from_config(config))
    stored = {name: (fact.shape, "BF16") for name, fact in held.items() if fact.status == "required"}
    write_checkpoint(tmp_path / "checkpoint", config, stored)
    planned = set()
    for command in COMMANDS.get(group, lambda: plain_commands(group))():
        done = run("-m", *command, cwd=tmp_path)
        assert (done.exit_code, "Traceback" in done.err) == (0, False), done.err
        for job in done.jobs:
            chosen = dict(word.split("=") for word in job.overrides)[group]
            assert job.result is not None
            assert job.result["exit_code"] == 0, f"{' '.join(job.overrides)}: {job.told}"
            assert job.plan is not None
            _holds(group, chosen, job.plan)
            planned.add(chosen)
    assert planned == set(stems(group))


def _holds(group: str, chosen: str, plan: dict[str, Any]) -> None:
    """The plan is of what was chosen."""
    if group in ("model", "target", "sdk", "recipe") and chosen != "auto":
        assert plan[group] == chosen
    elif group == "shapes":
        asked = read_choice(group, chosen)
        assert all(plan["shapes"][key] == value for key, value in asked.items() if value != "auto")
    elif group == "offload":
        homes = {decision["id"]: decision["choice"] for decision in plan["decisions"]}
        assert all(homes[f"offload.{key}"] == value for key, value in read_choice(group, chosen).items())
    elif group == "experiment":
        for entry in read_choice(group, chosen)["defaults"]:
            for word, choice in entry.items():
                if (key := word.removeprefix("override /")) in plan and key != "shapes":
                    assert plan[key] == choice
