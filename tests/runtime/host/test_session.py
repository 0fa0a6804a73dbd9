"""Sessions and generation: what goes over the ports, whose tokens are whose, and transformers' own generate as the judge."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gemma4cfg import build_plan, load_config  # noqa: E402
from gemma4cfg.errors import ConfigError, UserError  # noqa: E402
from gemma4cfg.plan.records import Plan  # noqa: E402
from gemma4cfg.runtime.host.sampling import Sampler, samples_on_device, softcap  # noqa: E402
from gemma4cfg.runtime.host.session import Generation, Session, generate  # noqa: E402
from gemma4cfg.runtime.host.tables import HostTables  # noqa: E402
from tests.runtime.host.test_tables import plan_of as ple_plan  # noqa: E402
from tests.runtime.host.test_tables import reference, resharded  # noqa: E402
from tests.twins import twin_plan  # noqa: E402

VOCABULARY, KV_LENGTH = 70, 64
IDS_TO_GRAPH = "offload.token_embedding=device"


@functools.cache
def plan_of(batch: int, *choices: str) -> Plan:
    shapes = (f"shapes.batch={batch}", "shapes.prefill_buckets=[4,8]", f"shapes.kv_length={KV_LENGTH}")
    return Plan.from_json(twin_plan("31b", 2, *shapes, "shapes.prompt_chunking=true", IDS_TO_GRAPH, *choices))


def logits_after(history: Sequence[int]) -> Any:
    """[vocabulary] that depends on every token and its place; up to 80, so that a softcap shows."""
    seed = sum(token * 7919**place for place, token in enumerate(history, 1)) % 2**31
    return 20 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))


class HistoryRunner:
    """Keeps each stream's tokens by position, as a KV cache does, and answers with ``logits_after`` them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cache = [[-1] * plan.shapes.kv_length for _ in range(plan.shapes.batch)]
        self.calls: list[tuple[str, list[int]]] = []

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Any:
        (ports,) = (each.inputs for each in self.plan.graphs if each.name == graph)
        assert list(inputs) == [port.name for port in ports]
        for port in ports:
            assert inputs[port.name].shape == port.shape
            assert inputs[port.name].dtype == getattr(torch, port.dtype)
        ids, positions, valid = (inputs[name] for name in ("input_ids", "position_ids", "valid_length"))
        self.calls.append((graph, valid.tolist()))
        output = torch.full((len(ids), VOCABULARY), torch.nan)
        for stream, rows in enumerate(valid.tolist()):
            assert positions[stream].tolist() == list(range(positions[stream, 0], positions[stream, 0] + ids.shape[1]))
            assert not ids[stream, rows:].any()
            for row in range(rows):
                self.cache[stream][positions[stream, row]] = int(ids[stream, row])
            if rows:
                output[stream] = logits_after(self.cache[stream][: positions[stream, rows - 1] + 1])
        if samples_on_device(self.plan):
            return output.nan_to_num().argmax(-1).int()
        return output.to(getattr(torch, self.plan.dtype))


def session_of(plan: Plan) -> tuple[Session, HistoryRunner]:
    runner = HistoryRunner(plan)
    return Session(plan, HostTables.open(plan, "unread"), runner), runner


def finished(plan: Plan, history: Sequence[int]) -> Any:
    raw = logits_after(history).to(getattr(torch, plan.dtype))
    return softcap(raw, 30.0) if any(part.what == "softcap" for part in plan.host) else raw


@pytest.mark.parametrize("choices", [(), ("offload.softcap=device",)], ids=["softcap-host", "softcap-graph"])
def test_streams_keep_their_own_history(choices: tuple[str, ...]) -> None:
    """Chunks, a stream that sits out, decode, a second prompt on top, a reset: always the whole history of that stream."""
    plan = plan_of(3, *choices)
    session, runner = session_of(plan)
    prompts = {2: list(range(1, 20)), 0: [5, 6, 7]}
    for stream, logits in session.prefill(prompts).items():
        assert torch.equal(logits, finished(plan, prompts[stream]))
    assert session.held == (3, 0, 19)
    assert runner.calls == [("prefill_8", [0, 0, 8]), ("prefill_8", [0, 0, 8]), ("prefill_4", [3, 0, 3])]

    results = session.decode({0: 9, 2: 11})
    assert list(results) == [0, 2]
    assert torch.equal(results[0], finished(plan, [5, 6, 7, 9]))
    assert torch.equal(results[2], finished(plan, [*prompts[2], 11]))

    results = session.prefill({0: [8] * 5, 1: [3]})
    assert torch.equal(results[0], finished(plan, [5, 6, 7, 9, 8, 8, 8, 8, 8]))
    assert torch.equal(results[1], finished(plan, [3]))

    session.reset(2)
    assert torch.equal(session.prefill({2: [4, 2]})[2], finished(plan, [4, 2]))
    assert session.held == (9, 1, 2)


