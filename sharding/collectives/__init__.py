"""Collectives of a tensor-parallel group behind one protocol, over three transports: none, shared memory, torch.distributed.

This module imports no torch; the transports (``alone``, ``shared_memory``, ``distributed``) are imported by name.
"""

from sharding.collectives.protocol import CollectiveError, Collectives

__all__ = ["CollectiveError", "Collectives"]
