;;; qwen-companion-daemon-messages.el --- Read the daemon's messages  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Accessors for the property lists that the Python process sends about the
;; daemon.  The keys below are written by `make docs' from the classes that are
;; named, of `qwen_companion/daemon/messages.py'.

;;; Code:

(require 'qwen-companion-messages)

(defmacro qwen-companion-daemon-messages--define (name class &rest keys)
  "Define functions for KEYS in the property lists that the Python CLASS writes.
Their names begin with qwen-companion-daemon-, followed by NAME and the
key; each returns the value of its key, nil where there is none."
  (declare (indent 2))
  `(qwen-companion-messages-define ,(intern (format "qwen-companion-daemon-%s" name))
       ,class
     ,@keys))

(qwen-companion-daemon-messages--define connection DaemonState
  state text host local workspace)
(qwen-companion-daemon-messages--define sessions DaemonSessions
  sessions)
(qwen-companion-daemon-messages--define listed ListedSession
  id title updated clients busy)
(qwen-companion-daemon-messages--define session SessionInfo
  session state text turn title model mode used size clients queue)
(qwen-companion-daemon-messages--define queued Queued
  turn text by)
(qwen-companion-daemon-messages--define choices SessionChoices
  session models modes model-writes)
(qwen-companion-daemon-messages--define choice Choice
  id name description)
(qwen-companion-daemon-messages--define report Turns
  session changes)
(qwen-companion-daemon-messages--define reset Reset
  session batches text)
(qwen-companion-daemon-messages--define change Change
  kind turn)
(qwen-companion-daemon-messages--define text TextChange
  voice text by parent background time)
(qwen-companion-daemon-messages--define end EndChange
  outcome text)
(qwen-companion-daemon-messages--define note NoteChange
  note text)
(qwen-companion-daemon-messages--define usage UsageChange
  input output cached)
(qwen-companion-daemon-messages--define plan PlanChange
  steps)
(qwen-companion-daemon-messages--define step PlanStep
  text status)
(qwen-companion-daemon-messages--define tool ToolChange
  id status name title type parent command command-more input input-more output
  output-more revision diffs diffs-more places places-more started ended)
(qwen-companion-daemon-messages--define diff DiffInfo
  index path old-size new-size)
(qwen-companion-daemon-messages--define place FilePosition
  path line)
(qwen-companion-daemon-messages--define permission Permission
  session permission state turn tool title options message questions by label
  plan)
(qwen-companion-daemon-messages--define option Option
  id label allows lasting writes mode)
(qwen-companion-daemon-messages--define offered-plan OfferedPlan
  path text)
(qwen-companion-daemon-messages--define question AskedQuestion
  text header multiple choices)
(qwen-companion-daemon-messages--define answer QuestionChoice
  label description)
(qwen-companion-daemon-messages--define tool-text ToolText
  session tool part index text)
(qwen-companion-daemon-messages--define commands SlashCommands
  session commands)
(qwen-companion-daemon-messages--define command SlashCommand
  name description hint)
(qwen-companion-daemon-messages--define reply Reply
  request error problem session turn)

(provide 'qwen-companion-daemon-messages)
;;; qwen-companion-daemon-messages.el ends here
