"""What can be wrong with a checkpoint or a placement."""


class ShardingError(Exception):
    """A file, a header or a placement that cannot be used; the message names it."""
