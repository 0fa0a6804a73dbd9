"""What the SDK needs of a process before it is imported, and does not say."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

SYSTEM_TOOLS = "/opt/aws/neuron/bin"

_PREPARED = "GEMMA4CFG_SDK_PREPARED"
"""Set in the environment of a prepared process."""


def prepare() -> tuple[str, ...]:
    """Make this process fit to import the SDK; returns what was done, a sentence each. Calling it again changes nothing.

    - PATH: ``libneuronpjrt-path`` and ``neuronx-cc`` are looked up there, and an environment that is not activated has
      them beside its interpreter only;
    - ``transformers.utils.fx``, which NxD imports, is gone in transformers 5: a module with the two names stands in;
    - MASTER_PORT: the SDK's fixed ports may be another build's.
    """
    done = []
    for place in (str(Path(sys.executable).parent), SYSTEM_TOOLS):
        if Path(place).is_dir() and place not in os.environ.get("PATH", "").split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join(filter(None, (place, os.environ.get("PATH", ""))))
            done.append(f"PATH: {place} added")
    if _lacks_fx():
        stand_in = ModuleType("transformers.utils.fx")
        stand_in.HFTracer = type("HFTracer", (), {})  # type: ignore[attr-defined]
        stand_in.symbolic_trace = None  # type: ignore[attr-defined]
        sys.modules["transformers.utils.fx"] = stand_in
        done.append("transformers.utils.fx: a stand-in, for transformers 5 has none and NxD imports it")
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = str(_spare_port())
        done.append(f"MASTER_PORT: {os.environ['MASTER_PORT']}, a spare one")
    os.environ[_PREPARED] = "1"
    return tuple(done)


def prepare_spawned() -> None:
    """The same in a process that a prepared one has spawned, as ``parallel_model_trace`` does for each rank: it has the
    environment, but not the module that stands in. For main modules, which are imported before anything of the SDK's."""
    if _PREPARED in os.environ:
        prepare()


def _lacks_fx() -> bool:
    if "transformers.utils.fx" in sys.modules or importlib.util.find_spec("transformers") is None:
        return False
    return importlib.util.find_spec("transformers.utils.fx") is None


def _spare_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
