"""``python -m tests.trained [--model e2b]``: make the trained checkpoints anew, and say what came out."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from tests.trained import DIRECTORY, MADE_ON, MODELS
from tests.trained.files import write_json
from tests.trained.training import made_on, train

SEED, MOST_STEPS, UNTIL = 0, 250, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--output", type=Path, default=DIRECTORY, help="directory of the models' directories")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=MOST_STEPS, help="at most so many")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors are too small for more
    for model in [arguments.model] if arguments.model else MODELS:
        begun = time.perf_counter()
        done = train(model, arguments.output / model, arguments.seed, arguments.steps, UNTIL)
        size = (arguments.output / model / "model.safetensors").stat().st_size
        print(
            f"{model}: {done.steps} steps, loss {done.loss:.4f}, {done.cpu_seconds:.0f} CPU s, "
            f"{time.perf_counter() - begun:.0f} s, {size / 1e6:.2f} MB",
            flush=True,
        )
        record = arguments.output / MADE_ON.name
        known = json.loads(record.read_text()) if record.exists() else {}
        write_json(record, known | {model: made_on()})


if __name__ == "__main__":
    main()
