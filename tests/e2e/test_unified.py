# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews hunk by hunk: dropped hunks are not written, and both front ends show one proposal."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from client import Client
from display import display
from editor import draws_windows, lisp_string
from sandbox import GREETING
from stage import Stage

pytestmark = pytest.mark.reuses_stage("client")

OLD = "".join(f"line {number}\n" for number in range(1, 41))
NEW = OLD.replace("line 5\n", "line five\n").replace("line 20\n", "").replace("line 35\n", "line 35\nline 35a\n")
UNIFIED = "(setq qwen-companion-diff-style 'unified)"
ON_COMMAND = "(setq qwen-companion-diff-arrival 'command)"
# What the mode line says of the companion to a pointer above it.
LIGHTER_HELP = """
(let* ((line (format-mode-line mode-line-modes)) (place (string-search "Qwen[" line)))
  (and (lookup-key (get-text-property place 'local-map line) [mode-line mouse-1])
       (funcall (get-text-property place 'help-echo line) nil line place)))
"""
HUNKS = "*qwen-companion hunks: list.txt*"


LIST = "*qwen-companion proposals*"
NAMES = ("list", "two", "three", "four", "five", "six", "seven", "eight")


def selected(name: str) -> str:
    """Return the form that is true while the buffer `name` is selected."""
    return f"(equal {lisp_string(name)} (buffer-name (window-buffer)))"


def hunks(name: str) -> str:
    """Return the name of the buffer in which the file `name` is reviewed hunk by hunk."""
    return f"*qwen-companion hunks: {name}.txt*"


def visible(name: str) -> str:
    """Return the form that is true while the buffer `name` is in a window."""
    return f"(get-buffer-window {lisp_string(name)})"


def at(text: str) -> str:
    """Return the form that is true while `text`, a regexp, is at point."""
    return f"(with-selected-window (selected-window) (looking-at-p {lisp_string(text)}))"


def status(text: str) -> str:
    """Return the form that is true while the header of the review counts hunks as `text`."""
    return (
        f"(string-search {lisp_string(text)}"
        ' (or (buffer-local-value \'qwen-companion-review-unified--status (window-buffer)) ""))'
    )


def said(text: str) -> str:
    """Return the form that is true while `text` is among the last messages."""
    messages = '(with-current-buffer "*Messages*" (buffer-substring (max 1 (- (point-max) 300)) (point-max)))'
    return f"(string-search {lisp_string(text)} {messages})"


def left(count: int) -> str:
    """Return the form that is true while `count` proposals are open."""
    return f"(= {count} (length (qwen-companion-proposals)))"


def marked(count: int) -> str:
    """Return the form that is true while `count` proposals are marked in the list."""
    return f'(= {count} (length (buffer-local-value \'qwen-companion-list-marked (get-buffer "{LIST}"))))'


PROMPT = "(active-minibuffer-window)"
NO_PROMPT = f"(null {PROMPT})"
FIRST_LINE = at("[* ] \\(?:[^ ]+:\\)?list[.]txt")