def test_without_prefill_graphs() -> None:
    plan = plan_of(2, "recipe=tp_alias", "recipe.prefill=host")
    session, runner = session_of(plan)
    results = session.prefill({0: [1, 2, 3], 1: [9]})
    assert torch.equal(results[0], finished(plan, [1, 2, 3]))
    assert torch.equal(results[1], finished(plan, [9]))
    assert runner.calls == [("decode", [1, 1]), ("decode", [1, 0]), ("decode", [1, 0])]


def test_ids_where_the_device_samples() -> None:
    session, _ = session_of(plan_of(2, "offload=device"))
    assert session.prefill({1: [4, 5]}) == {1: int(logits_after([4, 5]).argmax())}
    assert session.decode({1: 6}) == {1: int(logits_after([4, 5, 6]).argmax())}


def test_a_buffer_used_again_changes_no_result() -> None:
    plan = plan_of(2)
    session, runner = session_of(plan)
    shared = torch.zeros(2, VOCABULARY, dtype=torch.bfloat16)
    answer = runner.run
    runner.run = lambda graph, inputs: shared.copy_(answer(graph, inputs))  # type: ignore[method-assign]
    first = session.prefill({0: [1]})[0]
    session.decode({0: 2})
    assert torch.equal(first, finished(plan, [1]))


def test_nothing_runs_where_a_later_chunk_has_a_foreign_id() -> None:
    session, runner = session_of(plan_of(2))
    with pytest.raises(UserError, match="token id 70"):
        session.prefill({0: [1, 2], 1: [3] * 12 + [70]})
    assert runner.calls == []
    assert session.held == (0, 0)


@pytest.mark.parametrize(
    "output",
    [torch.zeros(2, VOCABULARY), torch.zeros(1, VOCABULARY, dtype=torch.bfloat16)],
    ids=["dtype", "shape"],
)
def test_an_output_that_is_not_the_ports(output: Any) -> None:
    session, runner = session_of(plan_of(2))
    runner.run = lambda graph, inputs: output  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(AssertionError, match=r"graph prefill_4: .*'logits'.* where the plan says"):
        session.prefill({0: [1]})


def test_inputs_that_are_not_the_ports() -> None:
    plan = plan_of(2)
    other = HostTables.open(plan_of(2, "model=e2b", "offload=device"), "unread")
    Session(plan, other, HistoryRunner(plan)).prefill({0: [1]})
    runner = HistoryRunner(plan_of(1))
    with pytest.raises(
        AssertionError, match=r"graph prefill_4: .*'input_ids', \(2, 4\), 'int32'.* where the plan says"
    ):
        Session(plan_of(2, "offload.token_embedding=host"), other, runner).prefill({0: [1]})
    assert runner.calls == []


def test_a_stack_that_makes_its_own_graphs() -> None:
    plan = build_plan(load_config(["experiment=e2b-g5g-2xlarge"]))
    with pytest.raises(
        ConfigError, match=r"recipe=vllm makes its own graphs: .* e.g. recipe=auto with target=inf2.8xlarge"
    ):
        session_of(plan)


def by_hand(prompt: Sequence[int], stops: Sequence[int], limit: int) -> Generation:
    """Greedy, token by token, from the whole history each time. The softcap changes no order."""
    history = list(prompt)
    while len(history) - len(prompt) < limit:
        token = int(softcap(logits_after(history).bfloat16(), 30.0).argmax())
        if token in stops:
            return Generation(tuple(history[len(prompt) :]), "stop")
        history.append(token)
    return Generation(tuple(history[len(prompt) :]), "length")


