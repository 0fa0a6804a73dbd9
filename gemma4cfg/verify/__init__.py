"""The proof: a plan run on CPU ranks against the reference, and faults planted to be found."""
