"""What counts as equal: logits near enough, tokens where the reference is decided, nothing after a tie of experts."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4cfg.verify.checks import logits_equal, tokens_equal
from gemma4cfg.verify.reference_process import PromptRun

torch = pytest.importorskip("torch")

PROMPT, STEPS, VOCABULARY, LAYERS, HIDDEN = 3, 5, 11, 2, 4


def run(routed_positions: int = PROMPT + STEPS) -> PromptRun:
    source = np.random.default_rng(0)
    logits = source.normal(size=(STEPS + 1, VOCABULARY)).astype(np.float32)
    return PromptRun(
        prompt=(1,) * PROMPT,
        tokens=tuple(logits.argmax(axis=1).tolist()),
        logits=logits,
        hidden=source.normal(size=(LAYERS, PROMPT + STEPS, HIDDEN)).astype(np.float32),
        margins=np.ones(STEPS + 1, np.float32),
        noise=1e-6,
        relative_noise=1e-6,
        routed_positions=routed_positions,
        decided=True,
        draws=1,
    )


def test_the_first_row_is_prefill_and_the_others_decode() -> None:
    from gemma4cfg.verify.compare import stream_result

    reference = run()
    ours = torch.from_numpy(reference.logits).clone()
    ours[0] += 1e-3
    ours[4] += 1e-2
    result = stream_result(ours, reference, reference.noise, "float32")
    largest = np.abs(reference.logits).max()
    assert result.prefill_relative == pytest.approx(1e-3 / largest, rel=1e-3)
    assert result.decode_relative == pytest.approx(1e-2 / largest, rel=1e-3)
    assert (result.steps, result.left_out, result.first_differing_token) == (STEPS, 0, None)


def test_a_token_differs_only_where_the_reference_is_decided() -> None:
    from gemma4cfg.verify.compare import stream_result

    reference = run()
    ours = torch.from_numpy(reference.logits).clone()
    ours[2, int(ours[2].argmin())] += 100
    assert stream_result(ours, reference, reference.noise, "float32").first_differing_token == 2
    unsure = stream_result(ours, reference, 1e3, "float32")
    assert (unsure.first_differing_token, unsure.undecided_tokens, unsure.decided_tokens) == (None, STEPS + 1, 0)
    assert not tokens_equal([unsure], "float32").passed  # nothing was compared
    assert tokens_equal([unsure], "bfloat16").passed


@pytest.mark.parametrize("routed_positions", [0, 2, 3, 5, 7])
def test_rows_after_a_tie_of_experts_are_left_out(routed_positions: int) -> None:
    from gemma4cfg.verify.compare import layer_errors, stream_result

    reference = run(routed_positions)
    rows = max(routed_positions - PROMPT + 1, 0)
    ours, hidden = torch.from_numpy(reference.logits).clone(), torch.from_numpy(reference.hidden)[:, :PROMPT].clone()
    ours[rows:] += 1.0
    hidden[:, routed_positions:] += 1.0
    result = stream_result(ours, reference, reference.noise, "float32")
    assert (result.max_absolute, result.left_out) == (0.0 if rows else None, STEPS + 1 - rows)
    assert result.prefill_relative == (0.0 if rows else None)
    assert result.decode_relative == (0.0 if rows > 1 else None)
    assert result.decided_tokens + result.undecided_tokens == rows
    assert set(layer_errors([hidden], [reference])) <= {0.0}
    if rows:
        ours[rows - 1] += 1.0
        assert stream_result(ours, reference, reference.noise, "float32").max_absolute == pytest.approx(1.0)
    else:
        assert not tokens_equal([result], "float32").passed
    if routed_positions:
        hidden[1, min(routed_positions, PROMPT) - 1] += 1.0
        assert layer_errors([hidden], [reference])[1] > 0.1


def test_streams_of_which_nothing_is_compared_prove_nothing() -> None:
    assert logits_equal("decode_logits", [None, 1e-7], 1e-6).passed
    assert not logits_equal("decode_logits", [None, 1e-5], 1e-6).passed
    assert not logits_equal("decode_logits", [1e-7, float("nan")], 1e-6).passed
    nothing = logits_equal("decode_logits", [None, None], 1e-6)
    assert (nothing.passed, nothing.figure) == (False, None)
    assert "nothing is compared" in nothing.detail


def test_layers_without_a_position_to_compare_do_not_hold() -> None:
    from gemma4cfg.verify.checks import layers_equal
    from gemma4cfg.verify.compare import layer_errors

    reference = run(0)
    errors = layer_errors([torch.from_numpy(reference.hidden)[:, :PROMPT]], [reference])
    assert errors == ()
    assert not layers_equal(errors, 1e-4).passed


@pytest.mark.parametrize("dtype,passed", [("float32", False), ("bfloat16", True)])
def test_where_no_token_is_decided_that_is_said(dtype: str, passed: bool) -> None:
    from gemma4cfg.verify.compare import stream_result

    reference = run()
    result = stream_result(torch.from_numpy(reference.logits), reference, 1e9, dtype)
    check = tokens_equal([result], dtype)
    assert check.passed == passed
    assert check.detail == "no token is decided, so none is compared, 6 left out: too near a tie"


def test_logits_that_are_no_numbers_are_said_to_be_none() -> None:
    check = logits_equal("prefill_logits", [1e-7, float("nan")], 1e-4)
    assert (check.passed, check.detail) == (False, "logits that are no numbers; worst in stream 1")
