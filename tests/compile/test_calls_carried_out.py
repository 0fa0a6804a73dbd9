"""Every recipe's calls against a recording stand-in: what is called is what the plan says, and what a person wrote by hand,
argument by argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4cfg.compile.carry_out import BESIDE, CarryOut
from gemma4cfg.plan.records import Plan
from tests.compile.recipes import RECIPES, checkpoint_of, subject
from tests.compile.recorded import Said, Seen
from tests.compile.sdk_stand_in import Recorder
from tests.compile.told import Told
from tests.compile.transcripts import TRANSCRIPTS
from tests.verify.shortened import SHORT

CASES = [
    pytest.param(model, tp, recipe, id=f"{model}-tp{tp}-{recipe}")
    for model in SHORT
    for tp in (1, 2, 4, 8)
    for recipe in RECIPES
    if (tp == 1) == recipe.startswith("trace") or recipe.startswith("model_builder")
]


def carried_out(plan: Plan, checkpoint: Path, work: Path) -> list[int]:
    """The plan's calls that are made once, made; their indices. Programs are in ``artifact``, rank files in ``ranks``, and
    the compiler's directory is ``work``."""
    artifact = work / "artifact"
    artifact.mkdir()
    once = [index for index, call in enumerate(plan.calls) if "per" not in call.args]
    CarryOut(plan, lambda path: artifact / path, work / "work", work / "ranks", str(checkpoint)).run(once)
    return once


def check_against_plan(plan: Plan, recorder: Recorder, once: list[int], checkpoint: Path, work: Path) -> None:
    """What was recorded is ``plan.calls``, argument by argument."""
    said = Said(plan, work / "ranks", checkpoint, {index: number for number, index in enumerate(once)})
    seen = Seen(recorder.calls, work / "artifact", work / "work")
    assert [api for api, _, _ in recorder.calls] == [plan.calls[index].api for index in once]
    for (_, given, _), index in zip(recorder.calls, once, strict=True):
        call = plan.calls[index]
        expected = {
            name: said.plain(name, value) for name, value in call.args.items() if name not in BESIDE or name == "self"
        }
        assert seen.plain(given) == expected, f"call {index}, {call.api}"


@pytest.mark.parametrize(("model", "tp", "recipe"), CASES)
def test_what_is_called_is_what_the_plan_says(
    model: str, tp: int, recipe: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    one = subject(model, tp, recipe)
    checkpoint = checkpoint_of(checkpoints, one)
    once = carried_out(one.plan, checkpoint, tmp_path)
    check_against_plan(one.plan, recorder, once, checkpoint, tmp_path)


@pytest.mark.parametrize("recipe", TRANSCRIPTS)
def test_what_is_called_is_what_was_written_by_hand(
    recipe: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    tp, transcript = TRANSCRIPTS[recipe]
    one = subject("12b", tp, recipe)
    checkpoint = checkpoint_of(checkpoints, one)
    once = carried_out(one.plan, checkpoint, tmp_path)
    assert Told(one.plan, recorder.calls, tmp_path, checkpoint).lines() == transcript.splitlines()
    check_against_plan(one.plan, recorder, once, checkpoint, tmp_path)


def test_every_recipe_is_written_by_hand() -> None:
    assert TRANSCRIPTS.keys() == RECIPES.keys()