# Keys as Emacs writes them, and what is true after each.
REVIEW_KEYS = (
    ("n", at("@@ -17,")),
    ("p", at("@@ -2,")),
    ("k", status("2 of 3")),
    ("u", status("3 of 3")),
    ("x", status("2 of 3")),
    ("C-/", status("3 of 3")),
    ("K", status("2 of 3")),
    ("C-x u", status("3 of 3")),
    ("o", status("1 of 3")),
    ("C-/", status("3 of 3")),
    ("p", at("@@ -2,")),
    ("+", said("4 lines of context")),
    ("-", said("3 lines of context")),
    ("w", status("hidden")),
    ("w", f"(not {status('hidden')})"),
    (".", said("Hunk 1 of 3, kept.  Line 5, removed: line 5; added: line five.")),
    ("C-n C-n C-n C-n C-n", at("[+]line five")),
    ("s", status("4 of 4")),
    ("C-/", status("3 of 3")),
    ("e", selected("*qwen-companion edit: list.txt*")),
    ("C-c C-k", selected(hunks("list"))),
    ("c", PROMPT),
    # C-g would quit what waits for this.
    ("RET", NO_PROMPT),
    ("C-c C-r", PROMPT),
    ("RET", NO_PROMPT),
    ("C-c C-u", said("No unsaved text of")),
    ("C-c C-l", said("not change the line ends")),
    ("C-c C-w", said("No warnings about this proposal")),
    ("RET", selected("list.txt")),
    ("C-x o", selected(hunks("list"))),
    ("]", selected(hunks("two"))),
    ("[", selected(hunks("list"))),
    ("M-n", selected(hunks("two"))),
    ("M-p", selected(hunks("list"))),
    ("TAB", selected("*Ediff Control Panel*")),
    ("TAB", selected(hunks("list"))),
    ("?", visible("*Help*")),
    ("C-x 1", f"(not {visible('*Help*')})"),
    ("l", selected(LIST)),
)
LIST_KEYS = (
    ("M-<", "t"),
    ("n", FIRST_LINE),
    ("m", marked(1)),
    # What is moved to is shown beside the list, which stays selected.
    ("n", visible(hunks("three"))),
    ("p", visible(hunks("two"))),
    ("p", visible(hunks("list"))),
    ("u", marked(0)),
    ("SPC", visible(hunks("two"))),
    ("C-o", f"(and {visible(hunks('two'))} {selected(LIST)})"),
    ("g", selected(LIST)),
    ("A", left(7)),
    ("M-<", "t"),
    ("n n", at("  \\(?:[^ ]+:\\)?three")),
    ("K", left(6)),
    ("M-<", "t"),
    ("n n", at("  \\(?:[^ ]+:\\)?four")),
    ("C-c C-k", left(5)),
    ("M-<", "t"),
    ("n n", at("  \\(?:[^ ]+:\\)?five")),
    ("C-c C-c", left(4)),
    ("?", visible("*Help*")),
    ("C-x 1", f"(not {visible('*Help*')})"),
    ("M-<", "t"),
    ("n", FIRST_LINE),
    ("RET", selected(hunks("list"))),
)
LAST_KEYS = (
    # The next key would be refused while the texts are compared.
    ("A", f"(and {selected(hunks('six'))} {status('3 of 3')})"),
    ("C-c C-n", selected(hunks("seven"))),
    ("C-c C-k", left(1)),
)
# The keys that a keymap binds itself, without menus and the mouse.
KEYS_OF = """
(let (keys)
  (map-keymap-internal
   (lambda (event binding)
     (cond ((memq event '(menu-bar remap mouse-2)))
           ((keymapp binding)
            (map-keymap (lambda (second _) (push (key-description (vector event second)) keys)) binding))
           (t (push (key-description (vector event)) keys))))
   {})
  (mapconcat #'identity keys " , "))
"""


def press_all_keys(stage: Stage, client: Client, press: Callable[[str], None]) -> None:
    """Let `client` propose changes of `NAMES`; press each key of a review and of the list, as Emacs writes them."""
    emacs = stage.emacs
    for keymap, keys, exceptions in (
        ("qwen-companion-unified-mode-map", (*REVIEW_KEYS, *LAST_KEYS), {"q", "C-c C-c", "C-c C-t"}),
        ("qwen-companion-diffs-mode-map", LIST_KEYS, set[str]()),
    ):
        emacs.eval("(progn (require 'qwen-companion-review-unified) (require 'qwen-companion-review-list))")
        assert set(emacs.text(KEYS_OF.format(keymap)).split(" , ")) - {key for key, _ in keys} == exceptions
    paths = [stage.sandbox.project / f"{name}.txt" for name in NAMES]
    for path in paths:
        path.write_text(OLD)
        client.propose(path, NEW)
    emacs.eval(f"(progn (find-file {emacs.lisp_name(paths[0])}) (qwen-companion-review))")
    emacs.wait_until(status("3 of 3"))

    def press_each(keys: tuple[tuple[str, str], ...]) -> None:
        for key, form in keys:
            press(key)
            try:
                emacs.wait_until(form)
            except AssertionError as error:
                raise AssertionError(f"{key}: not {form}; {emacs.buffer_text('*Messages*')[-500:]}") from error

    press_each(REVIEW_KEYS)
    press_each(LIST_KEYS)
    press_each((("q", f"(null (get-buffer {lisp_string(hunks('list'))}))"),))
    emacs.eval(f"(qwen-companion-diff-open {emacs.lisp_name(paths[0])})")
    emacs.wait_until(status("3 of 3"))
    press_each(LAST_KEYS)
    emacs.eval("(qwen-companion-diff-open)")
    emacs.wait_until(status("3 of 3"))
    press_each((("C-c C-c", left(0)),))
    for number, accepted in ((1, True), (2, False), (3, False), (4, True), (0, True), (5, True), (6, False), (7, True)):
        if accepted:
            client.write_accepted(paths[number])
        else:
            assert client.answer(paths[number]) is None


