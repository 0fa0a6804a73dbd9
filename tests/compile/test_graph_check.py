"""Each rule of the graph check: a graph that trips it, and one that does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gemma4cfg import build_plan, load_config
from gemma4cfg.compile.artifacts import Artifacts
from gemma4cfg.compile.export_backend import ExportBackend
from gemma4cfg.compile.exporting import export_graph
from gemma4cfg.compile.graph_check.constants import baked_ranks
from gemma4cfg.compile.graph_check.rules import RULES, check_graph
from gemma4cfg.compile.graph_check.size import tiles
from gemma4cfg.compile.graph_check.subject import Subject
from gemma4cfg.compile.modules import graph_module
from gemma4cfg.compile.run import Work, compile_plan
from gemma4cfg.config.catalog import decode_choice, read_choice
from gemma4cfg.config.sdk import MatmulTile, Sdk, SourcedCount
from gemma4cfg.config.target import Target
from gemma4cfg.errors import PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.programs import Exported, baked_values, program_text
from gemma4cfg.runtime.rankless import RankReadError
from gemma4cfg.verify.subject import subject_of
from sharding.collectives import Collectives
from sharding.collectives.distributed import fake_group
from tests.verify.shortened import SHORT, short_config

VOCABULARY, WIDTH = 262144, 8
WINDOW = "model.attention.sliding_attention.window"


@functools.cache
def plan(*overrides: str) -> Plan:
    return build_plan(load_config(["model=12b", "model.layers=6", "recipe=model_builder", *overrides]))


def release(name: str = "neuron-2.28") -> Sdk:
    return decode_choice(Sdk, "sdk", read_choice("sdk", name))


def machine(name: str = "inf2.8xlarge") -> Target:
    return decode_choice(Target, "target", read_choice("target", name))


def subject(module: nn.Module, *inputs: Tensor, **changed: Any) -> Subject:
    """``module`` exported, as if it were the plan's decode graph."""
    one = changed.pop("plan", plan())
    with torch.no_grad():
        program = torch.export.export(module, inputs, strict=False)
    exported = Exported(one.graphs[-1], program, program_text(program.graph), baked_values(program, set()))
    given = {"plan": one, "exported": exported, "sdk": release(), "target": machine()} | changed
    return Subject(**given)


class Calls(nn.Module):
    """A module of one function, under the name that a decoder layer has."""

    def __init__(self, function: Callable[..., Any], **held: Tensor) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Identity() for _ in range(4)] + [Layer(function, held)])

    def forward(self, *inputs: Tensor) -> Any:
        layers: Any = self.model.layers
        return layers[4](*inputs)


class Layer(nn.Module):
    def __init__(self, function: Callable[..., Any], held: dict[str, Tensor]) -> None:
        super().__init__()
        self._function = function
        for name, tensor in held.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs, *self._parameters.values(), *self._buffers.values())


class Head(nn.Module):
    """A head that takes all rows, or each stream's last, and caps its logits or does not."""

    def __init__(self, last: bool, cap: bool) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16)
        self._last, self._cap = last, cap

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.lm_head(hidden[:, -1] if self._last else hidden)
        return torch.tanh(logits / 30.0) * 30.0 if self._cap else logits


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def tops(x: Tensor) -> Tensor:
    return torch.topk(x, 2).values


