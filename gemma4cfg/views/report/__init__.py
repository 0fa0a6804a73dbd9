"""Plans, differences and sweeps as one self-contained page each, and a plan's map as a picture."""
