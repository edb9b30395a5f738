;;; qwen-companion-options.el --- Options that several files use  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; An option that only one file uses is in that file.

;;; Code:

(defcustom qwen-companion-diff-style 'ediff
  "The front end in which a proposal is shown first.
`ediff': both texts, in Ediff.  `unified': one buffer with the changes,
hunk by hunk.  TAB in one shows the review in the other.

With nil no proposal is shown: a CLI that connects from then on is not
offered reviews in Emacs, and asks in its terminal only."
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
That is a file below your own settings: it lets the CLI connect without
asking first, have its edits reviewed in its mode \"auto\", see
`qwen-companion-review-edits', and report what it is doing.  None of
your files is changed.  CLIs read it when they start.  With nil,
terminals opened from now on do not get it."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-review-edits 'all
  "Which edits are reviewed of a CLI that writes files without asking.
With `all', each edit in its mode \"auto\"; with `open', there those of
files that are open in Emacs.  With `all-modes' each edit in \"auto-edit\"
and \"yolo\" as well: there the CLI runs what it likes, but its edits wait
for you.  With nil it writes without asking, as without Emacs.

It counts for CLIs in terminals of Emacs, see
`qwen-companion-settings-layer'; one that was started while this was nil
writes without asking when Emacs cannot answer.  In \"default\" each edit
is reviewed in any case.  The mode line says of which CLIs edits are not
reviewed."
  :group 'qwen-companion
  :type '(choice (const :tag "All edits in the mode auto" all)
                 (const :tag "Edits of files open in Emacs, in the mode auto" open)
                 (const :tag "All edits in all modes" all-modes)
                 (const :tag "As the CLI decides" nil)))

(defcustom qwen-companion-journal t
  "Whether the changes of agents in your projects are recorded.
It can then be shown turn by turn, and undone, whatever mode the agent
worked in.  Copies of changed files are kept in a private directory for
that, for two weeks at most; none of excluded or ignored files."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-show-questions t
  "Whether plans and questions of CLIs in terminals are shown in Emacs.
They can be answered in the terminal as well.  This needs
`qwen-companion-settings-layer'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-tell-agents t
  "Whether a model is told that another agent works on the file it has written.
The other has changed it in a turn that goes on, or has proposed a change
on which you have not decided.  The model is told once in a turn for each
file, of ten files at most.  This needs `qwen-companion-journal'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-tell-changes t
  "Whether models are told of changes in the files that they know.
With your next prompt it reads, as a unified diff, what you or another
program have changed in files since it last read or wrote them in that
conversation; also what you have undone.  It is told of no excluded
file.  This needs `qwen-companion-journal', which then keeps copies of
the files that models have read."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-commit-notes nil
  "Whether your commits get git notes that say which lines agents have written.
They are in a ref of their own, which the manual names, with sessions,
models and the first line of each prompt; `qwen-companion-blame' reads
them in each clone that has them.  A commit that has a note there keeps
it, and nothing else of the repository is written.  This needs
`qwen-companion-journal'."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-token-limit nil
  "Number of tokens above which a turn of a CLI ends, or nil for no limit.
The tokens of all its requests count, what goes in and what comes out,
also what comes from a cache.  The turn ends before the next request,
with the reason in the terminal; the tools before that have run, and the
model is told so with your next prompt, with which it can go on."
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
  "URL of the daemon that `qwen-companion-daemon-connect' connects to.
With nil, the environment variable QWEN_IDE_DAEMON_URL names it.  Plain
HTTP is for this machine only, like \"http://127.0.0.1:4170\"; a daemon
elsewhere needs https, or a tunnel to this machine.

Its token does not belong here.  It is taken from `auth-sources': host
and port of the URL, and the user \"qwen\"; else from the environment
variable QWEN_SERVER_TOKEN, or from the file that QWEN_SERVER_TOKEN_FILE
names, which nobody but you may be able to read."
  :group 'qwen-companion
  :risky t
  :type '(choice (const :tag "From the environment" nil)
                 (string :tag "URL")))

(provide 'qwen-companion-options)
;;; qwen-companion-options.el ends here
