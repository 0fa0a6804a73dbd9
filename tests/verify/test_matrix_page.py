"""The page of a matrix says of every case whether it holds, the page of drills what gave each away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg.verify.__main__ import main


def case(model: str, tp: int, **changed: Any) -> dict[str, Any]:
    return {
        "overrides": [f"model={model}", f"tp={tp}"],
        "features": [["model", model], ["tp", str(tp)], ["attention", "group"], ["attention", "split"]],
        "layers": 12,
        "holds": True,
        "prefill_relative": 1e-7,
        "decode_relative": 3e-7,
        "limit": 3e-6,
        "steps": 64,
        "tokens": 520,
        "failed": [],
        "versions": {"transformers": "5.13.0", "torch": "2.13.0"},
    } | changed


def write(path: Path, *cases: dict[str, Any], of: int | None = None) -> str:
    path.write_text(json.dumps({"cases": cases, "of": of or len(cases)}))
    return str(path)


def test_a_table_for_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = case("31b", 8, holds=False, decode_relative=3e-4, failed=["decode_logits"])
    one = write(tmp_path / "1.json", case("e2b", 1), case("e2b", 2))
    assert main([one, write(tmp_path / "2.json", wrong)]) == 0
    page = capsys.readouterr().out
    assert "**2 of 3 hold**, 1,560 tokens compared; the largest error is 100.00 of its limit." in page
    assert "With transformers 5.13.0, torch 2.13.0." in page
    assert "## e2b\n\n| layers | tp | attention | prefill error" in page
    assert "| 12 | 1 | group, split | 1.0e-07 | 3.0e-07 | 3.0e-06 | 64 | 520 | holds |" in page
    assert "**fails**: decode_logits" in page.partition("## 31b")[2]


def test_single_runs_are_a_table_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        {"name": "prefill_logits", "figure": 2e-2, "limit": 1e-1, "passed": True},
        {"name": "decode_logits", "figure": None, "limit": 1e-1, "passed": False},
    ]
    run = {
        "subject": "a tiny twin of 12b",
        "tp": 8,
        "dtype": "bfloat16",
        "checks": checks,
        "reference": {"versions": {"transformers": "5.13.0"}},
        "streams": [{"steps": 64, "decided_tokens": 3}, {"steps": 60, "decided_tokens": 4}],
    }
    single = tmp_path / "single.json"
    single.write_text(json.dumps(run))
    assert main([write(tmp_path / "matrix.json", case("e2b", 1)), str(single)]) == 0
    page = capsys.readouterr().out
    assert "**1 of 1 hold**" in page
    line = "| a tiny twin of 12b | 8 | bfloat16 | 2.0e-02 | - | 1.0e-01 | 64 | 7 | **fails**: decode_logits |"
    assert line in page.partition("## Single runs")[2]
    assert main([str(single)]) == 2
    assert "verify.matrix=full" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["unfinished", "another", "missing", "empty", "list", "text"])
def test_what_is_no_finished_matrix_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    path = tmp_path / "verify.json"
    if fault == "unfinished":
        write(path, case("e2b", 1), of=30)
    elif fault != "missing":
        path.write_text(
            {"another": '{"holds": true}', "empty": '{"cases": [], "of": 0}', "list": "[]", "text": "x"}[fault]
        )
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error {path}: ")


def test_the_committed_report_has_every_case_and_all_hold() -> None:
    from gemma4cfg.verify.matrix import MODELS, cases

    lines = Path("docs/proof.md").read_text(encoding="utf-8").splitlines()
    total = len(cases(MODELS, "full"))
    assert any(line.startswith(f"**{total} of {total} hold**") for line in lines)
    in_float32 = [line for line in lines if "| bfloat16 | " not in line]
    assert sum(line.endswith("| holds |") for line in in_float32) == total
    assert sum("| bfloat16 | " in line for line in lines) == len(MODELS)


def drills(subject: str, *results: dict[str, Any]) -> dict[str, Any]:
    return {
        "subject": subject,
        "tp": 4,
        "layers": 12,
        "steps": 8,
        "versions": {"transformers": "5.13.0"},
        "drills": results,
        "detected": sum(result["detected"] for result in results),
        "total": sum(result["applies"] for result in results),
    }


def drill(name: str, *found_by: str, applies: bool = True, figure: float | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "room": "plan",
        "what": f"about {name}",
        "choices": ["moe.partition=experts"] if name == "ids" else [],
        "applies": applies,
        "detected": bool(found_by),
        "found_by": found_by,
        "figure": figure,
    }


def test_a_line_for_each_drill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = drills("a twin of 26b", drill("ids", "layers", "weights", figure=0.5), drill("summed", "collectives"))
    other = drills("a twin of 12b", drill("ids", applies=False), drill("summed"))
    for name, run in (("1", one), ("2", other)):
        (tmp_path / name).write_text(json.dumps(run))
    assert main([str(tmp_path / "1"), str(tmp_path / "2")]) == 0
    page = capsys.readouterr().out
    assert "**2 of 3 detected.** With transformers 5.13.0." in page
    assert "| a twin of 12b | 4 | 12 | 8 | 0/1 |" in page
    assert "| `ids` | about ids | plan, `moe.partition=experts` | layers 5.0e-01 | - |" in page
    assert "| `summed` | about summed | plan | collectives | **missed** |" in page
    assert main([str(tmp_path / "1"), write(tmp_path / "matrix.json", case("e2b", 1))]) == 2
    assert "give files of one kind" in capsys.readouterr().err


def test_the_committed_drills_are_all_detected() -> None:
    from gemma4cfg.verify.drills.catalogue import DRILLS
    from gemma4cfg.verify.matrix import MODELS

    page = Path("docs/drills.md").read_text(encoding="utf-8")
    rows = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip("`") for row in rows} == DRILLS.keys()
    assert all(len(row) == 3 + len(MODELS) and set(row[3:]) != {"-"} for row in rows)
    assert "**missed**" not in page
