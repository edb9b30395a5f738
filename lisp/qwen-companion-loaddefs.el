;;; qwen-companion-loaddefs.el --- Autoloads of the folders  -*- lexical-binding: t; no-byte-compile: t -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;; Written by scripts/loaddefs.el: edit the files it is made of, then run `make build'.

;;; Code:

;; qwen-companion-environment.el
(autoload 'qwen-companion-install-backend "qwen-companion-environment" "Make the Python environment of the companion, or make it anew.
It is a directory in `qwen-companion-backend-directory' with exactly the
packages of the requirements file, checked by hash.  Make it with uv if
that is on the variable `exec-path', else with the venv and pip of
`qwen-companion-python' or python3.  This runs in the background, in a
buffer of its own.  If it fails, the previous environment stays.

(fn)" t)

;; qwen-companion-blame.el
(autoload 'qwen-companion-blame "qwen-companion-blame" "Show who wrote each line of this file: an agent, with its prompt, or you.
The margin is empty for lines from before the journal.  The mouse on the
margin shows the prompt.
\\<qwen-companion-blame-mode-map>
The buffer becomes read-only: \\[qwen-companion-blame-next] and \\[qwen-companion-blame-previous] go from one author to the next,
\\[qwen-companion-blame-next-of-turn] and \\[qwen-companion-blame-previous-of-turn] through the lines of one turn; \\[qwen-companion-blame-show-turn] shows the turn,
\\[qwen-companion-blame-copy-prompt] copies its prompt and \\[qwen-companion-blame-mode] ends.  \\[read-only-mode] lets you edit; what you
type is yours in the next pause.

(fn)" t)
(autoload 'qwen-companion-blame-line "qwen-companion-blame" "Say who wrote the line at point.

(fn)" t)

;; qwen-companion-changes-commit.el
(autoload 'qwen-companion-changes-copy-patch "qwen-companion-changes" nil t)

;; qwen-companion-changes-undo.el
(autoload 'qwen-companion-changes-undo "qwen-companion-changes" nil t)
(autoload 'qwen-companion-changes-bring-back "qwen-companion-changes" nil t)

;; qwen-companion-changes.el
(autoload 'qwen-companion-changes-next "qwen-companion-changes" "Go to the next turn, file or hunk, or forward by COUNT of them.
In a file, go to the next unseen change of an agent, there or in another.

(fn &optional COUNT)" t)
(autoload 'qwen-companion-changes-previous "qwen-companion-changes" "Go to the previous turn, file, hunk or unseen change, or back by COUNT.

(fn &optional COUNT)" t)
(autoload 'qwen-companion-changes-mark-seen "qwen-companion-changes" "Mark the hunk, file or turn at point as seen and go on to the next.
It stays visible until the buffer is opened again.  With a prefix argument
UNSEEN, mark it as not seen.

(fn &optional UNSEEN)" t)
(autoload 'qwen-companion-changes-ediff "qwen-companion-changes" "Compare the file at point with its text before the turn, in Ediff.

(fn)" t)
(autoload 'qwen-companion-changes-compare-with-proposal "qwen-companion-changes" "Show how the file at point, as written, differs from the CLI's proposal.

(fn)" t)
(autoload 'qwen-companion-changes-comment "qwen-companion-changes" "Note a comment on the line at point; with an empty one, remove it.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] in \\[qwen-companion-changes] sends all comments to the CLI.

(fn)" t)
(autoload 'qwen-companion-changes-command-map "qwen-companion-changes" nil nil 'keymap)
(autoload 'qwen-companion-changes "qwen-companion-changes" "Show each change by CLIs, turn by turn, the newest turn first.
Include edits and shell commands, in every approval mode.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-toggle-fold] unfolds a turn or a file, \\[qwen-companion-changes-undo] undoes the
hunk, file or turn at point, and \\[qwen-companion-changes-bring-back] brings it back.  Changes
marked as seen (\\[qwen-companion-changes-mark-seen]) are hidden the next time.

(fn)" t)
(autoload 'qwen-companion-changes-show-turn "qwen-companion-changes" "Show the turn ID unfolded, with point on its part in PATH.

(fn ID PATH)" nil)

;; qwen-companion-journal.el
(autoload 'qwen-companion-journal-prune "qwen-companion-journal" "Forget the oldest part of what is recorded of a project, to free disk space.
Choose the last turn to forget; each is shown with its size.  Ask before
forgetting, naming the loss.  Turns in progress are kept.

(fn)" t)

;; qwen-companion-recover.el
(autoload 'qwen-companion-recover-on-took "qwen-companion-recover" "Handle `rewind-took': TURN has the edits that a CLI's own rewind overwrote.

(fn TURN)" nil)
(autoload 'qwen-companion-recover "qwen-companion-recover" "Restore your edits that a CLI's own rewind has overwritten.
They are merged into the current files and buffers; conflicts are shown as
for an undo.  Act on the turn with such edits at point in the buffer of
changes, else on the newest one of the project.

(fn)" t)

;; qwen-companion-rewind.el
(autoload 'qwen-companion-rewind "qwen-companion-rewind" "Rewind the conversation and the files to before a prompt.
Use the prompt at point in the buffer of changes or a chat; in other
buffers, choose one of the terminal's or the project's turns.  Describe
the effect and ask before doing it.

The journal undoes the agent's changes, so your own edits stay, and
conflicts are shown as for an undo.  The prompt returns for editing: to
the input of a chat, or to a prompt buffer for a CLI in a terminal.  That
CLI is restarted in the same window.

PART is `files' or `conversation' to rewind only that.  Interactively,
one \\[universal-argument] means the files only, two the conversation only.

(fn &optional PART)" t)
(autoload 'qwen-companion-fork "qwen-companion-rewind" "Fork a conversation after a turn into a CLI in a second terminal.
The new CLI has a copy of the conversation up to the turn at point in the
buffer of changes; in other buffers, choose the turn.  The first CLI does
not change, and both work on the same files.  With a prefix argument, ask
for the name of a git WORKTREE for the new CLI; if it does not exist, make
it from the last commit.

(fn &optional WORKTREE)" t)

;; qwen-companion-chat-export.el
(autoload 'qwen-companion-chat-export "qwen-companion-chat-export" "Write the conversation of this chat to FILE, as Markdown or as Org.
Use Org when the name ends in \".org\".  Texts cut in the conversation are
cut in FILE too.  Ask before overwriting a file.

(fn FILE)" t)

;; qwen-companion-chat-permissions.el
(autoload 'qwen-companion-chat-answer "qwen-companion-chat-permissions" "Answer the question at point, else the oldest in this chat.
Choose the answer by its name.  Outside of a chat, go to the question that
has waited longest.

(fn)" t)

;; qwen-companion-chat-send.el
(autoload 'qwen-companion-chat-send-region "qwen-companion-chat-send" "Insert the region, else the whole buffer, into the prompt of a chat.
Quote it, from START to END, with its file and lines, as it is in the
buffer, saved or not.  The chat is the one used last; with a prefix
argument, choose.

(fn &optional START END)" t)
(autoload 'qwen-companion-chat-send-file "qwen-companion-chat-send" "Insert references to FILES, by default this one, into a chat's prompt.
In Dired, these are the marked ones; in a buffer without a file, ask.  The
daemon reads them, from its own disk, when the prompt is sent.  The chat
is the one used last; with a prefix argument, which is Dired's there,
choose.

(fn FILES)" t)
(autoload 'qwen-companion-chat-send-problems "qwen-companion-chat-send" "Insert the problems of Flymake and Flycheck into the prompt of a chat.
Use the region, from START to END, when it is active, else the whole
buffer.  The chat is the one used last; with a prefix argument, choose.

(fn START END)" t)

;; qwen-companion-chat-sessions.el
(autoload 'qwen-companion-chats "qwen-companion-chat-sessions" "List the sessions of the daemon: title, time, clients and state.
\\<qwen-companion-chats-mode-map> \\[qwen-companion-chat-sessions-open]
opens the chat of a session, even if other clients have it open, or it has
ended or is dead; it is loaded again then.
\\[qwen-companion-chat] begins a new one,
\\[qwen-companion-chat-sessions-leave] leaves one,
\\[qwen-companion-chat-sessions-finish] ends one, \\[revert-buffer] asks
the daemon anew.

(fn)" t)
(autoload 'qwen-companion-chat-switch "qwen-companion-chat-sessions" "Go to the chat of a session of the daemon, chosen by its title.
Load the session if it is not open here.  The default is the most recent
other chat.

(fn)" t)

;; qwen-companion-chat.el
(autoload 'qwen-companion-chat "qwen-companion-chat" "Show the most recent chat with `qwen serve', or begin one.
With the prefix argument NEW, or in the list of chats, begin another.
Without a daemon, connect as `qwen-companion-daemon-connect' does; if the
chat had a daemon, use that one again.

(fn &optional NEW)" t)

;; qwen-companion-daemon.el
(autoload 'qwen-companion-daemon-connect "qwen-companion-daemon" "Connect to the `qwen serve' at `qwen-companion-daemon-url'.
ROOT is the workspace that the daemon must have: the root of the current
project, or the current directory without a project.  With a prefix
argument, ask for it.  It is a directory on the daemon's host, as are its
tools, MCP servers, skills and credentials.

Off unless `qwen-companion-daemon-enabled' is non-nil.

(fn ROOT)" t)
(autoload 'qwen-companion-daemon-start "qwen-companion-daemon" "Start `qwen serve' on this machine and connect to it.
Its workspace is ROOT: the root of the current project, or the current
directory without a project; with a prefix argument, ask for it.  It
listens on a free port of 127.0.0.1, requires a token made for it, and
ends with Emacs at the latest.  The program is that in
`qwen-companion-qwen-command'.

Off unless `qwen-companion-daemon-enabled' is non-nil.

(fn ROOT)" t)
(autoload 'qwen-companion-daemon-stop "qwen-companion-daemon" "Disconnect from the daemon.
A daemon that `qwen-companion-daemon-start' has started ends.

(fn)" t)

;; qwen-companion-privacy.el
(autoload 'qwen-companion-toggle-exclusion "qwen-companion-privacy" "Hide the file of this buffer from all CLIs, or follow the rules again.
With a prefix argument SHOW, show it to CLIs in spite of the rules, or
follow the rules again.

(fn &optional SHOW)" t)

;; qwen-companion-doctor.el
(autoload 'qwen-companion-doctor "qwen-companion-doctor" "Check everything between this Emacs and a CLI, and suggest remedies.
\\<qwen-companion-doctor-mode-map>\\[qwen-companion-doctor-copy] copies the report for a bug report.

(fn)" t)
(autoload 'qwen-companion-report-bug "qwen-companion-doctor" "Begin a bug report in a buffer of its own, for you to complete and send.
It has the checks of `qwen-companion-doctor' and the time and size of each
CLI's context, but no secrets, texts, or names of project files.

(fn)" t)

;; qwen-companion-inspector.el
(autoload 'qwen-companion-context "qwen-companion-inspector" "Show the latest context of each connected CLI: files, cursor, selection.
Below are the open files hidden from them, each with its rule.  The buffer
updates itself while a window shows it.

(fn)" t)

;; qwen-companion-menu.el
(autoload 'qwen-companion "qwen-companion-menu" nil t)
(autoload 'qwen-companion-more "qwen-companion-menu" nil t)
(autoload 'qwen-companion-menu-options "qwen-companion-menu" nil t)
(autoload 'qwen-companion-command-map "qwen-companion-menu" nil t 'keymap)
(autoload 'qwen-companion-manual "qwen-companion-menu" "Show the manual, in Info if it is installed there, else its source.

(fn)" t)
(autoload 'qwen-companion-menu-bar "qwen-companion-menu" "Return the menu of the mode for the menu bar, a keymap.

(fn &rest _)" nil)

;; qwen-companion-session-list.el
(autoload 'qwen-companion-sessions "qwen-companion-session-list" "List the CLIs with their activities, the connected ones first.
The others are your Qwen Codes on this machine, connected to another
editor or to none.  The list updates itself.
\\<qwen-companion-sessions-mode-map>\\[qwen-companion-session-list-visit] goes to the terminal of the CLI at point,
\\[qwen-companion-session-list-review] to its review, \\[qwen-companion-session-list-end] ends it.

(fn)" t)
(autoload 'qwen-companion-next-waiting "qwen-companion-session-list" "Go to the question or review of the next CLI or chat that waits for you.
Repeat it to go on to the one after it.

(fn)" t)

;; qwen-companion-uninstall.el
(autoload 'qwen-companion-uninstall "qwen-companion-uninstall" "Delete the Python environment and the records, after a question.
The records are the journal, kept plans, texts saved while you wrote them,
and the token with which Emacs prompts other CLIs, which Qwen Code then
revokes.  Directories without the companion's mark stay.  While the mode
is off, only your options and the package itself are left on disk then.

(fn)" t)

;; qwen-companion-welcome.el
(autoload 'qwen-companion-welcome "qwen-companion-welcome" "Show what is on and what it costs, with a key for each to turn it off.

(fn)" t)

;; qwen-companion-worktrees.el
(autoload 'qwen-companion-worktrees "qwen-companion-worktrees" "List the git worktrees of the project, each with its CLIs and its state.
\\<qwen-companion-worktrees-mode-map>\\[qwen-companion-worktrees-changes] shows the changes of agents, \\[qwen-companion-worktrees-merge] merges them into the main tree, \\[qwen-companion-worktrees-diff]
shows the difference to it, \\[qwen-companion-worktrees-remove] removes the worktree.

(fn)" t)

;; qwen-companion-ask.el
(autoload 'qwen-companion-ask "qwen-companion-ask" "Write a prompt for a CLI about the code, error or region at point.
Quote the region if it is active, else the marked files, the hunk, the
section of Magit, the message of a compilation or the problems at point;
else name the line.  In a compilation but not on a message, and in the
results of ERT, quote the whole buffer, or its end.

With a prefix argument BARE, quote nothing.  If a prompt was begun before,
continue it.  \\<qwen-companion-ask-mode-map>\\[qwen-companion-ask-submit]
sends it, \\[qwen-companion-ask-put-aside] puts it aside.

(fn &optional BARE)" t)
(autoload 'qwen-companion-ask-send "qwen-companion-ask" "Send PROMPT to a CLI, with the code, error or region at point quoted above.
See `qwen-companion-ask' for the choice of the quotation.

(fn PROMPT)" t)
(autoload 'qwen-companion-ask-take-back "qwen-companion-ask" "Take back a prompt that is queued until the turn of a CLI ends.
Put it into the prompt buffer of its project, to be edited or sent again.
If several are queued, choose one; they are listed in their order.

(fn)" t)
(autoload 'qwen-companion-recover-drafts "qwen-companion-ask" "Restore texts that you were writing when an Emacs was killed.
Put prompts, plans and comments into the prompt buffers of their projects.
Put an edited proposal into a buffer with keys to write it into its file,
and edited lines of a proposal into a separate buffer.

(fn)" t)

;; qwen-companion-comments.el
(autoload 'qwen-companion-diff-comment "qwen-companion-comments" "Note a comment on the line at point of a review; remove an empty one.
When you accept or reject the proposal, all its comments go to the CLI as
one prompt, once its turn is over.

(fn)" t)

;; qwen-companion-kept-plans.el
(autoload 'qwen-companion-plan "qwen-companion-kept-plans" "Show the last plan approved in the terminal or chat of this buffer.
In other buffers, and with a prefix argument CHOOSE, choose one of those
of the project if there are several.

(fn &optional CHOOSE)" t)

;; qwen-companion-prompt-completion.el
(autoload 'qwen-companion-prompt-completion-on-place-files "qwen-companion-prompt-completion" "Handle the `place-files' call: store the names of files in PAYLOAD.

(fn PAYLOAD)" nil)

;; qwen-companion-resume.el
(autoload 'qwen-companion-resume "qwen-companion-resume" "Choose a recorded conversation of the project, and start a CLI to continue it.
If a terminal of this Emacs has it open, go there; if another one has, ask
whether to end the CLI there first.  With a prefix argument, ask for the
DIRECTORY.  With NEWEST non-nil, continue the newest conversation.  On
another machine, the CLI lists the conversations itself, in its terminal.

(fn DIRECTORY &optional NEWEST)" t)

;; qwen-companion-rescue.el
(autoload 'qwen-companion-kept-apply "qwen-companion-rescue" "Put a rescued text into the buffer that visits its file.
One `undo' reverts that; the buffer is not saved.  If the file has
changes besides the proposed ones, show both texts in Ediff instead.

Act on the rescued text of the current buffer.  In other buffers, act on the
only one of the visited file, else on the only one.  BUFFER names another.

(fn &optional BUFFER)" t)
(autoload 'qwen-companion-kept-difference "qwen-companion-rescue" "Show how the file on disk differs from a rescued text.
BUFFER is as in `qwen-companion-kept-apply'.

(fn &optional BUFFER)" t)

;; qwen-companion-review-list.el
(autoload 'qwen-companion-diffs "qwen-companion-review-list" "List the open proposals.
The list updates itself while it is visible.
\\<qwen-companion-diffs-mode-map>\\[qwen-companion-diff-open] goes to a review, \\[qwen-companion-reviews-show] shows it beside the list.
\\[qwen-companion-reviews-mark] marks a proposal, \\[qwen-companion-reviews-accept-marked] accepts and \\[qwen-companion-reviews-reject-marked] rejects the marked ones.

(fn)" t)

;; qwen-companion-review.el
(autoload 'qwen-companion-diff-accept "qwen-companion-review" "Accept a proposal with your edits; the CLI writes it.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.

(fn &optional FILE)" t)
(autoload 'qwen-companion-diff-reject "qwen-companion-review" "Reject a proposal; nothing is written.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.  With a prefix argument, read a REASON,
for the model; a CLI in its mode \"default\" accepts none.

(fn &optional FILE REASON)" t)
(autoload 'qwen-companion-diff-empty "qwen-companion-review" "Reject a proposal and empty the buffer that visits its file.
Use it to make a file empty, which cannot be sent to a CLI.
One `undo' reverts it; the buffer is not saved.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.

(fn &optional FILE)" t)
(autoload 'qwen-companion-diff-open "qwen-companion-review" "Show the review of an open proposal and select it.
Act on the only proposal; FILE names the file of another one.

(fn &optional FILE)" t)
(autoload 'qwen-companion-diff-show-unsaved "qwen-companion-review" "Show your unsaved text as a third side of a review, or hide it again.
It is a copy of the text in the buffer that visits the file, as it is
now; neither that buffer nor the proposal changes.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.

(fn &optional FILE)" t)
(autoload 'qwen-companion-diff-switch "qwen-companion-review" "Show the review of a proposal in the other front end and select it.
Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.  See `qwen-companion-diff-style'.

(fn &optional FILE)" t)
(autoload 'qwen-companion-review "qwen-companion-review" "Go to the next open proposal.
From a review, go to the next one of its CLI, then to those of other
CLIs, and from the last to the first.  From a terminal, go to the oldest
proposal of its CLI.  From another buffer, go to the proposal on the
screen, else to the oldest.  With BACK non-nil, go to the previous one.

(fn &optional BACK)" t)
(autoload 'qwen-companion-review-previous "qwen-companion-review" "Go to the previous open proposal, see `qwen-companion-review'.

(fn)" t)
(autoload 'qwen-companion-diff-accept-next "qwen-companion-review" "Accept a proposal with your edits and go to the next one.
If none is open, but the CLI is in a turn, wait for its next one in this
one's window.

Act on the proposal of the current buffer, else on the only one; FILE
names the file of another one.

(fn &optional FILE)" t)

;; qwen-companion-remote.el
(autoload 'qwen-companion-serve-place "qwen-companion-remote" "Serve the CLIs at PLACE, where the current directory is, from now on.
With a prefix argument LEAVE, do not serve them.

(fn PLACE LEAVE)" t)
(autoload 'qwen-companion-remote-retry "qwen-companion-remote" "Connect now to the places that could not be reached.

(fn)" t)

;; qwen-companion-terminal.el
(autoload 'qwen-companion-terminal-escape "qwen-companion-terminal" "Send Esc to the program in this terminal, for example to stop a CLI.
In `emacs -nw' the key Esc is the prefix for Meta and does not reach it.

(fn)" t)
(autoload 'qwen-companion-paste-image "qwen-companion-terminal" "Save the clipboard's image in a file and mention that in the CLI's prompt.
The CLI is that of this terminal, or else of the project.

(fn)" t)

(provide 'qwen-companion-loaddefs)

;; Local Variables:
;; version-control: never
;; no-update-autoloads: t
;; End:
;;; qwen-companion-loaddefs.el ends here
