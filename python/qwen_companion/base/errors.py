# SPDX-License-Identifier: GPL-3.0-or-later
"""Exceptions of the backend, grouped by how a caller can react."""

from __future__ import annotations


class CompanionError(Exception):
    """Base of the errors below.  Their text can be shown to the user: it names no secret and no file content."""


class HelloError(CompanionError):
    """The first line on standard input is not from the Elisp of this version."""


class MessageError(CompanionError):
    """An EPC payload differs from the shape that `emacs.messages` declares."""


class SpoolError(CompanionError):
    """A text could not be passed by private file."""


class PromptError(CompanionError):
    """A prompt could not be written to the file that a CLI reads."""


class EmacsUnavailableError(CompanionError):
    """A call to Emacs is not answered; base of the reasons below."""


class EmacsGoneError(EmacsUnavailableError):
    """The EPC connection has ended; no call will be answered any more."""


class EmacsBusyError(EmacsUnavailableError):
    """No answer within the time limit.  Emacs has the call and may still act on it."""


class EmacsRefusedError(EmacsUnavailableError):
    """The Elisp handler signalled an error, or the call could not be sent at all."""


class UnknownNameError(CompanionError):
    """The true name of a file cannot be found."""


class PatternError(CompanionError):
    """A line is not a pattern of the gitignore format."""


class RuleFileError(CompanionError):
    """A file of patterns exists but cannot be used."""


def first_error(error: BaseException) -> BaseException:
    """Return `error`, or if it is a group, the first error in it that is not a group."""
    # Python 3.10 has no name for a group.
    while members := getattr(error, "exceptions", ()):
        error = members[0]
    return error
