"""Every recipe's calls against a recording stand-in: what is called is what the plan says, argument by argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4cfg.compile.carry_out import BESIDE, CarryOut
from gemma4cfg.plan.records import Plan
from tests.compile.recipes import RECIPES, checkpoint_of, subject
from tests.compile.recorded import Said, Seen
from tests.compile.sdk_stand_in import Recorder
from tests.verify.shortened import SHORT

CASES = [
    pytest.param(model, tp, recipe, id=f"{model}-tp{tp}-{recipe}")
    for model in SHORT
    for tp in (1, 2, 4, 8)
    for recipe in RECIPES
    if (tp == 1) == recipe.startswith("trace") or recipe.startswith("model_builder")
]


def carried_out(plan: Plan, checkpoint: Path, work: Path) -> tuple[list[int], Path]:
    """The plan's calls that are made once, made; their indices, and the rank files' directory."""
    artifact, workdir, rank_files = work / "artifact", work / "work", work / "ranks"
    artifact.mkdir()
    once = [index for index, call in enumerate(plan.calls) if "per" not in call.args]
    CarryOut(plan, lambda path: artifact / path, workdir, rank_files, str(checkpoint)).run(once)
    return once, rank_files


@pytest.mark.parametrize(("model", "tp", "recipe"), CASES)
def test_what_is_called_is_what_the_plan_says(
    model: str, tp: int, recipe: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    one = subject(model, tp, recipe)
    checkpoint = checkpoint_of(checkpoints, one)
    once, rank_files = carried_out(one.plan, checkpoint, tmp_path)
    numbers = {index: number for number, index in enumerate(once)}
    seen = Seen(recorder.calls, tmp_path / "artifact", tmp_path / "work")
    said = Said(one.plan, rank_files, checkpoint, numbers)
    assert [api for api, _, _ in recorder.calls] == [one.plan.calls[index].api for index in once]
    for (_, given, _), index in zip(recorder.calls, once, strict=True):
        call = one.plan.calls[index]
        expected = {
            name: said.plain(name, value) for name, value in call.args.items() if name not in BESIDE or name == "self"
        }
        assert seen.plain(given) == expected, f"call {index}, {call.api}"
