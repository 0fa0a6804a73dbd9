"""Softcap once, filters as transformers' warpers, draws that depend on a stream alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gemma4cfg.errors import ConfigError, UserError  # noqa: E402
from gemma4cfg.plan.records import Plan  # noqa: E402
from gemma4cfg.runtime.host.sampling import Sampler, finish_logits, keep_likely, samples_on_device, softcap  # noqa: E402
from tests.twins import twin_plan  # noqa: E402


def logits(seed: int, *shape: int) -> Any:
    return 4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_softcap_as_the_reference_rounds_it(dtype: Any) -> None:
    config = transformers.Gemma4TextConfig(
        vocab_size=300,
        vocab_size_per_layer_input=300,
        hidden_size=64,
        hidden_size_per_layer_input=0,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=16,
        final_logit_softcapping=30.0,
    )
    torch.manual_seed(0)
    model = transformers.Gemma4ForCausalLM(config).to(dtype).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=4.0)
    with torch.no_grad():
        ids = torch.arange(12)[None]
        raw = model.lm_head(model.model(ids).last_hidden_state)
        capped = model(ids).logits
    assert raw.abs().max() > 30
    assert torch.equal(softcap(raw, 30.0), capped)


@pytest.mark.parametrize(
    "choices,capped,ids",
    [
        ((), True, False),
        (("offload=softcap_in_graph",), False, False),
        (("offload=device",), False, True),
        (("offload=device", "offload.softcap=host"), False, True),
        (("model.final_logit_softcap=null",), False, False),
    ],
    ids=["host", "graph", "device", "ids-under-a-host-softcap", "none"],
)
def test_softcap_is_the_hosts_only_where_the_plan_says(choices: tuple[str, ...], capped: bool, ids: bool) -> None:
    plan = Plan.from_json(twin_plan("31b", 2, *choices))
    output = torch.tensor([40, 3], dtype=torch.int32) if ids else logits(0, 2, 70)
    assert samples_on_device(plan) == ids == (plan.graphs[0].outputs[0].name == "token_ids")
    expected = 30.0 * torch.tanh(output / 30.0) if capped else output
    assert torch.equal(finish_logits(plan, output), expected)


FILTERS = [
    (None, None),
    (1, None),
    (5, None),
    (500, None),
    (None, 0.01),
    (None, 0.5),
    (None, 0.95),
    (20, 0.7),
    (64, 1.0),
]


@pytest.mark.parametrize("top_k,top_p", FILTERS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_filters_as_transformers(temperature: float, top_k: int | None, top_p: float | None) -> None:
    rows = logits(1, 20, 300)
    warpers = [transformers.TemperatureLogitsWarper(temperature)]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k is not None else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p is not None else []
    expected = transformers.LogitsProcessorList(warpers)(None, rows)
    for row, warped in zip(rows, expected, strict=True):
        assert torch.equal(keep_likely(row / temperature, top_k, top_p), warped)


def test_scores_equal_to_the_kth_all_stay() -> None:
    scores = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    expected = transformers.TopKLogitsWarper(2)(None, scores[None])[0]
    assert torch.equal(keep_likely(scores, 2, None), expected)
    assert expected.isfinite().sum() == 3


def test_as_few_as_reach_top_p_exactly() -> None:
    """A quarter each: two reach a half."""
    equal = torch.zeros(4)
    expected = transformers.TopPLogitsWarper(0.5)(None, equal[None])[0]
    assert keep_likely(equal, None, 0.5).isfinite().sum() == expected.isfinite().sum() == 2


def test_greedy_is_the_first_of_the_largest() -> None:
    chosen = Sampler().choose(torch.tensor([[0.0, 7.0, 7.0], [3.0, 2.0, 1.0]]))
    assert chosen.tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-300, 5e-324])
@pytest.mark.parametrize("top_k,top_p", [(None, None), (6, None), (None, 0.8)])
def test_ever_colder_draws_become_greedy(temperature: float, top_k: int | None, top_p: float | None) -> None:
    rows = logits(4, 50, 300)
    assert Sampler(temperature, top_k, top_p, seed=1).choose(rows).tolist() == Sampler().choose(rows).tolist()


@pytest.mark.parametrize("top_k,top_p", [(None, None), (6, None), (None, 0.8), (6, 0.8)])
def test_draws_follow_the_probabilities(top_k: int | None, top_p: float | None) -> None:
    row = logits(2, 12) / 2
    sampler = Sampler(1.3, top_k, top_p, seed=5)
    draws = 1500
    counts = torch.bincount(sampler.choose(row.expand(draws, -1), [0] * draws), minlength=12)
    expected = torch.softmax(keep_likely(row / 1.3, top_k, top_p).double(), -1)
    assert not counts[expected == 0].any()
    kept = expected > 0
    chi_square = ((counts - draws * expected)[kept] ** 2 / (draws * expected)[kept]).sum()
    assert chi_square < 35  # 11 degrees of freedom at most: one seed in 5,000 is above


def test_a_stream_draws_the_same_in_any_company() -> None:
    steps = logits(3, 30, 4, 200)
    together = Sampler(1.0, seed=9)
    texts = torch.stack([together.choose(step) for step in steps], dim=1)
    for stream in range(4):
        alone = Sampler(1.0, seed=9)
        text = torch.cat([alone.choose(step[stream, None], [stream]) for step in steps])
        assert torch.equal(text, texts[stream]), stream
    leaving = Sampler(1.0, seed=9)
    for number, step in enumerate(steps):
        streams = [3, 1] if number < 10 else [3]
        assert torch.equal(leaving.choose(step[streams], streams), texts[streams, number])


def test_streams_seeds_and_turns_draw_differently() -> None:
    flat = torch.zeros(2, 200)
    sampler, other = Sampler(1.0, seed=0), Sampler(1.0, seed=1)
    texts = [
        *torch.stack([sampler.choose(flat) for _ in range(20)], 1),
        torch.cat([other.choose(flat[:1]) for _ in range(20)]),
    ]
    assert all(len(set(text.tolist())) > 10 for text in texts)
    assert all((one != two).sum() > 10 for one, two in zip(texts, [*texts[1:], texts[0]], strict=True))


@pytest.mark.parametrize(
    "values,key",
    [
        ({"temperature": -0.5}, "generate.temperature=-0.5"),
        ({"temperature": float("nan")}, "generate.temperature=nan"),
        ({"temperature": float("inf")}, "generate.temperature=inf"),
        ({"temperature": 1.0, "top_k": 0}, "generate.top_k=0"),
        ({"temperature": 1.0, "top_k": -3}, "generate.top_k=-3"),
        ({"temperature": 1.0, "top_p": 0.0}, "generate.top_p=0.0"),
        ({"temperature": 1.0, "top_p": 1.5}, "generate.top_p=1.5"),
        ({"temperature": 1.0, "top_p": float("nan")}, "generate.top_p=nan"),
        ({"temperature": 1.0, "seed": -1}, "generate.seed=-1"),
        ({"top_k": 64}, "generate.top_k=64 is not read with generate.temperature=0"),
        ({"top_p": 0.9}, "generate.top_p=0.9 is not read with generate.temperature=0"),
        ({"seed": 3}, "generate.seed=3 is not read with generate.temperature=0"),
    ],
)
def test_values_that_cannot_be(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sampler(**values)
    assert str(caught.value).startswith(key)
    assert "generate." in str(caught.value).split(";")[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers(temperature: float) -> None:
    rows = logits(4, 2, 9)
    rows[1, 3] = torch.nan
    with pytest.raises(UserError, match="stream 7: its logits hold NaN"):
        Sampler(temperature).choose(rows, [2, 7])