def attends(x: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def eager(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def weight(dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.ones(4, 4, dtype=dtype), requires_grad=False)


def many(count: int) -> tuple[Tensor, ...]:
    return tuple(rows(1) for _ in range(count))


@dataclass(frozen=True)
class Case:
    """``code`` of the finding that ``trips`` gives and ``passes`` does not; ``layer`` that it names."""

    code: str
    trips: Callable[[], Subject]
    passes: Callable[[], Subject]
    severity: str = "error"
    layer: int | None = 4
    says: str = ""


CASES = (
    Case(
        "item",
        lambda: subject(Calls(lambda x: x * x.sum().item()), rows(4)),
        lambda: subject(Calls(lambda x: x * x.sum()), rows(4)),
        says="aten.item",
    ),
    Case(
        "nonzero",
        lambda: subject(Calls(lambda x: torch.nonzero(x)), rows(4)),
        lambda: subject(Calls(lambda x: torch.where(x > 0, x, 0.0)), rows(4)),
        says="aten.nonzero",
    ),
    Case(
        "data_dependent_shape",
        lambda: subject(Calls(lambda x: x[x > 0]), rows(4)),
        lambda: subject(Calls(lambda x: x * (x > 0)), rows(4)),
    ),
    Case(
        "nonzero",
        lambda: subject(Calls(lambda x: torch.where(x > 0)[0]), rows(4)),
        lambda: subject(Calls(lambda x: torch.where(x > 0, x, x)), rows(4)),
        says="aten.where",
    ),
    Case(
        "index_writes",
        lambda: subject(Calls(lambda x, i: x.index_add(0, i, x)), rows(4), torch.arange(4)),
        lambda: subject(Calls(lambda x, i: x.index_select(0, i)), rows(4), torch.arange(4)),
        says="aten.index_add",
    ),
    Case(
        "sort",
        lambda: subject(Calls(lambda x: torch.sort(x).values), rows(4)),
        lambda: subject(Calls(lambda x: x.amax()), rows(4)),
        severity="warning",
    ),
    Case(
        "integer_top_k",
        lambda: subject(Calls(tops), torch.arange(4)),
        lambda: subject(Calls(tops), rows(4)),
    ),
    Case(
        "top_k",
        lambda: subject(Calls(tops), rows(4)),
        lambda: subject(Calls(lambda x: x.argmax()), rows(4)),
        severity="info",
    ),
    Case(
        "random",
        lambda: subject(Calls(lambda x: x + torch.rand(4)), rows(4)),
        lambda: subject(Calls(lambda x: x + torch.ones(4)), rows(4)),
    ),
    Case(
        "integer_matmul",
        lambda: subject(Calls(lambda x: x @ x), rows(4, 4, dtype=torch.int32)),
        lambda: subject(Calls(lambda x: x @ x), rows(4, 4)),
    ),
    Case(
        "float8",
        lambda: subject(Calls(lambda x: x.to(torch.float8_e4m3fn).float()), rows(4)),
        lambda: subject(Calls(lambda x: x.to(torch.bfloat16).float()), rows(4)),
    ),
    Case(
        "logits_of_all_rows",
        lambda: subject(Head(last=False, cap=False), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        lambda: subject(Head(last=True, cap=False), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        layer=None,
        says="6 rows of logits, 1 are read",
    ),
    Case(
        "softcap_over_vocabulary",
        lambda: subject(Head(last=False, cap=True), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        lambda: subject(Head(last=False, cap=False), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        layer=None,
        says="1,048,576 bytes, 196,608 a partition",
    ),
    Case(
        "softcap_over_vocabulary",
        lambda: subject(Head(last=True, cap=True), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        lambda: subject(Head(last=True, cap=False), rows(1, 6, WIDTH, dtype=torch.bfloat16)),
        severity="warning",
        layer=None,
    ),
    Case(
        "fused_attention_window_1024",
        lambda: subject(Calls(attends), rows(1, 2, 8, 4)),
        lambda: subject(Calls(eager), rows(1, 2, 8, 4)),
        says="scaled_dot_product_attention",
    ),
    Case(
        "fused_attention_window_1024",
        lambda: subject(Calls(attends), rows(1, 2, 8, 4)),
        lambda: subject(Calls(attends), rows(1, 2, 8, 4), sdk=release("neuron-2.31")),
    ),
    Case(
        "fused_attention_window_1024",
        lambda: subject(Calls(attends), rows(1, 2, 8, 4), plan=plan(f"{WINDOW}=2048")),
        lambda: subject(Calls(attends), rows(1, 2, 8, 4), plan=plan(f"{WINDOW}=512")),
    ),
    Case(
        "weight_as_constant",
        lambda: subject(Calls(lambda x, table: x + table, table=torch.arange(128.0)), rows(128)),
        lambda: subject(Calls(lambda x, table: x + table, table=nn.Parameter(torch.arange(128.0), False)), rows(128)),
        layer=None,
        says="model.layers.4.table float32[128]",
    ),
    Case(
        "weight_as_constant",
        lambda: subject(Calls(lambda x, scalar: x * scalar, layer_scalar=torch.ones(1)), rows(4)),
        lambda: subject(Calls(lambda x, scalar: x * scalar, another=torch.ones(1)), rows(4)),
        layer=None,
        says="model.layers.4.layer_scalar",
    ),
    Case(
        "dtype_leak",
        lambda: subject(Calls(lambda x, w: x @ w, w=weight(torch.float32)), rows(4, 4)),
        lambda: subject(Calls(lambda x, w: x @ w, w=weight(torch.bfloat16)), rows(4, 4, dtype=torch.bfloat16)),
        layer=None,
        says="is float32, the plan's weights are bfloat16",
    ),
    Case(
        "too_many_inputs",
        lambda: subject(Calls(lambda *all: torch.cat(all)), *many(129)),
        lambda: subject(Calls(lambda *all: torch.cat(all)), *many(128)),
        severity="warning",
        layer=None,
    ),
    Case(
        "instruction_count",
        lambda: limited(subject(Calls(lambda x: x @ x), rows(256, 256)), 3),
        lambda: limited(subject(Calls(lambda x: x @ x), rows(256, 256)), 4),
        severity="warning",
        layer=None,
        says="about 4 instructions",
    ),
)


def limited(one: Subject, instructions: int) -> Subject:
    """With another limit on instructions."""
    limits = one.sdk.stack.graph_limits
    assert limits is not None
    changed = replace(limits, instructions=SourcedCount(instructions, "here"))
    return replace(one, sdk=replace(one.sdk, stack=replace(one.sdk.stack, graph_limits=changed)))


def found(one: Subject, code: str) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(one) if finding.code == code]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.code}" for number, case in enumerate(CASES)])
def test_rule(case: Case) -> None:
    trips = found(case.trips(), case.code)
    assert [finding.severity for finding in trips] == [case.severity]
    assert trips[0].layer == case.layer
    assert trips[0].message.startswith("graph decode")
    assert case.says in trips[0].message
    assert not found(case.passes(), case.code)


def test_every_entry_of_the_releases_operators_is_tried() -> None:
    tried = {case.code for case in CASES}
    assert set(release().stack.operators) <= tried


def test_a_weight_that_the_program_does_not_read_is_named() -> None:
    scalar = nn.Parameter(torch.ones(1), requires_grad=False)
    unread = found(subject(Calls(lambda x, scalar: x * scalar, layer_scalar=scalar), rows(4)), "weight_not_read")
    missing = {finding.message.rpartition(" ")[2] for finding in unread}
    assert {finding.severity for finding in unread} == {"error"}
    assert "model.layers.3.layer_scalar" in missing
    assert "model.layers.4.layer_scalar" not in missing


TILE = MatmulTile(128, 128, 512, "")


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        pytest.param(lambda x, w: torch.nn.functional.linear(x, w), [(1, 4, 128), (512, 128)], 1, id="one"),
        pytest.param(lambda x, w: torch.nn.functional.linear(x, w), [(1, 4, 129), (512, 129)], 2, id="contraction"),
        pytest.param(lambda x, w: torch.nn.functional.linear(x, w), [(2, 512, 128), (512, 128)], 8, id="rows"),
        pytest.param(lambda a, b: a @ b, [(3, 64, 128), (3, 128, 64)], 3, id="batch"),
        pytest.param(lambda x, w: torch.einsum("th,eih->tei", x, w), [(4, 128), (2, 256, 128)], 1, id="einsum"),
        pytest.param(lambda a, b: a + b, [(4, 4), (4, 4)], 0, id="no_matmul"),
    ],
)
def test_tiles(function: Any, shapes: list[tuple[int, ...]], expected: int) -> None:
    one = subject(Calls(function), *(rows(*shape) for shape in shapes))
    assert sum(tiles(node, TILE) for node in one.nodes) == expected


# --- ranks ---


class Rankful(nn.Module):
    """Knows a number."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(0, self._rank, 1)


class Tabled(nn.Module):
    """Knows a table of numbers."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._table = torch.tensor([rank, rank + 1])

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._table)


@pytest.mark.parametrize("kind", [Rankful, Tabled])
def test_a_baked_rank_shows_in_text_or_constants(kind: type[nn.Module]) -> None:
    one, same, other = (subject(kind(rank), rows(4)).exported for rank in (2, 2, 1))
    assert baked_ranks(one, same) == ()
    findings = baked_ranks(one, other)
    assert {finding.code for finding in findings} == {"baked_rank"}
    assert (one.text == other.text) == (kind is Tabled), "a table is lifted out of the text: both have to be compared"


def test_a_module_that_asks_for_its_rank_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    import gemma4cfg.compile.exporting as exporting

    class Asks:
        size = 2

        def all_reduce(self, tensor: Tensor) -> Tensor:
            return tensor * torch.distributed.get_rank()

        def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
            return torch.cat([tensor] * 2, dim)

    one = subject_of(short_config("12b", "tp=2", "verify.steps=2")).plan
    monkeypatch.setattr(exporting, "graph_module", lambda plan, graph, _: graph_module(plan, graph, Asks()))
    with pytest.raises(RankReadError, match="rank_tensors"):
        export_graph(one, one.graphs[-1])
    with fake_group(2) as group:
        assert torch.distributed.get_rank() == 0, "ranks can be asked for again"
        assert group.size == 2


def test_a_module_that_was_made_with_its_rank_is_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank that is read before the tracing refuses nothing; the programs of two ranks differ."""
    import gemma4cfg.compile.exporting as exporting

    def made(plan: Plan, graph: Graph, group: Collectives) -> RankModule:
        module = graph_module(plan, graph, group)
        module.softcap = 2.0 + torch.distributed.get_rank()
        return module

    one = subject_of(short_config("12b", "tp=2", "verify.steps=2", "recipe=model_builder")).plan
    monkeypatch.setattr(exporting, "graph_module", made)
    work = Work(Artifacts(tmp_path, None), tmp_path / "work", None, False)
    with pytest.raises(PlanError, match=r"graph prefill_12: ranks do not share a program: .*2\.0.*3\.0"):
        compile_plan(one, ExportBackend(), release(one.sdk), machine(one.target), work, lambda _: None)
    assert not list(tmp_path.iterdir())


# --- our own graphs ---


@pytest.mark.parametrize("model", SHORT)
def test_graphs_of_the_twins_have_no_error(model: str) -> None:
    one = subject_of(short_config(model, "tp=2", "verify.steps=2", "target=inf2.24xlarge")).plan
    sdk, target = release(one.sdk), machine(one.target)
    first, last = (export_graph(one, one.graphs[-1], rank) for rank in (0, 1))
    findings = check_graph(Subject(one, first, sdk, target))
    assert {finding.code for finding in findings} == ({"top_k"} if model == "26b-a4b" else set())
    assert baked_ranks(first, last) == ()