PROMPTS = [[1], list(range(20)), [7] * 8, [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]]
STOPS = (11, 29)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_every_prompt_as_if_alone(batch: int) -> None:
    session, runner = session_of(plan_of(batch))
    seen: dict[int, list[int]] = {}
    order = []

    def on_token(index: int, token: int) -> None:
        seen.setdefault(index, []).append(token)
        order.append((index // batch, len(seen[index])))

    texts = generate(session, PROMPTS, Sampler(), STOPS, 30, on_token)
    assert texts == [by_hand(prompt, STOPS, 30) for prompt in PROMPTS]
    assert {text.finish_reason for text in texts} == {"stop", "length"}
    assert seen == {index: list(text.token_ids) for index, text in enumerate(texts) if text.token_ids}
    assert order == sorted(order), "a group's tokens come turn by turn"
    assert all(len(valid) == batch for _, valid in runner.calls)


def test_draws_do_not_depend_on_the_batch() -> None:
    runs = [
        generate(session_of(plan_of(batch))[0], PROMPTS, Sampler(1.5, 40, 0.95, seed=3), STOPS, 20)
        for batch in (1, 2, 5)
    ]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != generate(session_of(plan_of(5))[0], PROMPTS, Sampler(1.5, 40, 0.95, seed=4), STOPS, 20)


def test_generation_where_the_device_samples() -> None:
    session, _ = session_of(plan_of(2, "offload=device"))
    expected = int(logits_after([4, 5]).argmax())
    assert generate(session, [[4, 5]], Sampler(), [expected], 3) == [Generation((), "stop")]
    assert generate(session, [[4, 5]], Sampler(), [], 1) == [Generation((expected,), "length")]
    with pytest.raises(ConfigError, match=r"generate.temperature=1.0 with offload.sampling=device"):
        generate(session, [[4, 5]], Sampler(1.0), [], 3)


@pytest.mark.parametrize(
    "prompts,limit,message",
    [
        ([[1], []], 3, "prompt 1: an empty prompt"),
        ([[1], [2], [1] * 60], 5, "prompt 2: 60 of the prompt .* generate.max_new_tokens=4"),
        ([[1], [2], [70]], 3, "token id 70"),
        ([[1]], 0, "generate.max_new_tokens=0"),
    ],
    ids=["empty", "too-long", "foreign-id", "no-tokens"],
)
def test_refused_before_anything_runs(prompts: list[list[int]], limit: int, message: str) -> None:
    session, runner = session_of(plan_of(1))
    with pytest.raises(UserError, match=message):
        generate(session, prompts, Sampler(), [], limit)
    assert runner.calls == []


class ReferenceRunner:
    """transformers' own layers and cache behind the ports: a stream's valid rows, nothing else."""

    def __init__(self, model: Any, batch: int) -> None:
        self.model = model
        self.caches = [transformers.DynamicCache(config=model.config) for _ in range(batch)]

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        batch = len(inputs["valid_length"])
        output = torch.zeros(batch, VOCABULARY)
        for stream, rows in enumerate(inputs["valid_length"].tolist()):
            if rows:
                named = ("inputs_embeds", "per_layer_inputs", "position_ids")
                valid = {name: inputs[name][stream, None, :rows] for name in named}
                with torch.no_grad():
                    hidden = self.model.model(**valid, past_key_values=self.caches[stream]).last_hidden_state
                    output[stream] = self.model.lm_head(hidden[0, -1])
        return output


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny matrices: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_equal_to_transformers_generate(tmp_path: Path) -> None:
    """Embeddings, PLE rows, positions, chunks, softcap and stops together, on a whole model."""
    shapes = (
        "shapes.batch=2",
        "shapes.prefill_buckets=[4,8]",
        f"shapes.kv_length={KV_LENGTH}",
        "shapes.prompt_chunking=true",
    )
    plan = ple_plan("float32", *shapes)
    text = reference(plan)
    # As it comes, an untrained tied model repeats its input: a residual that decays and a final norm with signs prevent that.
    torch.manual_seed(4)
    text.norm.weight.data = torch.randn(text.norm.weight.shape)
    for layer in text.layers:
        layer.layer_scalar.fill_(0.85)
    model = transformers.Gemma4ForCausalLM(text.config).eval()
    model.model = text
    model.tie_weights()
    prompts = [[2, 40, 41, 9, 3, 17, 60, 5, 33, 2, 8], [2, 51, 6]]
    tables = HostTables.open(plan, resharded(plan, tmp_path))

    def expected(prompt: list[int], stops: list[int] | None) -> list[int]:
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([prompt]), max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=stops
            )
        return ids[0, len(prompt) :].tolist()

    whole = [expected(prompt, None) for prompt in prompts]
    assert all(len(set(ids)) > 3 for ids in whole)
    found = generate(Session(plan, tables, ReferenceRunner(model, 2)), prompts, Sampler(), [], 10)
    assert found == [Generation(tuple(ids), "length") for ids in whole]

    stop = next(token for token in whole[0][3:] if token not in whole[0][:3])
    *text, last = expected(prompts[0], [stop])
    assert last == stop
    found = generate(Session(plan, tables, ReferenceRunner(model, 1)), prompts[:1], Sampler(), [stop], 10)
    assert found == [Generation(tuple(text), "stop")]
