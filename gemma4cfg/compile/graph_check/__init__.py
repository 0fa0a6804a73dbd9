"""What is known to fail on the device, or to be silently wrong there, looked for in exported graphs. A rule for each."""
