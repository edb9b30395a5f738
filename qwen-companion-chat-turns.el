;;; qwen-companion-chat-turns.el --- Where in a conversation something belongs  -*- lexical-binding: t; -*-

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

;; A conversation consists of turns.  What belongs to one stands at its end,
;; also when another has begun meanwhile; and what an agent says or does,
;; with the tool that started it.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-chat-blocks)

(defvar-local qwen-companion-chat--groups nil
  "Hash table: for a turn or an agent, the blocks of it.
See `qwen-companion-chat--add'.")

(cl-defstruct (qwen-companion-chat-group
               (:copier nil)
               (:constructor qwen-companion-chat--make-group))
  "What is known of a turn or an agent: its last block, and how many it has.
VOICE is who speaks in LAST while more can be appended, else nil."
  last voice (count 0))

(defun qwen-companion-chat--group (key)
  "Return the group KEY: (turn ID) or (tool ID)."
  (or (gethash key qwen-companion-chat--groups)
      (puthash key (qwen-companion-chat--make-group) qwen-companion-chat--groups)))

(defun qwen-companion-chat--groups-of (change)
  "Return the groups that CHANGE is in, the innermost first.
An agent's are at the place of the agent's tool."
  (let ((parent (plist-get change :parent))
        (groups (list (qwen-companion-chat--group (list 'turn (plist-get change :turn))))))
    (if (gethash (list 'tool parent) qwen-companion-chat--blocks)
        (cons (qwen-companion-chat--group (list 'tool parent)) groups)
      groups)))

(defun qwen-companion-chat--next-id (change kind)
  "Return a name for a new block of KIND that CHANGE begins.
It is the same when the conversation is read again."
  (let ((group (car (qwen-companion-chat--groups-of change))))
    (list kind (plist-get change :turn) (plist-get change :parent)
          (cl-incf (qwen-companion-chat-group-count group)))))

(defun qwen-companion-chat--add (change id text)
  "Put TEXT where CHANGE belongs, as the block ID.
A new one stands at the end of its turn, and where an agent speaks, at
the end of what that agent has said."
  (let* ((groups (qwen-companion-chat--groups-of change))
         (parent (plist-get change :parent))
         (agent (cdr groups))
         ;; What belongs to no turn comes when it comes.
         (last (and (or agent (plist-get change :turn))
                    (or (qwen-companion-chat-group-last (car groups))
                        (and agent (list 'tool parent)))))
         (text (if agent (qwen-companion-chat--indent text "  ") text))
         (new (not (gethash id qwen-companion-chat--blocks))))
    (qwen-companion-chat--put id text last)
    (when new
      (dolist (group groups)
        (when (or (eq group (car groups))
                  (equal last (qwen-companion-chat-group-last group)))
          (setf (qwen-companion-chat-group-last group) id
                (qwen-companion-chat-group-voice group) nil))))))

(provide 'qwen-companion-chat-turns)
;;; qwen-companion-chat-turns.el ends here
