;;; qwen-companion-chat-prompt.el --- The prompt of a chat  -*- lexical-binding: t; -*-

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

;; Below the conversation is the prompt, which is edited like any text, sent,
;; and had again from the history.  What is not taken comes back into it.

;;; Code:

(require 'ring)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-chat-base)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-send)

(defcustom qwen-companion-chat-return 'newline
  "What RET does in the prompt: `newline' begins a line, `send' sends.
With `send', `electric-newline-and-maybe-indent' begins a line."
  :group 'qwen-companion
  :type '(choice (const :tag "Begins a new line" newline)
                 (const :tag "Sends the prompt" send)))

(defvar qwen-companion-chat--history (make-ring 100)
  "The prompts that were sent, from all chats.")

(defvar-local qwen-companion-chat--history-place nil
  "Index of the prompt that is shown of the history, nil for none.")

(defvar-local qwen-companion-chat--history-draft nil
  "The prompt as it was before the history was looked at.")

;;; The text

(defun qwen-companion-chat--prompt-text ()
  "Return the prompt."
  (buffer-substring-no-properties qwen-companion-chat--prompt (point-max)))

(defun qwen-companion-chat--set-prompt (text)
  "Make TEXT the prompt."
  (save-restriction
    (widen)
    (delete-region qwen-companion-chat--prompt (point-max))
    (save-excursion
      (goto-char (point-max))
      (insert text))))

(defun qwen-companion-chat--give-back (text)
  "Put TEXT back into the prompt, before what was written since."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char qwen-companion-chat--prompt)
      (insert text)
      (unless (eobp)
        (insert "\n")))))

(defun qwen-companion-chat--sent-p ()
  "Return non-nil when nothing unsent is in the prompt."
  (string-blank-p (qwen-companion-chat--prompt-text)))

;;; Sending

(defun qwen-companion-chat--refusal ()
  "Return why no prompt can be sent now, a string, nil when it can."
  (pcase (plist-get qwen-companion-chat--state :state)
    ((guard (not qwen-companion-chat--id)) "There is no session yet")
    ('off "The daemon was left; M-x qwen-companion-chat here connects again")
    ('closed "This session was left; \\[qwen-companion-chat-reload] attaches to it again")
    ('dead "This session has ended; \\[qwen-companion-chat-reload] loads it again")))

(defun qwen-companion-chat-send ()
  "Send the prompt.
While the daemon is busy with another, it waits in the daemon's queue.
What is not taken comes back into the prompt."
  (interactive)
  (let ((text (string-trim (qwen-companion-chat--prompt-text) "[\n]+"))
        (refusal (qwen-companion-chat--refusal)))
    (when refusal
      (user-error "%s" (substitute-command-keys refusal)))
    (when (string-blank-p text)
      (user-error "The prompt is empty"))
    (let ((parts (qwen-companion-chat-send-parts text)))
      (ring-remove+insert+extend qwen-companion-chat--history text)
      (setq qwen-companion-chat--history-place nil)
      (qwen-companion-chat--set-prompt "")
      (set-buffer-modified-p nil)
      ;; Last: it may come back at once.
      (qwen-companion-chat--send-parts parts text)
      (goto-char (point-max)))))

(defun qwen-companion-chat--send-parts (parts text)
  "Send PARTS as a prompt; TEXT comes back into the prompt if they are not taken."
  (qwen-companion-chat--call
   'daemon-prompt (list :session qwen-companion-chat--id :parts parts)
   (lambda (reply)
     (when-let* ((error (plist-get reply :error)))
       (qwen-companion-chat--give-back text)
       (qwen-companion-backend-notice
        (if (eq 'unsure (plist-get reply :problem))
            (format "%s  The prompt may have arrived; look before you send it again" error)
          error))))))

(defun qwen-companion-chat-cancel ()
  "Cancel what the daemon does for this chat."
  (interactive)
  (let ((state (plist-get qwen-companion-chat--state :state)))
    (unless (memq state '(busy waiting))
      (user-error "Nothing to cancel: the session is %s" (or state "not there yet")))
    (qwen-companion-chat--call 'daemon-cancel (list :session qwen-companion-chat--id))))

(defun qwen-companion-chat-return ()
  "Begin a new line in the prompt or send it.
See the option of the same name."
  (interactive)
  (cond ((< (point) qwen-companion-chat--prompt)
         (user-error "This is the conversation; the prompt is below it"))
        ((eq qwen-companion-chat-return 'send) (qwen-companion-chat-send))
        (t (newline nil t))))

;;; History

(defun qwen-companion-chat-previous-prompt (&optional count)
  "Show the COUNTth prompt before in the history."
  (interactive "p")
  (let* ((length (ring-length qwen-companion-chat--history))
         (place (+ (or qwen-companion-chat--history-place -1) (or count 1))))
    (when (>= place length)
      (user-error "No prompt before this one"))
    (when (< place -1)
      (user-error "No prompt after this one"))
    (unless qwen-companion-chat--history-place
      (setq qwen-companion-chat--history-draft (qwen-companion-chat--prompt-text)))
    (setq qwen-companion-chat--history-place (and (>= place 0) place))
    (qwen-companion-chat--set-prompt
     (if (>= place 0)
         (ring-ref qwen-companion-chat--history place)
       qwen-companion-chat--history-draft))
    (goto-char (point-max))))

(defun qwen-companion-chat-next-prompt (&optional count)
  "Show the COUNTth prompt after in the history, at last what was not sent."
  (interactive "p")
  (qwen-companion-chat-previous-prompt (- (or count 1))))

(defun qwen-companion-chat-search-prompt (text)
  "Make TEXT, chosen from the history, the prompt."
  (interactive
   (list (completing-read "Prompt: " (ring-elements qwen-companion-chat--history) nil t)))
  (unless qwen-companion-chat--history-place
    (setq qwen-companion-chat--history-draft (qwen-companion-chat--prompt-text)))
  (setq qwen-companion-chat--history-place
        (ring-member qwen-companion-chat--history text))
  (qwen-companion-chat--set-prompt text)
  (goto-char (point-max)))

(provide 'qwen-companion-chat-prompt)
;;; qwen-companion-chat-prompt.el ends here
