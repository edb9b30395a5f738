# SPDX-License-Identifier: GPL-3.0-or-later
"""The model and the approval mode of a chat, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import httpx2
import pytest

from chat import CHAT, answer, converse, daemons, open_chat, send
from clis import QWEN_SETTINGS, QWEN_SETTINGS_FILE
from openai_chat import MODEL_NAME
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]


def open_chat_with_models(stage: Stage) -> None:
    """Open a chat with three models: the usual, another, and one that has no key."""
    key, url = "OPENAI_API_KEY", stage.environment["OPENAI_BASE_URL"]
    models = [
        {"id": MODEL_NAME, "name": "Usual", "description": "the one it begins with", "envKey": key, "baseUrl": url},
        {"id": "another", "name": "Another", "envKey": key, "baseUrl": url},
        {"id": "locked", "name": "Locked", "envKey": "A_KEY_THAT_NOBODY_HAS", "baseUrl": url},
    ]
    stage.sandbox.write_cli_settings({**QWEN_SETTINGS, "modelProviders": {"openai": models}})
    open_chat(stage)
    # With the names, that is, all there is to choose has been told.
    stage.screen.wait_for(" idle Usual Default")


def settings(stage: Stage) -> str:
    """Return the user's settings of the CLI, and so of the daemon."""
    return (stage.sandbox.home / QWEN_SETTINGS_FILE).read_text()


def choose_model(stage: Stage, name: str) -> str:
    """Type the command and `name`; return the screen with the question."""
    stage.screen.keys("C-c", "M-m")
    stage.screen.wait_for("Model (default Usual):")
    stage.screen.enter(name)
    return stage.screen.wait_for("(y or n)")


def test_a_mode_in_which_nothing_is_asked(stage: Stage) -> None:
    open_chat(stage)
    first, second = (stage.sandbox.project / name for name in ("first.txt", "second.txt"))
    stage.model.call("write_file", file_path=str(first), content="one\n")
    stage.model.say("The first is written.")
    send(stage, "write one")
    stage.screen.wait_for("Asks:1")
    assert not first.exists()
    answer(stage, "Allow")
    stage.screen.wait_for("The first is written.")
    stage.screen.wait_for(" idle scripted Default")
    stage.screen.keys("C-c", "C-m")
    stage.screen.wait_for("Approval mode (default Default):")
    stage.screen.keys("Tab", "Tab")
    # What it means stands beside it.
    screen = stage.screen.wait_for(re.compile(r"YOLO +Automatically approve all tools"))
    assert re.search(r"Default +\(in use\) ", screen)
    stage.screen.enter("yolo")
    stage.screen.wait_for("Approval mode now: YOLO: Automatically approve all tools")
    stage.screen.wait_for(" idle scripted YOLO")
    stage.model.call("write_file", file_path=str(second), content="two\n")
    stage.model.say("The second is written.")
    send(stage, "write two")
    screen = stage.screen.wait_for("The second is written.")
    assert "Asks" not in screen
    assert stage.emacs.buffer_text(CHAT).count('you answered "Allow"') == 1
    assert second.read_text() == "two\n"


def test_models_are_chosen_refused_and_chosen_by_another_client(stage: Stage) -> None:
    open_chat_with_models(stage)
    before = settings(stage)
    # One that the daemon refuses.
    choose_model(stage, "locked")
    stage.screen.keys("y")
    stage.screen.wait_for("The model was not changed: Missing credentials")
    screen = stage.screen.wait_for("The daemon did not switch the model")
    assert " idle Usual Default" in screen
    assert settings(stage) == before
    converse(stage, "who are you?", "Here I am.")
    assert stage.model.next_request().body["model"] == MODEL_NAME
    # One that is chosen, at the second asking.
    screen = choose_model(stage, "another")
    assert "Use Another, which rewrites the user's settings on the daemon's host? (y or n)" in screen
    stage.screen.keys("n")
    stage.wait_until_said("The model is still Usual")
    choose_model(stage, "another")
    assert settings(stage) == before
    stage.screen.keys("y")
    stage.screen.wait_for(" idle Another Default")
    stage.screen.wait_for("A setting was rewritten on the daemon's host: model.name")
    assert json.loads(before)["model"]["name"] == MODEL_NAME
    assert json.loads(settings(stage))["model"]["name"] == "another"
    converse(stage, "and who are you?", "Now it is me.")
    assert stage.model.next_request().body["model"] == "another"
    # What another client chooses is in the mode line.
    _, daemon = daemons(stage)
    host = stage.emacs.text("(plist-get qwen-companion-daemon--report :host)")
    token = daemon.environ()["QWEN_SERVER_TOKEN"]
    other = httpx2.Client(base_url=f"http://{host}", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    with other:
        workspace = quote(str(stage.sandbox.project), safe="")
        session, *_ = other.get(f"/workspace/{workspace}/sessions").raise_for_status().json()["sessions"]
        path = f"/session/{session['sessionId']}"
        other.post(f"{path}/approval-mode", json={"mode": "plan"}).raise_for_status()
        stage.screen.wait_for(" idle Another Plan")
        other.post(f"{path}/model", json={"modelId": f"{MODEL_NAME}(openai)"}).raise_for_status()
        stage.screen.wait_for(" idle Usual Plan")
