;;; qwen-companion-chat-tools.el --- Tools and plans in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A call of a tool is one line that says how it goes; below it, folded, are
;; what it got, what it gave and how long it took.  Long texts come cut, and
;; whole into a buffer of their own when the user wants them.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-chat-blocks)

(declare-function qwen-companion-chat--add "qwen-companion-chat" (change id text))
(declare-function qwen-companion-chat--call "qwen-companion-chat"
                  (method payload &optional callback))

(defun qwen-companion-chat-tools-show (tool)
  "Show TOOL, a call of a tool as it is told."
  (qwen-companion-chat--add
   tool (list 'tool (plist-get tool :id)) (or (plist-get tool :title) "")))

(defun qwen-companion-chat-tools-show-plan (plan)
  "Show PLAN of the model."
  (qwen-companion-chat--add
   plan (list 'plan (plist-get plan :turn)) "Plan"))

(defun qwen-companion-chat-tools-on-text (payload)
  "Show the whole text in PAYLOAD."
  (qwen-companion-backend-drop-text payload))

(provide 'qwen-companion-chat-tools)
;;; qwen-companion-chat-tools.el ends here
