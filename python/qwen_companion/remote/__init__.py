# SPDX-License-Identifier: GPL-3.0-or-later
"""CLIs on another machine, as another user or in a container: a relay there, and one pipe to it.

It may use all but `conversations`, `daemon` and `texts`.  Begin with `places`; `place` serves one place.
"""
