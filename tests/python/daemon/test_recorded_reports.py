# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from fake_daemon import RECORDED
from recorded_reports import LOADS, SESSIONS, TARGET, reports

ABOUT_THE_STREAM = {"replay", "resync"}


def test_the_tests_of_the_chat_use_what_the_client_makes_of_the_recording() -> None:
    # Not an assertion of two texts: nobody reads that difference.
    if TARGET.read_text(encoding="utf-8") != reports():
        raise AssertionError(f"{TARGET.name} is not what the client tells now; `make reports` makes it anew")


def test_no_recorded_turn_or_load_is_left_out() -> None:
    assert {name for names in SESSIONS for name in names} == RECORDED["turns"].keys() - ABOUT_THE_STREAM
    assert set(LOADS) == {name for name, answer in RECORDED["replies"].items() if "compactedReplay" in answer}
