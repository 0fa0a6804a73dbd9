"""Every check finds something that no other finds, and with the check broken it goes undetected: none is there for show."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.cache import SlotCache
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.processes import RankError
from gemma4cfg.verify.drills.catalogue import DRILLS
from gemma4cfg.verify.drills.records import NOTHING, Drill
from gemma4cfg.verify.drills.run import Drilled, result_of, run_drill
from gemma4cfg.verify.faults import NO_FAULT, Fault
from gemma4cfg.verify.place import Here
from gemma4cfg.verify.proof import Prepared, judge, prepare
from gemma4cfg.verify.reference_process import ReferenceResult
from gemma4cfg.verify.subject import subject_of
from tests.verify.breaking import broken
from tests.verify.shortened import short_config

pytestmark = pytest.mark.xdist_group("e2b")

TWO_BUCKETS = ("tp=2", "shapes.prefill_buckets=[512,1024]")

Edit = Callable[[Any], None]
"""Of a rank's module."""


def _capped_again(prefill: bool) -> Edit:
    """Logits of one kind of call are capped in the graph, and by the host once more. It changes no token."""

    def edit(module: Any) -> None:
        made = module.logits

        def logits(inputs: Any, state: Any) -> Tensor:
            found: Tensor = made(inputs, state)
            return torch.tanh(found / 30) * 30 if (inputs["position_ids"].shape[1] > 1) == prefill else found

        module.logits = logits

    return edit


def _last_layer_halved(module: Any) -> None:
    """The final norm hides it."""
    module.model.layers[-1].register_forward_hook(lambda _module, _given, output: output * 0.5)


def _own_noise(module: Any) -> None:
    """Each rank's logits are rounded in a way of its own, within the limit."""
    made, random = module.logits, torch.Generator().manual_seed(os.getpid())

    def logits(inputs: Any, state: Any) -> Tensor:
        found: Tensor = made(inputs, state)
        return found * (1 + 3e-7 * torch.randn(found.shape, generator=random))

    module.logits = logits


class _WritesTwice(SlotCache):
    """What was written is written again."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        seen = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        slot = self._layers[layer_idx].kv.slot
        assert slot is not None
        self._state.write(slot, *self._state.read(slot))
        return seen


def _written_twice(module: Any) -> None:
    module.cache_class = _WritesTwice


def _one_sum_too_many(module: Any) -> None:
    """Ranks meet for a sum that nothing reads."""

    def hook(projection: Any, _given: Any, output: Tensor) -> None:
        projection._collectives.all_reduce(output.clone())

    module.model.layers[0].mlp.down_proj.register_forward_hook(hook)


def _values_doubled(module: Any) -> None:
    """A scale is applied to a weight while it is loaded; the norm of values hides it."""
    module.model.layers[0].self_attn.v_proj.weight.data.mul_(2)


def _larger_bucket_unused(plain: dict[str, Any]) -> None:
    """The host knows one prefill graph, and the other is never called."""
    largest = max(plain["shapes"]["prefill_buckets"])
    plain["shapes"]["prefill_buckets"].remove(largest)
    plain["graphs"] = [graph for graph in plain["graphs"] if graph["name"] != f"prefill_{largest}"]


def _in_module(edit: Edit) -> Fault:
    def module(rank: RankModule, plan: Plan) -> None:  # noqa: ARG001
        edit(rank)

    return Fault(module=module)


FAULTS = {
    "prefill_logits": _in_module(_capped_again(prefill=True)),
    "decode_logits": _in_module(_capped_again(prefill=False)),
    "layers": _in_module(_last_layer_halved),
    "ranks": _in_module(_own_noise),
    "graphs": Fault(host_plan=_larger_bucket_unused),
    "slots": _in_module(_written_twice),
    "collectives": _in_module(_one_sum_too_many),
    "weights": _in_module(_values_doubled),
}
"""Check to a fault of the run that shows in nothing else."""


def _disagrees(reference: ReferenceResult) -> ReferenceResult:
    return replace(reference, self_check=replace(reference.self_check, passed=False))


def _decides_nothing(reference: ReferenceResult) -> ReferenceResult:
    """Every token is within the noise, so that none is compared."""
    return replace(reference, runs=tuple(replace(run, noise=1e9) for run in reference.runs))


REFERENCES = {"reference": _disagrees, "tokens": _decides_nothing}
"""Check to a reference that is nothing to compare with. Where a token differs, logits do too."""

CATALOGUE = {"constants": "ple_projection_scale", "placements": "weight_baked_in"}
"""Check to a drill that nothing else finds."""


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def prepared(work: Path) -> Prepared:
    return prepare(subject_of(short_config("e2b", *TWO_BUCKETS)), 3, 0, work, Here())


@pytest.fixture(scope="module")
def sound(prepared: Prepared, work: Path) -> Drilled:
    """Without a fault."""
    return run_drill(_drill("none", NO_FAULT), prepared, work, Here())


def _drill(name: str, fault: Fault) -> Drill:
    return Drill(name, "graph", "", lambda plan: fault, NOTHING)  # noqa: ARG005


def test_each_check_has_its_own(sound: Drilled) -> None:
    assert sound.prepared is not None and sound.run is not None
    proof = judge(sound.prepared, sound.run)
    assert proof.holds, proof.failed
    assert {check.name for check in proof.checks} == FAULTS.keys() | REFERENCES.keys() | CATALOGUE.keys()


@pytest.mark.parametrize("check", [*FAULTS, *CATALOGUE])
def test_a_fault_that_one_check_finds(check: str, prepared: Prepared, work: Path) -> None:
    drill = DRILLS[CATALOGUE[check]] if check in CATALOGUE else _drill(check, FAULTS[check])
    drilled = run_drill(drill, prepared, work, Here())
    assert result_of(drilled).found_by == (check,), drilled.ended
    with broken(check):
        assert not result_of(drilled).detected


@pytest.mark.parametrize("check", REFERENCES)
def test_a_reference_that_one_check_refuses(check: str, sound: Drilled) -> None:
    assert sound.prepared is not None
    unfit = replace(sound, prepared=replace(sound.prepared, reference=REFERENCES[check](sound.prepared.reference)))
    assert result_of(unfit).found_by == (check,)
    with broken(check):
        assert not result_of(unfit).detected


def _breaks(module: Any) -> None:
    raise TypeError(f"{module.softcap} is no plan")


def test_a_drill_that_breaks_is_no_detection(prepared: Prepared, work: Path) -> None:
    drill = _drill("broken", _in_module(_breaks))
    with pytest.raises(RankError, match="TypeError"):
        run_drill(drill, prepared, work, Here())
    assert result_of(run_drill(replace(drill, refused=True), prepared, work, Here())).found_by == ("run",)
