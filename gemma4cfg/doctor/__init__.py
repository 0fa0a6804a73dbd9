"""A machine held against a plan before money is spent: its facts, and what the plan needs of them."""
