"""Placements of tensors on ranks and the bytes they mean. Knows nothing of any model."""
