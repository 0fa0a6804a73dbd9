"""Exported programs, reloaded, give what verify's own ranks give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gemma4cfg.compile.backend import Places
from gemma4cfg.compile.export_backend import CONSTANTS_FILE, TEXT_FILE, ExportBackend, artifact_ranks
from gemma4cfg.compile.exporting import export_graph
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.session import Runner, Session
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.runtime.ranks import forked_ranks
from gemma4cfg.verify.proof import rank_files
from gemma4cfg.verify.subject import Subject, subject_of
from tests.compile.recipes import checkpoint_of
from tests.verify.shortened import SHORT, short_config

STEPS = 4


def exported(plan: Plan, work: Path) -> dict[str, Path]:
    backend, made = ExportBackend(), {}
    for unit in backend.units(plan):
        directory = work / unit.name
        directory.mkdir(parents=True)
        backend.build(plan, unit, (export_graph(plan, unit.graphs[0]),), Places(directory, work / "workdir", None))
        made[unit.name] = directory
    return made


def prompts(one: Subject) -> dict[int, list[int]]:
    return {stream: [2 + (7 * stream + 3 * k) % 100 for k in range(n)] for stream, n in enumerate(one.lengths)}


def logits(one: Subject, ranks: Path, runner: Runner) -> Tensor:
    """[1 + steps, streams, vocabulary], greedy."""
    session = Session(one.plan, HostTables.open(one.plan, ranks), runner)
    results = session.prefill(prompts(one))
    found = [torch.stack(list(results.values()))]  # type: ignore[arg-type]
    for _ in range(STEPS - 1):
        results = session.decode({stream: int(row.argmax()) for stream, row in results.items()})  # type: ignore[union-attr]
        found.append(torch.stack(list(results.values())))  # type: ignore[arg-type]
    return torch.stack(found)


CASES = [
    pytest.param(model, tp, recipe, id=f"{model}-tp{tp}-{recipe}")
    for model in SHORT
    for tp, recipe in ((1, "trace"), (2, "model_builder"))
]


@pytest.mark.parametrize(("model", "tp", "recipe"), [*CASES, pytest.param("12b", 2, "tp_alias", id="12b-tp2-tp_alias")])
def test_reloaded_programs_are_bit_equal_to_the_ranks(
    model: str, tp: int, recipe: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Trace's graphs have a KV each and hand it over, ModelBuilder's share one."""
    choices = (f"tp={tp}", f"verify.steps={STEPS}", "target=inf2.24xlarge", f"recipe={recipe}")
    one = subject_of(short_config(model, *choices))
    ranks = rank_files(one.plan, checkpoint_of(checkpoints, one), tmp_path)
    programs = exported(one.plan, tmp_path / "programs")
    with artifact_ranks(one.plan, programs, ranks) as runner:
        ours = logits(one, ranks, runner)
    with forked_ranks(one.plan, ranks) as group:
        theirs = logits(one, ranks, group)
    assert torch.equal(ours, theirs)
    assert theirs.argmax(-1).unique().numel() > 3, "text that repeats one token would show nothing"
    for directory in programs.values():
        assert {path.name for path in directory.iterdir()} >= {"program.pt2", TEXT_FILE, CONSTANTS_FILE}


def test_a_program_holds_no_weights() -> None:
    one = subject_of(short_config("31b", "tp=1", "verify.steps=2", "target=inf2.24xlarge", "recipe=trace"))
    made = export_graph(one.plan, one.plan.graphs[-1])
    held = [tensor for tensor in made.program.state_dict.values() if not tensor.is_meta]
    held += [tensor for name, tensor in made.program.constants.items() if isinstance(tensor, Tensor)]
    assert sum(tensor.numel() for tensor in held) < 200, "rotary frequencies are all that is left"


def test_an_exported_text_does_not_depend_on_the_process() -> None:
    """Torch numbers groups, and transformers keeps layer types in sets."""
    one = subject_of(short_config("12b", "tp=2", "verify.steps=2")).plan
    first, second = (export_graph(one, one.graphs[-1], rank) for rank in (0, 1))
    assert first.text == second.text
    assert "'ranks'" in first.text or ", ranks)" in first.text
    assert first.constants_digest == second.constants_digest


def test_graphs_that_share_no_state_cannot_go_on_where_no_hand_over_is(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    choices = ("tp=1", f"verify.steps={STEPS}", "recipe=trace", "shapes.prompt_chunking=true")
    one = subject_of(short_config("12b", *choices))
    ranks = rank_files(one.plan, checkpoint_of(checkpoints, one), tmp_path)
    programs = exported(one.plan, tmp_path / "programs")
    with artifact_ranks(one.plan, programs, ranks) as runner:
        session = Session(one.plan, HostTables.open(one.plan, ranks), runner)
        session.prefill({0: [3, 4, 5]})
        session.decode({0: 6})
        with pytest.raises(
            Exception, match="stream 0 was last run by decode, and this plan's calls hand no K/V"
        ) as raised:
            session.prefill({0: [7]})
    assert ConfigError.__name__ in str(raised.value) or isinstance(raised.value, ConfigError)
