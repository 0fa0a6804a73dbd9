"""``compile.py``: what it calls is what the plan says, and a person can read it."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
import transformers

from gemma4cfg.compile.carry_out import BESIDE
from gemma4cfg.compile.script import render
from gemma4cfg.compile.seeding import seed
from gemma4cfg.plan.encode import identities
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import ParameterGraph
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.runtime.processes import RankProcesses
from gemma4cfg.runtime.rank_files import RANK_FILE, load_rank
from gemma4cfg.runtime.weights import zero_weights
from gemma4cfg.verify.proof import rank_files
from sharding.collectives import Collectives
from tests.compile.recipes import RECIPES, checkpoint_of, subject
from tests.compile.recorded import Said, Seen
from tests.compile.sdk_stand_in import Recorder


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_script_makes_the_plans_calls(
    recipe: str,
    recorder: Recorder,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = subject("12b", 1 if recipe.startswith("trace") else 2, recipe)
    checkpoint, output = checkpoint_of(checkpoints, one), tmp_path / "made"
    script = tmp_path / "compile.py"
    script.write_text(render(one.plan))
    (tmp_path / "plan.json").write_text(json.dumps(one.plan.to_json()))
    monkeypatch.setattr(sys, "argv", [str(script), "--checkpoint", str(checkpoint), "--output", str(output)])
    runpy.run_path(str(script), run_name="__main__")
    once = [index for index, call in enumerate(one.plan.calls) if "per" not in call.args]
    assert [api for api, _, _ in recorder.calls] == [one.plan.calls[index].api for index in once]
    said = Said(one.plan, output / one.plan.placement_id, checkpoint, {index: n for n, index in enumerate(once)})
    seen = Seen(recorder.calls, output, output)
    for (api, given, _), index in zip(recorder.calls, once, strict=True):
        args = one.plan.calls[index].args
        expected = {
            name: said.plain(name, value) for name, value in args.items() if name not in BESIDE or name == "self"
        }
        found = seen.plain(given)
        if api == "sharding.reshard":
            found["destination"] = str(output / one.plan.placement_id)
        assert found == expected, f"call {index}, {api}"


def test_it_reads_like_a_script() -> None:
    text = render(subject("12b", 2, "model_builder_v2").plan)
    ast.parse(text)
    assert "with call_0:\n        call_1 = neuronx_distributed.ModelBuilder(model=parts.module())\n" in text
    assert "call_1.trace(kwargs=parts.named_inputs('decode'), tag='decode')" in text
    assert max(map(len, text.splitlines())) < 160


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("trace", "parts.copy_state(calls[5], calls[8])  # prefill_20 to decode"),
        ("tp_alias_device", "rank=1)  # prefill_20 to decode"),
        ("tp_alias_host", "parts.seed_state(call_6, calls[3], rank=1)"),
    ],
)
def test_what_every_prompt_asks_for_is_a_function(recipe: str, line: str) -> None:
    text = render(subject("12b", 1 if recipe == "trace" else 2, recipe).plan)
    assert (
        line.replace("prefill_20", subject("12b", 1, "trace").plan.graphs[0].name)
        in text.partition("def after_prompt(")[2]
    )


class Seeded:
    """One rank whose KV came from the host; ``run`` is a call of its decode graph."""

    def __init__(self, plan: Plan, files: Path, rank: int, collectives: Collectives, cache: object) -> None:
        self.module = ParameterGraph(plan, plan.graphs[-1], collectives)
        load_rank(self.module, files / RANK_FILE.format(rank=rank), tuple(f"states.{n}" for n in range(99)))
        zero_weights(self.module)
        seed(plan, list(self.module.states), cache, rank)

    @torch.inference_mode()
    def run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.module(*inputs.values())[0]
        return output


@pytest.mark.parametrize("layout", ["linear", "ring"])
@pytest.mark.parametrize("tokens", [5, 13])
def test_a_prompt_on_the_host_goes_on_on_the_ranks(
    layout: str, tokens: int, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """The reference's cache after a prompt, seeded into two ranks: their next logits are the reference's next."""
    one = subject("12b", 2, "tp_alias_host")
    plain = json.loads(json.dumps(one.plan.to_json()))
    batch_of_one(plain, layout)
    plan = Plan.from_json(plain)
    checkpoint = checkpoint_of(checkpoints, one)
    files = rank_files(plan, checkpoint, tmp_path)
    kind = getattr(transformers, plan.provenance["class_name"])
    reference = kind.from_pretrained(str(checkpoint), dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([[2 + 3 * k % 100 for k in range(tokens + 1)]])
    cache = transformers.DynamicCache()
    with torch.no_grad():
        reference(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True)
        expected = reference(input_ids=ids).logits[0, -1]
    tables = HostTables.open(plan, files)
    inputs = {
        **tables.inputs(ids[:, -1:]),
        "position_ids": torch.tensor([[tokens]], dtype=torch.int32),
        "valid_length": torch.tensor([1], dtype=torch.int32),
    }
    with RankProcesses(lambda rank, group: Seeded(plan, files, rank, group, cache), plan.tp) as ranks:
        raw = ranks.call("run", inputs)[0][0]
    cap = plan.numerics.final_logit_softcap
    assert cap is not None
    assert torch.allclose(torch.tanh(raw / cap) * cap, expected, atol=1e-4)


def batch_of_one(plain: dict[str, object], layout: str) -> None:
    """The plan for one stream; with ``ring`` the sliding layers' KV is as long as their window."""
    shapes: dict[str, object] = plain["shapes"]  # type: ignore[assignment]
    shapes.update(batch=1, kv_layout=layout)
    sizes = {}
    for layer in plain["layers"]:  # type: ignore[attr-defined]
        kv = layer["kv"]
        kv["shape"][0] = 1
        if layout == "ring" and layer["window"]:
            kv["shape"][2], kv["layout"] = layer["window"], "ring"
        sizes[kv["slot"]] = kv["shape"]
    for graph in plain["graphs"]:  # type: ignore[attr-defined]
        for port in (*graph["inputs"], *graph["outputs"]):
            port["shape"][0] = 1
        for port in graph["state"]:
            port["shape"] = sizes[int(port["name"].rpartition("_")[2])]
    plain["placement_id"], plain["plan_id"] = identities(plain)