def open_review(stage: Stage) -> Client:
    """Propose three changes of a list, and go to the review."""
    path = stage.sandbox.project / "list.txt"
    path.write_text(OLD)
    stage.start_emacs(path, forms=(UNIFIED,))
    client = stage.connect_client()
    client.propose(path, NEW)
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("3 of 3 hunks kept")
    # The file has stayed selected.
    assert stage.emacs.visible_buffers() == [HUNKS, "list.txt"]
    assert stage.emacs.eval("(buffer-name (window-buffer))") == '"list.txt"'
    stage.emacs.command("qwen-companion-diff-open")
    return client


def x_key(key: str) -> str:
    """Return the name of `key`, as Emacs writes it, for `Display.keys`."""
    names = {"/": "slash", "+": "plus", "-": "minus", ".": "period", "?": "question", "]": "bracketright"}
    names |= {"[": "bracketleft", "RET": "Return", "TAB": "Tab", "SPC": "space", "<": "less"}
    modifiers = {"C-": "ctrl+", "M-": "alt+"}
    if key[:2] in modifiers:
        return modifiers[key[:2]] + x_key(key[2:])
    return names.get(key, key)


def test_each_key(stage: Stage) -> None:
    names = {"C-/": "C-_", "RET": "Enter", "TAB": "Tab", "SPC": "Space"}
    stage.start_emacs(stage.sandbox.greeting, forms=(UNIFIED, ON_COMMAND))
    client = stage.connect_client()
    press_all_keys(stage, client, lambda keys: stage.screen.keys(*(names.get(key, key) for key in keys.split())))


def accept(stage: Stage, client: Client, expected: str) -> None:
    """Accept the proposal by the keys; its text must be `expected`. Return when Emacs shows the written file."""
    stage.screen.keys("C-c", "C-c")
    assert client.write_accepted(stage.sandbox.project / "list.txt") == expected
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("list.txt") == expected, "the buffer as on disk")
    assert stage.emacs.visible_buffers() == ["list.txt"]


