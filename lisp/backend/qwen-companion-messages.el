;;; qwen-companion-messages.el --- Read what the Python process sends  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Accessors for the property lists that the Python process sends.  `make docs'
;; writes the keys below from the named classes;
;; `qwen_companion/wire/messages.py' documents them.  A text in a message may
;; be in a file: use `qwen-companion-spool'.

;;; Code:

(defsubst qwen-companion-messages-file-name (name)
  "Return NAME, read from a message, as Emacs has names of files.
The Lisp reader makes a name with bytes that are not UTF-8 unibyte."
  (if (and name (not (multibyte-string-p name)) (string-match-p "[^[:ascii:]]" name))
      (string-to-multibyte name)
    name))

(defmacro qwen-companion-messages-define (prefix class &rest keys)
  "Define functions for KEYS in the property lists that the Python CLASS writes.
Their names are PREFIX, a hyphen and the key; each returns the value of
its key, or nil."
  (declare (indent 2))
  `(progn
     ,@(mapcar
        (lambda (key)
          `(defsubst ,(intern (format "%s-%s" prefix key)) (message)
             ,(format "Return the value of `:%s' in MESSAGE, written by `%s'." key class)
             ,(let ((value `(plist-get message ,(intern (format ":%s" key)))))
                (pcase key
                  ((or 'path 'previous) `(qwen-companion-messages-file-name ,value))
                  ('files-gone `(mapcar #'qwen-companion-messages-file-name ,value))
                  (_ value)))))
        keys)))

(qwen-companion-messages-define "qwen-companion-published" Published
  roots reachable port token environment warnings guarded)
(qwen-companion-messages-define "qwen-companion-file-list" FileList
  files)
(qwen-companion-messages-define "qwen-companion-session-changes" SessionChanges
  sessions gone)
(qwen-companion-messages-define "qwen-companion-session" SessionState
  id protocol client version pid started directory family ancestors place
  terminal prompts streaming state no-hooks usage)
(qwen-companion-messages-define "qwen-companion-cli-state" CliState
  activity since prompt question mode model tokens context subagents said todos
  conversation failure tool-since)
(qwen-companion-messages-define "qwen-companion-usage" Usage
  model input output cached)
(qwen-companion-messages-define "qwen-companion-todo" Todo
  text status)
(qwen-companion-messages-define "qwen-companion-file-visited" FileVisited
  path)
(qwen-companion-messages-define "qwen-companion-context-sent" ContextSent
  session everywhere roots sent text context)
(qwen-companion-messages-define "qwen-companion-told-context" ToldContext
  trust files text)
(qwen-companion-messages-define "qwen-companion-told-file" ToldFile
  path time active line character selection)
(qwen-companion-messages-define "qwen-companion-hook-answers" HookAnswers
  session answers)
(qwen-companion-messages-define "qwen-companion-hook-answer" HookAnswer
  event tool answer count time)
(qwen-companion-messages-define "qwen-companion-exclusion-list" ExclusionList
  exclusions)
(qwen-companion-messages-define "qwen-companion-exclusion" Exclusion
  path rule session)
(qwen-companion-messages-define "qwen-companion-place" PlaceState
  name state reason roots home environment retry-at)
(qwen-companion-messages-define "qwen-companion-place-file" PlaceFile
  name copy time)
(qwen-companion-messages-define "qwen-companion-place-checks" PlaceChecks
  id lines)
(qwen-companion-messages-define "qwen-companion-place-files" PlaceFiles
  place directory files)
(qwen-companion-messages-define "qwen-companion-run-command" RunCommand
  terminal directory command error)
(qwen-companion-messages-define "qwen-companion-proposal-open" ProposalOpen
  id session client path digest text ends-lines held copy-of kind directory
  questions)
(qwen-companion-messages-define "qwen-companion-proposal-close" ProposalClose
  id keeps-edits)
(qwen-companion-messages-define "qwen-companion-proposal-released" ProposalReleased
  id reason answerable)
(qwen-companion-messages-define "qwen-companion-proposal-written" ProposalWritten
  id exactly)
(qwen-companion-messages-define "qwen-companion-type-key" TypeKey
  id key prompt)
(qwen-companion-messages-define "qwen-companion-asked-question" AskedQuestion
  text header multiple choices)
(qwen-companion-messages-define "qwen-companion-question-choice" QuestionChoice
  label description)
(qwen-companion-messages-define "qwen-companion-proposal-orphan" ProposalOrphan
  id reason)
(qwen-companion-messages-define "qwen-companion-delivered" Delivered
  id)
(qwen-companion-messages-define "qwen-companion-compared" Compared
  id hunks)
(qwen-companion-messages-define "qwen-companion-merged" Merged
  id edits result conflicts)
(qwen-companion-messages-define "qwen-companion-edit-begins" EditBegins
  path)
(qwen-companion-messages-define "qwen-companion-tool-call" ToolCall
  id name arguments everywhere roots deadline)
(qwen-companion-messages-define "qwen-companion-tool-called" ToolCalled
  client request size ms called failed text)
(qwen-companion-messages-define "qwen-companion-notice" Notice
  text)
(qwen-companion-messages-define "qwen-companion-kept-plans" Plans
  id plans)
(qwen-companion-messages-define "qwen-companion-kept-plan" KeptPlan
  path time title)
(qwen-companion-messages-define "qwen-companion-recorded-rewound" RecordedRewound
  id text copy error)
(qwen-companion-messages-define "qwen-companion-recorded-sessions" RecordedSessions
  id sessions)
(qwen-companion-messages-define "qwen-companion-recorded-session" RecordedSession
  id time prompt)
(qwen-companion-messages-define "qwen-companion-registered-clis" RegisteredClis
  clis gone controller told)
(qwen-companion-messages-define "qwen-companion-registered" RegisteredCli
  id pid session chat directory name version kind start listens editor gone
  state problem)
(qwen-companion-messages-define "qwen-companion-registry-ended" RegistryEnded
  cli ended)
(qwen-companion-messages-define "qwen-companion-registry-receipt" RegistryReceipt
  id status reason)
(qwen-companion-messages-define "qwen-companion-journal-turns" TurnChanges
  turns gone reset)
(qwen-companion-messages-define "qwen-companion-journal-unrecorded" Unrecorded
  reasons crowded)
(qwen-companion-messages-define "qwen-companion-turn" TurnChange
  id root session conversation client who source prompt start end undone-of
  undone-by notes cli usage rewound copy files files-gone)
(qwen-companion-messages-define "qwen-companion-changed-file" ChangedFile
  path kind from binary added deleted seen seen-hunks mixed by mode link)
(qwen-companion-messages-define "qwen-companion-journal-reply" JournalReply
  id error files texts spans origins runs turns prompts busy sizes staged
  others root worktrees texts-file)
(qwen-companion-messages-define "qwen-companion-line-origin" LineOrigin
  who turn)
(qwen-companion-messages-define "qwen-companion-turn-origin" TurnOrigin
  turn session client start models plan)
(qwen-companion-messages-define "qwen-companion-worktree" Worktree
  path branch head locked gone base files uncommitted ahead behind conflicts
  inner)
(qwen-companion-messages-define "qwen-companion-texts" Texts
  path error from mixed plain apart before before-mode after after-mode)

(provide 'qwen-companion-messages)
;;; qwen-companion-messages.el ends here
