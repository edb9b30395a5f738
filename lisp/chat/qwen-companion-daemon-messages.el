;;; qwen-companion-daemon-messages.el --- Read the daemon's messages  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Accessors for the property lists that the Python process sends about the
;; daemon.  `make docs' writes the keys below from the named classes in
;; `qwen_companion/daemon/messages.py'.

;;; Code:

(require 'qwen-companion-messages)

(qwen-companion-messages-define "qwen-companion-daemon-connection" DaemonState
  state text host local workspace)
(qwen-companion-messages-define "qwen-companion-daemon-sessions" DaemonSessions
  sessions)
(qwen-companion-messages-define "qwen-companion-daemon-listed" ListedSession
  id title updated clients busy)
(qwen-companion-messages-define "qwen-companion-daemon-session" SessionInfo
  session state text turn title model mode used size clients queue)
(qwen-companion-messages-define "qwen-companion-daemon-queued" Queued
  turn text by)
(qwen-companion-messages-define "qwen-companion-daemon-choices" SessionChoices
  session models modes model-writes)
(qwen-companion-messages-define "qwen-companion-daemon-choice" Choice
  id name description)
(qwen-companion-messages-define "qwen-companion-daemon-report" Turns
  session changes)
(qwen-companion-messages-define "qwen-companion-daemon-reset" Reset
  session batches text)
(qwen-companion-messages-define "qwen-companion-daemon-change" Change
  kind turn)
(qwen-companion-messages-define "qwen-companion-daemon-text" TextChange
  voice text by parent background time)
(qwen-companion-messages-define "qwen-companion-daemon-end" EndChange
  outcome text)
(qwen-companion-messages-define "qwen-companion-daemon-note" NoteChange
  note text)
(qwen-companion-messages-define "qwen-companion-daemon-usage" UsageChange
  input output cached)
(qwen-companion-messages-define "qwen-companion-daemon-plan" PlanChange
  steps)
(qwen-companion-messages-define "qwen-companion-daemon-step" PlanStep
  text status)
(qwen-companion-messages-define "qwen-companion-daemon-tool" ToolChange
  id status name title type parent command command-more input input-more output
  output-more revision diffs diffs-more places places-more started ended)
(qwen-companion-messages-define "qwen-companion-daemon-diff" DiffInfo
  index path old-size new-size)
(qwen-companion-messages-define "qwen-companion-daemon-place" FilePosition
  path line)
(qwen-companion-messages-define "qwen-companion-daemon-permission" Permission
  session permission state turn tool title options message questions by label
  plan)
(qwen-companion-messages-define "qwen-companion-daemon-option" Option
  id label allows lasting writes mode)
(qwen-companion-messages-define "qwen-companion-daemon-offered-plan" OfferedPlan
  path text)
(qwen-companion-messages-define "qwen-companion-daemon-question" AskedQuestion
  text header multiple choices)
(qwen-companion-messages-define "qwen-companion-daemon-answer" QuestionChoice
  label description)
(qwen-companion-messages-define "qwen-companion-daemon-tool-text" ToolText
  session tool part index text)
(qwen-companion-messages-define "qwen-companion-daemon-commands" SlashCommands
  session commands)
(qwen-companion-messages-define "qwen-companion-daemon-command" SlashCommand
  name description hint)
(qwen-companion-messages-define "qwen-companion-daemon-reply" Reply
  request error problem session turn)

(provide 'qwen-companion-daemon-messages)
;;; qwen-companion-daemon-messages.el ends here
