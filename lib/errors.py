"""The errors that a user is meant to read."""


class WorkbookError(Exception):
    """Bad input or a missing part: its message is one line naming the place and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class StopEverything(WorkbookError):
    """No request to a service can succeed any more: the key is refused, the quota used up, the model unknown."""
