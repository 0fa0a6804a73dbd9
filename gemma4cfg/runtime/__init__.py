"""Running a plan: the rank-local model made of the reference's own code, its graphs and KV state, and the host's part."""
