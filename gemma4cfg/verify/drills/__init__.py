"""Known faults, one record each: planted in a run, they have to be found."""
