"""One module per decision; ``build`` puts them together. No torch, no transformers, no input or output."""
