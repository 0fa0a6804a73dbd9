"""The host's tables against transformers' own modules, bit for bit, through the production resharder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gemma4cfg import build_plan, load_config  # noqa: E402
from gemma4cfg.errors import UserError  # noqa: E402
from gemma4cfg.plan.records import Plan  # noqa: E402
from gemma4cfg.runtime.host.tables import HostTables  # noqa: E402
from sharding import reshard  # noqa: E402
from sharding.layout import lay_out  # noqa: E402
from tests import twins  # noqa: E402

EMBEDDING = twins.PREFIX + "embed_tokens.weight"
PLE = ("embed_tokens_per_layer.weight", "per_layer_model_projection.weight", "per_layer_projection_norm.weight")
VOCABULARY = 70
IDS = torch.tensor([[2, 69, 0, 7, 7], [33, 1, 68, 0, 0], [5, 4, 3, 2, 1]])

DTYPES = ("float32", "bfloat16")
HIDDEN, WIDTH = 32, 8
SIZES = (
    f"model.hidden_size={HIDDEN}",
    f"model.ple.width={WIDTH}",
    # Square roots that no type holds: the plan states them for its own type.
    "model.embedding_scale=5.65625",
    "model.ple.embedding_scale=2.828125",
    f"model.ple.projection_scale={HIDDEN**-0.5}",
)


def plan_of(dtype: str, *choices: str) -> Plan:
    return Plan.from_json(twins.twin_plan("e2b", 2, f"dtype={dtype}", *SIZES, *choices))


def weights_of(plan: Plan) -> dict[str, Any]:
    """Role to weight, bfloat16, of what is outside the layers."""
    generator = torch.Generator().manual_seed(3)
    shapes = {role: plan.tensors[twins.PREFIX + role]["shape"] for role in ("embed_tokens.weight", *PLE)}
    return {role: torch.randn(shape, generator=generator).bfloat16() for role, shape in shapes.items()}


def resharded(plan: Plan, directory: Path) -> Path:
    values = twins.twin_values(plan.to_json())
    for role, weight in weights_of(plan).items():
        values[twins.PREFIX + role] = weight.view(torch.int16).numpy().view(np.uint16)
    source = twins.write_twin(directory / "in", values)
    plain = plan.to_json()
    placements = {"tensors": plain["tensors"], "rank_tensors": plain["rank_tensors"]}
    reshard(placements, plan.tp, source, directory / "out", plan.dtype, placement_id=plan.placement_id)
    return directory / "out"


def reference(plan: Plan) -> Any:
    config = transformers.Gemma4TextConfig(
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size=HIDDEN,
        hidden_size_per_layer_input=WIDTH,
        intermediate_size=8,
        num_hidden_layers=len(plan.layers),
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=16,
    )
    torch.manual_seed(0)
    model = transformers.models.gemma4.modeling_gemma4.Gemma4TextModel(config)
    model.load_state_dict(weights_of(plan), strict=False)
    return model.to(getattr(torch, plan.dtype)).eval()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offload", ["host", "lean"])
def test_equal_to_the_reference_bit_for_bit(dtype: str, offload: str, tmp_path: Path) -> None:
    plan = plan_of(dtype, f"offload={offload}")
    model = reference(plan)
    inputs = HostTables.open(plan, resharded(plan, tmp_path)).inputs(IDS)
    with torch.no_grad():
        embeddings = model.embed_tokens(IDS)
        per_layer = model.get_per_layer_inputs(IDS, None)
        if offload == "lean":
            per_layer = model.project_per_layer_inputs(embeddings, per_layer)
    assert list(inputs) == ["inputs_embeds", "per_layer_inputs"]
    for found, expected in zip(inputs.values(), (embeddings, per_layer), strict=True):
        assert found.dtype == getattr(torch, dtype)
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "choices,names",
    [
        (("offload.token_embedding=device",), ["input_ids", "per_layer_inputs"]),
        (("offload=device",), ["input_ids"]),
    ],
    ids=["embedding-on-device", "all-on-device"],
)
def test_ids_where_the_device_has_the_table(choices: tuple[str, ...], names: list[str], tmp_path: Path) -> None:
    plan = plan_of("bfloat16", *choices)
    inputs = HostTables.open(plan, resharded(plan, tmp_path)).inputs(IDS)
    assert list(inputs) == names
    assert inputs["input_ids"].dtype == torch.int32
    assert torch.equal(inputs["input_ids"], IDS.int())
    if "per_layer_inputs" in names:
        assert torch.equal(inputs["per_layer_inputs"], reference(plan).get_per_layer_inputs(IDS, None))


@pytest.mark.parametrize("choice", ["offload=host", "offload=device"])
@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_id_outside_the_vocabulary(choice: str, token: int, tmp_path: Path) -> None:
    plan = plan_of("bfloat16", choice)
    tables = HostTables.open(plan, resharded(plan, tmp_path))
    with pytest.raises(UserError, match=f"token id {token}: the vocabulary has 70 ids, 0 to 69"):
        tables.inputs(torch.tensor([[3, token]]))


def test_tables_of_another_plan(tmp_path: Path) -> None:
    directory = resharded(plan_of("bfloat16"), tmp_path)
    with pytest.raises(UserError, match=r"host_tables.safetensors: made for placement_id=.* task=shard"):
        HostTables.open(plan_of("bfloat16", "offload=lean"), directory)


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"host_tables.safetensors: no such file; task=shard writes"):
        HostTables.open(plan_of("bfloat16"), tmp_path)


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    """E2B's real tables (5.5 GB, a file with holes): a few rows cost a few pages."""
    plan = build_plan(load_config(["model=e2b"]))
    shapes = {name: tuple(e["shape"]) for name, e in plan.tensors.items() if e["home"] == "host"}
    metadata = {"placement_id": plan.placement_id}
    layout = lay_out("host_tables.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()}, metadata)
    table = layout.tensors[twins.PREFIX + PLE[0]]
    row = torch.arange(shapes[table.name][1]).bfloat16()
    with (tmp_path / layout.name).open("wb") as file:
        file.truncate(layout.size)
        file.write(layout.header)
        file.seek(table.start + 200_000 * table.size // shapes[table.name][0])
        file.write(row.view(torch.uint8).numpy().tobytes())
    assert layout.size > 5 * 10**9

    before = resident_bytes()
    inputs = HostTables.open(plan, tmp_path).inputs(torch.tensor([[0, 200_000, 262_143]]))
    assert resident_bytes() - before < 2 * 10**7

    assert torch.equal(inputs["per_layer_inputs"][0, 1].flatten(), row * 16)
    assert not inputs["per_layer_inputs"][0, [0, 2]].any()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