def test_what_is_dropped_is_not_written(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("n", "k")
    stage.screen.wait_for("2 of 3 hunks kept")
    stage.screen.wait_for("dropped, u restores it")
    assert re.match(r"test-client \d+ in \S+ reviewing\nmouse-1: menu", stage.emacs.text(LIGHTER_HELP))
    stage.screen.keys("o")
    stage.screen.wait_for("0 of 3 hunks kept")
    stage.screen.keys("C-_")
    stage.screen.wait_for("2 of 3 hunks kept")
    accept(stage, client, NEW.replace("line 19\n", "line 19\nline 20\n"))


def test_to_ediff_and_back_by_one_key(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("k")
    stage.screen.wait_for("2 of 3 hunks kept")
    stage.screen.keys("Tab")
    stage.screen.wait_for("Review in Ediff")
    # The dropped one is none for Ediff; its second one is dropped there.
    stage.screen.keys("n", "a", "Tab")
    stage.screen.wait_for("1 of 2 hunks kept")
    stage.screen.keys("u")
    stage.screen.wait_for("2 of 2 hunks kept")
    # Ediff would say in the echo area how far it is, over what was announced there.
    assert "rocessing difference" not in stage.emacs.buffer_text("*Messages*")
    accept(stage, client, NEW.replace("line 35a\n", ""))


def test_lines_are_edited_in_the_mode_of_the_file(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("e")
    stage.screen.wait_for("apply to the proposal")
    # Point is on the change, not on what is around it.
    stage.screen.type("first", seen="firstline five")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("+firstline five")
    accept(stage, client, NEW.replace("line five\n", "firstline five\n"))


def test_it_is_answered_in_the_terminal(stage: Stage) -> None:
    """The review closes; its text without the dropped hunks is kept, since the CLI writes its own text."""
    client = open_review(stage)
    path = stage.sandbox.project / "list.txt"
    stage.screen.keys("k")
    stage.screen.wait_for("2 of 3 hunks kept")
    kept = NEW.replace("line five\n", "line 5\n")
    assert client.close(path) == kept
    path.write_text(NEW)
    stage.screen.wait_gone("hunks kept")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("list.txt") == NEW, "the buffer as on disk")
    assert stage.emacs.visible_buffers() == ["list.txt"]
    assert stage.emacs.buffer_text("*qwen-companion kept: list.txt*") == kept
    stage.emacs.eval('(with-current-buffer "*qwen-companion kept: list.txt*" (qwen-companion-kept-discard))')


@pytest.mark.skipif(not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does")
@pytest.mark.fresh_stage
@pytest.mark.local("proposals are handed to Emacs directly")
def test_in_a_window_with_colours(stage: Stage) -> None:
    """The keys do the same, and the text has the colours of the file's mode."""
    with display() as screen:
        stage.emacs.start(
            stage.sandbox.greeting, forms=(UNIFIED, "(external-debugging-output ?.)"), display=screen.name
        )
        window = stage.emacs.text("(frame-parameter nil 'outer-window-id)")
        stage.emacs.eval("(qwen-companion-mode 1)")
        stage.emacs.wait_until("(eq (qwen-companion-state) 'ready)")
        text = GREETING.replace('"hello "', '"good day "').replace("def main", "def start")
        lisp = text.replace("\\", "\\\\").replace('"', '\\"')
        payload = f'\'(:id "p" :session "s" :client "Qwen Code" :path "{stage.sandbox.greeting}" :text "{lisp}")'
        stage.emacs.eval(f"(qwen-companion-proposal-on-open {payload})")
        stage.emacs.eval("(qwen-companion-diff-open)")
        buffer = '(get-buffer "*qwen-companion hunks: greeting.py*")'
        stage.emacs.wait_until(f"(buffer-local-value 'qwen-companion-review-unified--hunks {buffer})")
        face = (
            f"(with-current-buffer {buffer} (save-excursion (goto-char (point-min))"
            ' (and (search-forward "+def start" nil t) (get-text-property (- (point) 7) \'face))))'
        )
        stage.emacs.wait_until(f"(memq 'font-lock-keyword-face (ensure-list {face}))")
        screen.keys(window, "ctrl+c", "ctrl+k")
        stage.emacs.wait_until("(null (qwen-companion-proposals))")
        assert stage.emacs.visible_buffers() == ["greeting.py"]
        stage.emacs.eval(ON_COMMAND)
        stage.emacs.eval("(delete-other-windows)")
        stage.wait_until_published()
        client = Client(stage.sandbox)
        press_all_keys(stage, client, lambda keys: screen.keys(window, *map(x_key, keys.split())))
        # A frame without room: the review comes in the other one, and what is typed goes where it did.
        small = '(make-frame \'((height . 12) (width . 60) (name . "small")))'
        stage.emacs.eval(f'(progn (select-frame-set-input-focus {small}) (switch-to-buffer "greeting.py"))')
        stage.emacs.eval("(setq qwen-companion-diff-arrival 'now)")
        client.propose(stage.sandbox.greeting, text)
        shown = '(get-buffer-window "*qwen-companion hunks: greeting.py*" \'visible)'
        stage.emacs.wait_until(shown)
        assert stage.emacs.text(f"(frame-parameter (window-frame {shown}) 'name)") != "small"
        assert stage.emacs.text("(frame-parameter nil 'name)") == "small"
        assert stage.emacs.visible_buffers() == ["greeting.py"]
        client.disconnect()
        stage.end()
