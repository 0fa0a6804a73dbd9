"""Published measurements against predictions, and the pages that show them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4cfg.calibration.__main__ import main, pages
from gemma4cfg.calibration.constants import STEP, changed, constants, rows_moved, runs
from gemma4cfg.calibration.constants import Path as Keys
from gemma4cfg.calibration.quantities import QUANTITIES
from gemma4cfg.calibration.rows import Row, published, read_rows
from gemma4cfg.calibration.table import Compared, compare
from gemma4cfg.config.catalog import decode_choice, read_choice
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.speeds import Estimates
from gemma4cfg.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEADER = "name,overrides,quantity,low,high,edges,source,outside\n"


@functools.cache
def compared() -> tuple[Compared, ...]:
    return tuple(compare(published()))


def estimates(sdk: str) -> Estimates:
    return decode_choice(Sdk, "sdk", read_choice("sdk", sdk)).stack.estimates


STACKS = {"neuron": estimates("neuron-2.28"), "vllm": estimates("vllm-0.27.2rc0")}


def test_nine_of_ten_are_inside() -> None:
    inside = [row for row in compared() if row.inside]
    assert len(compared()) >= 20
    assert len(inside) >= 0.9 * len(compared())


@pytest.mark.parametrize("kind", ["speed", "time", "bytes"])
def test_each_kind_holds_by_itself(kind: str) -> None:
    """Exact bytes do not make up for speeds that are wrong; bytes include rough figures of host and device."""
    rows = [row for row in compared() if QUANTITIES[row.row.quantity].kind == kind]
    assert len(rows) >= 20
    assert sum(row.inside for row in rows) / len(rows) >= {"speed": 1.0, "time": 0.9, "bytes": 0.8}[kind]


@pytest.mark.parametrize("row", compared(), ids=lambda row: f"{row.row.quantity}: {row.row.name}")
def test_no_range_is_wider_than_it_may_be(row: Compared) -> None:
    widest = QUANTITIES[row.row.quantity].widest
    assert 0 < row.predicted.low < row.predicted.high <= row.predicted.low * widest * (1 + 1e-5)


def test_the_widest_ranges_are_those_promised() -> None:
    widest = {quantity.kind: quantity.widest for quantity in QUANTITIES.values()}
    assert widest == pytest.approx({"speed": 5 / 3, "time": 2.0, "bytes": 1.05 / 0.95})


def test_rows_outside_say_why_and_no_others_do() -> None:
    assert [row.row.name for row in compared() if not row.inside] == [row.name for row in published() if row.outside]


def test_rows_are_told_apart() -> None:
    names = [(row.name, row.quantity) for row in published()]
    assert len(set(names)) == len(names)
    assert all(row.source for row in published())


@pytest.mark.parametrize(
    ("name", "quantity", "low", "high"),
    [
        ("E2B TP2 tp_alias 2048/512", "decode_tokens_per_s", 59, 72),
        ("12B TP2 ModelBuilder 256/64", "decode_tokens_per_s", 15, 15),
        ("31B TP4 on trn2, 512", "decode_tokens_per_s", 32.4, 32.4),
        ("E2B vLLM on T4G, 256 tokens", "decode_tokens_per_s", 43.1, 43.1),
        ("12B TP2 ModelBuilder 256/64", "prefill_ms", 101, 101),
        ("31B TP8 ModelBuilder 256/64", "prefill_ms", 115, 115),
        ("26B-A4B TP8 ModelBuilder 256/64", "prefill_ms", 77, 77),
        ("31B TP8, saved file", "shards", 108e9, 108e9),
        ("26B-A4B TP8, saved file", "shards", 64.6e9, 64.6e9),
        ("31B compile, one rank, float32 checkpoint", "compile_one_rank_float32", 182e9, 182e9),
        ("12B checkpoint", "checkpoint", 24e9, 24e9),
        ("26B-A4B, all experts", "experts", 45.6e9, 45.6e9),
        ("E2B vLLM on T4G, 512 + 128, 8 streams", "serving_requests", 168.33, 168.33),
    ],
)
def test_a_published_value_is_as_published_and_inside(name: str, quantity: str, low: float, high: float) -> None:
    (row,) = [row for row in compared() if (row.row.name, row.row.quantity) == (name, quantity)]
    assert (row.row.low, row.row.high) == (low, high)
    assert row.inside


# --- constants ---


def of_one_run(rows: Sequence[Row], keys: Sequence[tuple[str, Keys]]) -> list[str]:
    """Constants that only rows of one run feel."""
    return [".".join((stack, *path)) for stack, path in keys if len(runs(rows_moved(rows, path))) == 1]


EVERY = [(stack, path) for stack, known in STACKS.items() for path in constants(known)]


def own_rows(stack: str) -> list[Row]:
    return [row for row in published() if ("g5g" in " ".join(row.overrides)) == (stack == "vllm")]


MEMORY_OF_ONE_RUN = [
    "vllm.spill_per_graph.bytes",
    "vllm.serving.memory_share",
    "vllm.serving.chunk_tokens",
    "vllm.serving.page_tokens",
]
"""One run of vLLM on T4G says what of the card it used and how many streams its KV held."""


@pytest.mark.parametrize("stack", STACKS)
def test_no_constant_speaks_of_one_run_only(stack: str) -> None:
    """But for the memory of a serving stack."""
    found = of_one_run(own_rows(stack), [(name, path) for name, path in EVERY if name == stack])
    assert found == [name for name in MEMORY_OF_ONE_RUN if name.startswith(stack)]


def test_figures_of_one_run_are_one_run() -> None:
    """A run is not two for being written down twice, and at another length it is another."""
    one, other = published()[:2]
    assert len(runs([one, replace(one, quantity="prefill_ms", low=1.0), other])) == 2


def test_a_constant_of_one_run_would_be_found() -> None:
    """The latency of a collective, with all rows of several ranks but one taken away."""
    path = ("speeds", "neuron_core_v2", "collective", "seconds")
    alone = [row for row in published() if row.name in ("E2B trace 128/32", "12B TP2 ModelBuilder 256/64")]
    alone = [row for row in alone if row.quantity == "decode_tokens_per_s"]
    assert of_one_run(alone, [("neuron", path)]) == ["neuron.speeds.neuron_core_v2.collective.seconds"]


def test_every_kind_of_row_feels_a_constant_or_none() -> None:
    """Figures that are counted depend on no constant at all."""
    bytes_of_tensors = [
        row for row in published() if row.quantity in ("shards", "kv", "kv_per_token", "head", "experts")
    ]
    for stack, path in EVERY:
        if stack == "neuron":
            assert rows_moved(bytes_of_tensors, path) == []


def test_changing_a_constant_changes_it_alone() -> None:
    path = ("speeds", "neuron_core_v2", "bandwidth", "low")
    before, after = constants(STACKS["neuron"]), constants(changed(STACKS["neuron"], path))
    assert {key for key in before if before[key] != after[key]} == {path}
    assert after[path] == pytest.approx(before[path] * STEP)


# --- rows of one's own ---


def test_a_measurement_of_ones_own_moves_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(HEADER + "E2B here,experiment=e2b-trace-128-32,decode_tokens_per_s,20,22,kv=host,a bench,\n")
    assert main([]) == 0
    before = capsys.readouterr().out
    assert main(["--add", str(mine)]) == 0
    after = capsys.readouterr().out
    assert "E2B here" in after and "E2B here" not in before

    def mean(page: str) -> str:
        return next(line for line in page.splitlines() if line.startswith("| neuron_core_v2 | speed |"))

    assert mean(after) != mean(before)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("name\nx\n", "the columns are name; expected name,overrides", id="columns"),
        pytest.param(
            HEADER + "a,model=e2b,decode_tokens,1,2,,,\n", ":2: quantity=decode_tokens: no such", id="quantity"
        ),
        pytest.param(HEADER + "a,model=e2b,prefill_ms,fast,2,,,\n", ":2: low=fast: expected a number", id="number"),
        pytest.param(
            HEADER + "a,model=e2b,prefill_ms,-1,2,,,\n", ":2: low=-1: expected a number above 0", id="negative"
        ),
        pytest.param(HEADER + "a,model=e2b,prefill_ms,nan,2,,,\n", ":2: low=nan: expected a number above 0", id="nan"),
        pytest.param(HEADER + "a,model=e2b,prefill_ms,3,2,,,\n", ":2: low=3.0 is more than high=2.0", id="order"),
        pytest.param(HEADER + "a,model=e2b,prefill_ms,1\n", ":2: not 8 values", id="short"),
        pytest.param(
            HEADER + "a,model=e2b,prefill_ms,1,2,kv=disk,,\n", ":2: edges.kv=disk: expected device", id="edges"
        ),
        pytest.param(
            HEADER + "a,model=e2b,prefill_ms,1,2,dtype=foo,,\n", ":2: edges.dtype=foo: expected bfloat16", id="dtype"
        ),
    ],
)
def test_a_wrong_row_is_a_sentence(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_rows(path)
    assert says in str(refused.value)
    assert main(["--add", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_what_a_serving_stack_was_given_counts(tmp_path: Path) -> None:
    """A prompt of half the tokens takes half the time, and fewer held tokens are read."""
    words = "model=e2b target=g5g.4xlarge shapes.kv_length=16384"
    mine = tmp_path / "mine.csv"
    given = ("prompt=512", "prompt=1024"), ("held=128", "held=16384", "")
    lines = [f"a,{words},prefill_ms,1,2,{edges},,\n" for edges in given[0]]
    lines += [f"a,{words},decode_tokens_per_s,1,2,{edges},,\n" for edges in given[1]]
    mine.write_text(HEADER + "".join(lines))
    short, long, few, full, planned = (row.predicted.low for row in compare(read_rows(mine)))
    assert short == pytest.approx(long / 2, rel=0.1)
    assert few > full == planned


def test_requests_are_prompts_and_answers(tmp_path: Path) -> None:
    """A prompt's time once, then a step for each token: half the rate where a prompt takes as long as the answer."""
    words, edges = "model=e2b target=g5g.4xlarge shapes.kv_length=16384", "prompt=512 held=640"
    mine = tmp_path / "mine.csv"
    quantities = ("prefill_ms", "decode_tokens_per_s", "serving_requests")
    mine.write_text(HEADER + "".join(f"a,{words},{quantity},1,2,{edges},,\n" for quantity in quantities))
    prefill, decode, requests = (row.predicted for row in compare(read_rows(mine)))
    assert 128 / requests.low == pytest.approx(prefill.high / 1e3 + 128 / decode.low)
    assert 128 / requests.high == pytest.approx(prefill.low / 1e3 + 128 / decode.high)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--add", str(tmp_path / "none.csv")]) == 2
    assert "expected CSV with the columns name,overrides" in capsys.readouterr().err


