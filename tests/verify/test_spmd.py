"""Every graph is one program for all ranks, whatever hash seed Python has; a rank that is baked in is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from gemma4cfg.runtime.graphs import BufferGraphs
from gemma4cfg.verify.proof import rank_files
from gemma4cfg.verify.spmd import one_program, rank_programs
from gemma4cfg.verify.subject import Subject, subject_of
from tests.verify.shortened import short_config


def ready(model: str, *choices: str) -> tuple[Subject, Path]:
    subject = subject_of(short_config(model, *choices))
    work = Path(tempfile.mkdtemp())
    return subject, rank_files(subject.plan, subject.weights(0, work), work)


@pytest.mark.parametrize(
    ("model", "choices"),
    (
        ("e2b", ("tp=4", "ple.partition=split")),
        ("e4b", ("tp=2", "shapes.kv_layout=ring")),
        ("12b", ("tp=8", "attention.policy=replicate", "shapes.prompt_chunking=false")),
        ("26b-a4b", ("tp=4", "moe.partition=experts")),
        ("26b-a4b", ("tp=2", "moe.partition=intermediate")),
        ("31b", ("tp=12",)),
    ),
    ids=" ".join,
)
def test_one_program_for_all_ranks(model: str, choices: tuple[str, ...]) -> None:
    subject, directory = ready(model, *choices)
    check = one_program(subject.plan, directory)
    assert check.passed, check.detail


def test_the_program_has_the_planned_collectives() -> None:
    subject, directory = ready("26b-a4b", "tp=2", "moe.partition=experts")
    programs = rank_programs(subject.plan, directory, 0)
    for graph in subject.plan.graphs:
        text = programs[graph.name].text
        assert text.count("_c10d_functional.all_reduce.default]") == graph.collectives.all_reduce
        assert text.count("_c10d_functional.all_gather_into_tensor.default]") == graph.collectives.all_gather


def _number(module: BufferGraphs, rank: int) -> None:
    module.model.layers[1].self_attn.scaling = 1.0 + rank


def _constant(module: BufferGraphs, rank: int) -> None:
    module.model.rotary_emb.full_attention_inv_freq += rank


@pytest.mark.parametrize(
    ("edit", "named"),
    (
        (_number, r"aten\.mul\.Tensor\]\(args = \(%matmul\S*, 2\.0\)"),
        (_constant, "the baked value .*full_attention_inv_freq"),
    ),
)
def test_a_rank_constant_is_found_and_named(edit: object, named: str) -> None:
    subject, directory = ready("31b", "tp=2")
    check = one_program(subject.plan, directory, edit)  # type: ignore[arg-type]
    assert not check.passed
    assert check.detail.startswith("rank constant found, rank 0 against rank 1: prefill_12: ")
    assert re.search(named, check.detail), check.detail


def test_graphs_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    subject, directory = ready("e2b", "tp=2")
    (tmp_path / "plan.json").write_text(json.dumps(subject.plan.to_json()))
    found = {
        subprocess.run(
            [sys.executable, __file__, str(tmp_path / "plan.json"), str(directory)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1


def _print_digest(plan_file: str, directory: str) -> None:
    from gemma4cfg.plan.records import Plan

    programs = rank_programs(Plan.from_json(json.loads(Path(plan_file).read_text())), Path(directory), 0)
    for name, program in programs.items():
        print(name, program.text_digest, program.constants_digest)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _print_digest(*sys.argv[1:])
