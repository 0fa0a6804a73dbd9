"""What a person sees. Each view renders from the plan's JSON form, so it can show a plan read from a file."""
