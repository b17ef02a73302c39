"""What a command ends with in one sentence: what the user can mend, and training that cannot go on."""

import errno

REFUSALS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO}
)
"""What a disk answers when it is full, read-only, broken or not ours: no fault of the program, for a person to mend."""


class InputError(ValueError):
    """A mistake in what the user asked for: one sentence that names the value, what is allowed and what to do.

    The command line prints it without a traceback; anything else that escapes is a fault of ours.
    """


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1; True and 1.0 are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def require_positive(config: object, *names: str) -> None:
    """Refuse a config in which a count is below 1.

    Raises:
        InputError: it names the field and its value.
    """
    for name in names:
        value = getattr(config, name)
        if not is_count(value):
            raise InputError(f"{name} is {value}; it must be a whole number of at least 1")


class OtherProcessError(InputError):
    """Another process of the same run has refused, and has said why."""


class TrainingStoppedError(Exception):
    """Training cannot go on; the message says why and at which step."""
