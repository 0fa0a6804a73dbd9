"""What can be wrong with a checkpoint or a placement."""


class ShardingError(Exception):
    """A file, a header or a placement that cannot be used; the message names it."""


class ForeignJobError(ShardingError):
    """A directory that holds files of another job: nothing of it is reused, nothing in it is overwritten."""


class SourceChangedError(ShardingError):
    """A source that is no longer what it was when reading began."""


class NoSpaceError(ShardingError, OSError):
    """Too little room, found before the first byte is written (``errno`` is ENOSPC)."""

    def __str__(self) -> str:
        return str(self.strerror)
