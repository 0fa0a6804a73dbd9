"""What two plans differ in: exact edits of their JSON, and what they mean for tensors, graphs and rank files."""
