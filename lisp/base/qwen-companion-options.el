;;; qwen-companion-options.el --- Options that several files use  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; An option that only one file uses is in that file.

;;; Code:

(defcustom qwen-companion-diff-style 'ediff
  "The front end in which a proposal is shown first.
`ediff': both texts, in Ediff.  `unified': one buffer with the changes,
hunk by hunk.  TAB switches between the two.

With nil, Emacs offers no reviews to CLIs that connect from then on; they
ask in their terminals only."
  :group 'qwen-companion
  :type '(choice (const :tag "Ediff" ediff)
                 (const :tag "Unified diff" unified)
                 (const :tag "No reviews in Emacs" nil)))

(defcustom qwen-companion-diff-size-limit 20000000
  "Size in bytes above which a text or a file is not reviewed.
The CLI is told so, and asks in its terminal only."
  :group 'qwen-companion
  :type 'natnum)

(defcustom qwen-companion-settings-layer t
  "Whether terminals in Emacs get a settings layer for Qwen Code.
The layer is a file below your own settings.  With it, the CLI connects
without asking, has its edits reviewed in its mode \"auto\" (see
`qwen-companion-review-edits'), and reports its status.  Your own files
stay unchanged.  CLIs read it when they start; with nil, new terminals do
not get it."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-review-edits 'all
  "Edits to review when a CLI writes files without asking.
`all': all edits in its mode \"auto\".  `open': in that mode, edits of files
that are open in Emacs.  `all-modes': all edits, in \"auto-edit\" and
\"yolo\" too, where the CLI runs commands without asking, but its edits
wait for you.  nil: none, as without Emacs.

This applies to CLIs in terminals of Emacs, see
`qwen-companion-settings-layer'.  A CLI started while this was nil writes
without asking when Emacs cannot answer.  In \"default\" all edits are
reviewed in any case.  The mode line names CLIs whose edits are not
reviewed."
  :group 'qwen-companion
  :type '(choice (const :tag "All edits in the mode auto" all)
                 (const :tag "Edits of files open in Emacs, in the mode auto" open)
                 (const :tag "All edits in all modes" all-modes)
                 (const :tag "As the CLI decides" nil)))

(defcustom qwen-companion-journal t
  "Whether the changes of agents in your projects are recorded.
Recorded changes can be shown turn by turn, and undone, whatever the
approval mode of the agent.  Copies of changed files, but not of excluded
or ignored ones, stay in a private directory for at most two weeks."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-show-questions t
  "Whether plans and questions of CLIs in terminals are shown in Emacs.
Either place accepts the answer.  This needs
`qwen-companion-settings-layer'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-tell-agents t
  "Whether to tell a model when another agent works on a file it wrote.
That is, the other agent changed the file in an unfinished turn, or waits
for your decision on a proposal.  The model is told once per turn and file,
for at most ten files.  This needs `qwen-companion-journal'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-tell-changes t
  "Whether to tell models about changes in files that they know.
Your next prompt then includes a unified diff of the changes and undos by
you or another program since the model last read or wrote these files in
that conversation, without excluded files.  This needs
`qwen-companion-journal', which then stores copies of the files that
models have read."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-commit-notes nil
  "Whether to add git notes to your commits about lines written by agents.
The notes, in a separate ref named in the manual, list sessions, models and
the first line of each prompt; `qwen-companion-blame' reads them in each
clone that has them.  An existing note is not replaced, and nothing else in
the repository is written.  This needs `qwen-companion-journal'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-token-limit nil
  "Number of tokens above which a turn of a CLI ends, or nil for no limit.
Input, output and cached tokens of all its requests count.  The turn ends
before the next request, after the tools of the last one; the terminal
shows the reason.  Your next prompt tells the model, and it can continue."
  :group 'qwen-companion
  :type '(choice (const :tag "No limit" nil)
                 (natnum :tag "Tokens")))

(defcustom qwen-companion-daemon-enabled nil
  "Whether `qwen serve' may be used.
With nil, nothing for it is loaded, started or connected to."
  :group 'qwen-companion
  :risky t
  :type 'boolean)

(defcustom qwen-companion-daemon-url nil
  "URL of the daemon for `qwen-companion-daemon-connect'.
With nil, use the environment variable QWEN_IDE_DAEMON_URL.  Plain HTTP is
for this machine only, like \"http://127.0.0.1:4170\"; a daemon elsewhere
needs https, or a tunnel to this machine.

Do not put the token here.  It is read from `auth-sources', by host and
port of the URL and the user \"qwen\"; else from the environment variable
QWEN_SERVER_TOKEN, or from the file that QWEN_SERVER_TOKEN_FILE names,
which only you may be able to read."
  :group 'qwen-companion
  :risky t
  :type '(choice (const :tag "From the environment" nil)
                 (string :tag "URL")))

(provide 'qwen-companion-options)
;;; qwen-companion-options.el ends here
