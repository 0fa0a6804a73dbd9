"""Artifacts: whole or absent, found by what decides them, mirrored, explained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4cfg.compile.artifacts import MANIFEST_FILE, Artifact, Artifacts
from gemma4cfg.compile.key import Inputs, Key

INPUTS = Inputs(
    backend="export",
    graphs={"prefill_512": "a" * 64},
    versions={"torch": "2.13.0", "neuronx-cc": "2.23.6484"},
    flags={"prefill_512": ("--model-type=transformer", "-O1")},
    weights=None,
    source="1" * 64,
    rules="3" * 64,
)
TOLD = {"findings.json": "[]"}


def key(inputs: Inputs = INPUTS, text: str = "t", constants: str = "c") -> Key:
    return Key.of(inputs, dict.fromkeys(inputs.graphs, text), dict.fromkeys(inputs.graphs, constants))


def built(directory: Path) -> None:
    (directory / "program.pt2").write_bytes(b"program")
    (directory / "ranks").mkdir()
    (directory / "ranks" / "tp_0.pt").write_bytes(b"rank")


def files(artifact: Artifact | None) -> dict[str, bytes]:
    assert artifact is not None
    root = Path(artifact.directory)
    return {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != MANIFEST_FILE
    }


WHOLE = {"program.pt2": b"program", "ranks/tp_0.pt": b"rank", "findings.json": b"[]"}


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    assert store.find(INPUTS) is None
    made = store.keep(INPUTS, key(), built, TOLD)
    assert made == store.find(INPUTS) == store.find_key(key())
    assert files(made) == WHOLE
    assert Path(made.directory) == tmp_path / ("a" * 64) / key().id


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"graphs": {"prefill_512": "b" * 64}}, id="graph"),
        pytest.param({"versions": {**INPUTS.versions, "neuronx-cc": "2.26.6360"}}, id="compiler"),
        pytest.param({"flags": {"prefill_512": ("--model-type=transformer",)}}, id="flags"),
        pytest.param({"weights": "w" * 64}, id="weights"),
        pytest.param({"backend": "trace"}, id="backend"),
        pytest.param({"source": "2" * 64}, id="source"),
        pytest.param({"rules": "4" * 64}, id="rules"),
    ],
)
def test_what_decides_it_is_in_the_lookup(changed: dict[str, object], tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    store.keep(INPUTS, key(), built, TOLD)
    other = replace(INPUTS, **changed)  # type: ignore[arg-type]
    assert store.find(other) is None
    assert (key(other).id == key().id) == (changed.keys() <= {"source", "rules"}), (
        "code that gives the same graphs gives the same artifact"
    )


def test_a_renewed_artifact_is_found_by_what_leads_to_it_now(tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    made = store.keep(INPUTS, key(), built, TOLD)
    newer = replace(INPUTS, source="2" * 64)
    renewed = store.renew(made, newer, {"findings.json": '["anew"]'})
    assert store.find(INPUTS) is None
    assert store.find(newer) == store.find_key(key()) == renewed
    assert (renewed.directory, renewed.key) == (made.directory, made.key)
    assert files(renewed) == {**WHOLE, "findings.json": b'["anew"]'}


@pytest.mark.parametrize("changed", [{"text": "u"}, {"constants": "d"}], ids=["text", "constants"])
def test_text_and_baked_values_are_in_the_key(changed: dict[str, str]) -> None:
    assert key(**changed).id != key().id


def test_a_failed_build_is_not_kept(tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)

    def fails(directory: Path) -> None:
        built(directory)
        raise RuntimeError("NCC_INLA001")

    with pytest.raises(RuntimeError, match="NCC_INLA001"):
        store.keep(INPUTS, key(), fails, TOLD)
    assert store.find(INPUTS) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files(store.keep(INPUTS, key(), built, TOLD)) == WHOLE


@pytest.mark.parametrize("damage", ["truncated", "absent", "manifest"])
def test_what_is_not_whole_is_made_again(damage: str, tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    made = Path(store.keep(INPUTS, key(), built, TOLD).directory)
    if damage == "truncated":
        (made / "program.pt2").write_bytes(b"pro")
    else:
        (made / ("program.pt2" if damage == "absent" else MANIFEST_FILE)).unlink()
    assert store.find(INPUTS) is None
    assert files(store.keep(INPUTS, key(), built, TOLD)) == WHOLE


def test_another_format_is_no_artifact(tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    path = Path(store.keep(INPUTS, key(), built, TOLD).directory) / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": "0.9"}))
    assert store.find(INPUTS) is None


@pytest.mark.parametrize("kind", ["directory", "url"])
def test_a_mirror_continues_on_another_machine(kind: str, tmp_path: Path) -> None:
    mirror = f"memory://artifacts-{tmp_path.name}" if kind == "url" else str(tmp_path / "mirror")
    Artifacts(tmp_path / "first", mirror).keep(INPUTS, key(), built, TOLD)
    second = Artifacts(tmp_path / "second", mirror)
    fetched = second.find(INPUTS)
    assert files(fetched) == WHOLE
    assert fetched is not None and fetched.directory.startswith(str(tmp_path / "second"))


def test_what_was_there_goes_to_a_mirror_that_is_new(tmp_path: Path) -> None:
    Artifacts(tmp_path / "first", None).keep(INPUTS, key(), built, TOLD)
    Artifacts(tmp_path / "first", str(tmp_path / "mirror")).find(INPUTS)
    assert files(Artifacts(tmp_path / "second", str(tmp_path / "mirror")).find(INPUTS)) == WHOLE


def test_a_damaged_mirror_is_not_believed_and_mended(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    made = Artifacts(tmp_path / "first", str(mirror)).keep(INPUTS, key(), built, TOLD)
    copied = mirror / Path(made.directory).relative_to(tmp_path / "first") / "program.pt2"
    copied.write_bytes(b"PROGRAM")
    second = Artifacts(tmp_path / "second", str(mirror))
    assert second.find(INPUTS) is None
    second.keep(INPUTS, key(), built, TOLD)
    assert files(Artifacts(tmp_path / "third", str(mirror)).find(INPUTS)) == WHOLE, "what was made again mends it"


@pytest.mark.parametrize(
    ("inputs", "text", "expected"),
    [
        pytest.param(
            replace(INPUTS, versions={**INPUTS.versions, "neuronx-cc": "2.26.6360"}),
            "t",
            ("versions.neuronx-cc: 2.23.6484 there, 2.26.6360 here",),
            id="version",
        ),
        pytest.param(
            replace(INPUTS, flags={"prefill_512": ("-O2",)}),
            "t",
            ("flags.prefill_512: --model-type=transformer -O1 there, -O2 here",),
            id="flags",
        ),
        pytest.param(replace(INPUTS, weights="w" * 64), "t", (f"weights: none there, {'w' * 12} here",), id="weights"),
        pytest.param(INPUTS, "u", ("texts.prefill_512: t there, u here",), id="text"),
        pytest.param(
            replace(INPUTS, graphs={"prefill_512": "b" * 64}),
            "t",
            (f"graphs.prefill_512: {'a' * 12} there, {'b' * 12} here",),
            id="graph",
        ),
        pytest.param(replace(INPUTS, graphs={"decode": "b" * 64}, flags={}), "t", (), id="nothing_like_it"),
    ],
)
def test_a_miss_is_explained(inputs: Inputs, text: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    store.keep(INPUTS, key(), built, TOLD)
    store.keep(
        replace(INPUTS, backend="trace", versions={}), key(replace(INPUTS, backend="trace", versions={})), built, TOLD
    )
    assert store.explain(key(inputs, text)) == expected


def test_damage_is_explained(tmp_path: Path) -> None:
    store = Artifacts(tmp_path, None)
    made = store.keep(INPUTS, key(), built, TOLD)
    (Path(made.directory) / "program.pt2").write_bytes(b"pro")
    assert store.find_key(key()) is None
    assert store.explain(key()) == (f"{made.directory}/program.pt2: not as it was made",)


def test_more_buckets_are_graphs_of_the_same_kinds(tmp_path: Path) -> None:
    two = replace(INPUTS, graphs={"prefill_512": "a" * 64, "decode": "d" * 64})
    three = replace(INPUTS, graphs={**two.graphs, "prefill_1024": "b" * 64})
    store = Artifacts(tmp_path, None)
    store.keep(two, key(two), built, TOLD)
    assert f"graphs.prefill_1024: none there, {'b' * 12} here" in store.explain(key(three))
