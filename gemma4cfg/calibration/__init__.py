"""Published measurements beside what a plan predicts of them: ``python -m gemma4cfg.calibration``."""