G5G, INF2 = "model=e2b target=g5g.2xlarge", "target=inf2.8xlarge"


@pytest.mark.parametrize(
    ("overrides", "quantity", "edges", "says"),
    [
        ("model=e2b", "prefill_ms", "", "name the machine it ran on, e.g. target=inf2.8xlarge"),
        (f"modle=e2b {INF2}", "prefill_ms", "", "unknown key modle"),
        (f"model=e2b tp=3 {INF2}", "prefill_ms", "", "tp=3: inf2.8xlarge has 2 cores"),
        (f"model=e2b {INF2} objective=latency", "prefill_ms", "", "leave objective out"),
        (f"model=12b {INF2} ple.partition=split", "prefill_ms", "", "ple.partition is never read"),
        (f"model=e2b {INF2}", "decode_tokens_per_s", "held=64", "set shapes.prefill_buckets and shapes.kv_length"),
        (G5G, "compile_s", "", "e2b on g5g.2xlarge (vllm) has no quantity=compile_s; it has decode_tokens_per_s, "),
        (G5G, "compile_prefill_s", "", "has no quantity=compile_prefill_s"),
        (G5G, "compile_one_rank_streamed", "", "has no quantity=compile_one_rank_streamed"),
        (G5G, "steady", "", "has no quantity=steady"),
        (f"model=e2b {INF2}", "serving_pool", "", "has no quantity=serving_pool"),
        (f"model=e2b {INF2}", "experts", "", "has no quantity=experts"),
        (f"model=12b tp=2 {INF2}", "host_per_layer_embedding", "", "has no quantity=host_per_layer_embedding"),
    ],
)
def test_a_row_that_is_of_no_plan_is_a_sentence(
    overrides: str, quantity: str, edges: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file, the line and the name of the row."""
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + f"a run,{overrides},{quantity},1,2,{edges},,\n")
    assert main(["--add", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error {path}:2: a run: ") and says in told


def test_a_table_of_a_spreadsheet_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins with a byte order mark; and a row that is outside and gives no reason is said to give none."""
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + f"a run,{G5G},kv,1,1,,,\n", encoding="utf-8-sig")
    assert main(["--add", str(path)]) == 0
    assert "- a run (kv): the row gives no reason.\n" in capsys.readouterr().out


# --- pages ---


def test_docs_are_in_step() -> None:
    """``python -m gemma4cfg.calibration --write docs`` makes them anew."""
    made = pages()
    assert set(made) == {"calibration.md", "inf2.md", "trn1.md", "trn2.md", "g5g.md"}
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


def test_pages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a directory that is made for them, further rows with them."""
    asked: list[Path | None] = []

    def page(more: Path | None) -> dict[str, str]:
        asked.append(more)
        return {"calibration.md": "a table\n"}

    monkeypatch.setattr("gemma4cfg.calibration.__main__.pages", page)
    assert main(["--write", str(tmp_path / "docs"), "--add", "mine.csv"]) == 0
    assert (tmp_path / "docs" / "calibration.md").read_text() == "a table\n"
    assert asked == [Path("mine.csv")]


def test_the_readme_counts_the_rows() -> None:
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    inside = sum(row.inside for row in compared())
    assert (
        f"holds {len(compared())} published measurements beside what the plan predicts of each, {inside} of them inside"
        in text
    )
