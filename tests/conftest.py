"""Workers share the cores: each computes with one thread, or they wait for one another in loops that burn a core."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
