;;; qwen-companion-chat-status.el --- How a chat says where it stands  -*- lexical-binding: t; -*-

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

;; The header line has where the daemon is and what there is to know of the
;; session, the mode line its state, model and approval mode; and the name of
;; the buffer says which session it is.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat-base)
(require 'qwen-companion-chat-choices)
(require 'qwen-companion-daemon)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-chat-rename-buffer t
  "Whether the buffer of a chat is named after its session.
It is as soon as the session has a title, with the project behind it,
and again when the title changes.  A buffer that you have renamed keeps
its name."
  :group 'qwen-companion
  :type 'boolean)

;;; The name of the buffer

(defvar-local qwen-companion-chat--names nil
  "The name of the buffer as it should be and as it was given, or nil.
A cons; they differ where another buffer had the name.")

(defconst qwen-companion-chat--title-width 32
  "Columns of a session's title that are in the name of a buffer.")

(defun qwen-companion-chat--name ()
  "Return what the current buffer should be called."
  (let ((title (plist-get qwen-companion-chat--state :title))
        ;; Not as a file's name: it may look like one of another host.
        (project (car (last (split-string (or (qwen-companion-daemon-workspace) "")
                                          "[/\\]" t)))))
    (if (string-blank-p (or title ""))
        "*qwen chat*"
      (format "*qwen chat: %s%s*"
              (qwen-companion-chat--short title qwen-companion-chat--title-width)
              (if project
                  (format " (%s)" (qwen-companion-chat--short project 20))
                "")))))

(defun qwen-companion-chat--short (text width)
  "Return TEXT, which a stranger chose, in at most WIDTH columns of a line."
  (truncate-string-to-width (qwen-companion-untrusted-text text) width nil nil "…"))

(defun qwen-companion-chat--rename ()
  "Name the current buffer after its session, unless the user has named it."
  (let ((name (qwen-companion-chat--name)))
    (when (and qwen-companion-chat-rename-buffer
               (equal (buffer-name) (cdr qwen-companion-chat--names))
               (not (equal name (car qwen-companion-chat--names))))
      (setq qwen-companion-chat--names (cons name (rename-buffer name t))))))

(defun qwen-companion-chat--identification ()
  "Return the name of the current buffer as the mode line has it.
What goes on must have room behind it in 80 columns."
  (propertized-buffer-identification
   (string-replace "%" "%%" (truncate-string-to-width (buffer-name) 24 nil nil t))))

;;; Header and mode line

(defvar-local qwen-companion-chat--usage nil
  "What the last answer of the model cost, as it was told.")

(defvar-local qwen-companion-chat--awaited 0
  "How many reports are to come until the conversation is there again.")

(defvar-local qwen-companion-chat--header nil
  "The header line.")

(defvar-local qwen-companion-chat--mode-line nil
  "Model, approval mode and state, for the mode line.")
(put 'qwen-companion-chat--header 'risky-local-variable t)
(put 'qwen-companion-chat--mode-line 'risky-local-variable t)

(defun qwen-companion-chat--tokens (count)
  "Return COUNT of tokens as it is shown."
  (if (< count 1000)
      (number-to-string count)
    (format "%.1fk" (/ count 1000.0))))

(defun qwen-companion-chat--usage-text ()
  "Return how much of the model's context is used, and what the last answer cost."
  (let ((used (plist-get qwen-companion-chat--state :used))
        (size (plist-get qwen-companion-chat--state :size))
        (input (plist-get qwen-companion-chat--usage :input))
        (output (plist-get qwen-companion-chat--usage :output)))
    (delq nil
          (list (and used (if size
                              (format "context %s of %s (%d%%)"
                                      (qwen-companion-chat--tokens used)
                                      (qwen-companion-chat--tokens size)
                                      (/ (* 100 used) (max 1 size)))
                            (format "context %s" (qwen-companion-chat--tokens used))))
                (and input output
                     (format "last answer %s in, %s out"
                             (qwen-companion-chat--tokens input)
                             (qwen-companion-chat--tokens output)))))))

(defun qwen-companion-chat--locality ()
  "Return where the daemon is, nil when there is none."
  (unless (eq 'off (qwen-companion-daemon-state))
    (qwen-companion-daemon-place)))

(defun qwen-companion-chat--update ()
  "Compute the header line and the mode line."
  (let* ((state (plist-get qwen-companion-chat--state :state))
         (trouble (qwen-companion-chat--trouble))
         (clients (plist-get qwen-companion-chat--state :clients))
         (queued (length (plist-get qwen-companion-chat--state :queue)))
         (place (qwen-companion-chat--locality)))
    (setq qwen-companion-chat--header
          ;; What a narrow window must not lose comes first.
          (mapconcat
           #'identity
           (delq nil
                 (append
                  (list (and place
                             (propertize (concat " " place) 'help-echo
                                         (qwen-companion-daemon-description)))
                        (and trouble (propertize (concat (unless place " ") trouble)
                                                 'face 'warning))
                        (and place (qwen-companion-daemon-workspace-name)))
                  (qwen-companion-chat--usage-text)
                  (list (and clients (> clients 1) (format "%d clients" clients))
                        (and (> queued 0) (format "%d queued" queued))
                        (and (> qwen-companion-chat--awaited 0) "reading the conversation"))))
           "  ")
          qwen-companion-chat--mode-line
          (concat " "
                  (mapconcat #'identity
                             (delq nil (list (propertize (if state (symbol-name state) "opening")
                                                         'face (and (eq state 'waiting) 'warning))
                                             (qwen-companion-chat-choices-lighter 'model)
                                             (qwen-companion-chat-choices-lighter 'mode)))
                             " ")))
    (force-mode-line-update)))

(provide 'qwen-companion-chat-status)
;;; qwen-companion-chat-status.el ends here
