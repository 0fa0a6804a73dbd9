"""``python -m gemma4cfg`` and the ``gemma4cfg`` command."""

import gc

# One plan is made in half a second, most of it imports and Hydra's composing, which drop nothing: a tenth less without.
gc.disable()

from gemma4cfg.cli import main  # noqa: E402
from gemma4cfg.compile.sdk_environment import prepare_spawned  # noqa: E402

prepare_spawned()

if __name__ == "__main__":
    main()
