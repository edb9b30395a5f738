;;; qwen-companion-chat-base.el --- What all files of a chat share  -*- lexical-binding: t; -*-

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

;; Which chats there are, the session that the current buffer is about, and
;; how the Python process is asked for something.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-daemon)

(declare-function qwen-companion-chat--report "qwen-companion-chat" (method payload))
(declare-function qwen-companion-chat--left "qwen-companion-chat" ())
(declare-function qwen-companion-chat--process-gone "qwen-companion-chat" ())

;;; State

(defvar-local qwen-companion-chat--id nil
  "Id of the session, nil until there is one.")

(defvar-local qwen-companion-chat--state nil
  "The session as the Python process told it last, a property list.
Its :state is `off' after the daemon was left.")

(defvar-local qwen-companion-chat--choices nil
  "The models and modes that can be chosen, as told last.")

(defvar-local qwen-companion-chat--commands nil
  "The slash commands of the session, property lists, as told last.")

(defun qwen-companion-chat-buffers ()
  "Return the buffers of all chats, the last used first."
  (cl-remove-if-not
   (lambda (buffer)
     (provided-mode-derived-p (buffer-local-value 'major-mode buffer)
                              'qwen-companion-chat-mode))
   (buffer-list)))

(defun qwen-companion-chat-buffer (id)
  "Return the buffer of the chat with the session ID, nil when there is none."
  (cl-find id (qwen-companion-chat-buffers)
           :key (lambda (buffer) (buffer-local-value 'qwen-companion-chat--id buffer))
           :test #'equal))

(defun qwen-companion-chat--trouble ()
  "Return why the session cannot be used, as the user has to know it, or nil.
What to do is first: the reason may be long, and the line has an end."
  (let ((text (plist-get qwen-companion-chat--state :text)))
    (pcase (plist-get qwen-companion-chat--state :state)
      ('off (concat (if text "No session" "The daemon was left")
                    (if (memq (qwen-companion-state) '(off error))
                        "; M-x qwen-companion-mode, then M-x qwen-companion-chat here"
                      "; M-x qwen-companion-chat here")
                    " tries again" (and text (concat ": " text))))
      ('disconnected (concat "Disconnected" (and text (concat ": " text))))
      ((and state (or 'closed 'dead))
       (substitute-command-keys
        (format "%s; \\[qwen-companion-chat-reload] loads the session again%s"
                (if (eq state 'dead) "Ended" "Left") (if text (concat ": " text) ""))))
      (_ (and (memq (qwen-companion-daemon-state) '(unreachable refused))
              (qwen-companion-daemon-description))))))

;;; Calling

(defvar qwen-companion-chat--requests nil
  "Alist of what was asked and not answered: (REQUEST BUFFER . CALLBACK).")

(defvar qwen-companion-chat--early nil
  "Reports of sessions that no chat has yet, while one is being opened.
Newest first, each (METHOD . PAYLOAD).")

(defun qwen-companion-chat--call (method payload &optional callback)
  "Ask the Python process for METHOD with PAYLOAD, a property list.
CALLBACK is called with the reply, once and in the current buffer, also
when the process ends meanwhile.  Without one, an error is shown."
  (qwen-companion-chat--watch)
  (let ((request (symbol-name (gensym "chat-"))))
    (push (cons request (cons (current-buffer) callback)) qwen-companion-chat--requests)
    (unless (qwen-companion-backend-call
             method (append (list :request request) payload))
      (qwen-companion-chat--on-reply
       (list :request request :problem 'unreachable
             :error "The companion's process is not running")))))

(defun qwen-companion-chat--on-reply (payload)
  "Hand the reply PAYLOAD to who waits for it."
  (when-let* ((entry (assoc (plist-get payload :request) qwen-companion-chat--requests)))
    (setq qwen-companion-chat--requests (delq entry qwen-companion-chat--requests))
    (pcase-let ((`(,_ ,buffer . ,callback) entry))
      (cond ((not (buffer-live-p buffer))
             ;; Killed while its session was opened.
             (when-let* ((session (plist-get payload :session)))
               (unless (qwen-companion-chat-buffer session)
                 (qwen-companion-backend-call 'daemon-close
                                              (list :session session :end nil)))))
            (callback (with-current-buffer buffer (funcall callback payload)))
            ((plist-get payload :error)
             (qwen-companion-backend-notice (plist-get payload :error)))))
    (unless qwen-companion-chat--requests
      (qwen-companion-chat--drop-early))
    (qwen-companion-chat--rest)))

(defun qwen-companion-chat--fail-requests (problem text)
  "Answer all that was asked with PROBLEM, and TEXT to say so."
  (dolist (entry qwen-companion-chat--requests)
    (qwen-companion-chat--on-reply
     (list :request (car entry) :error text :problem problem))))

(defun qwen-companion-chat--drop-texts (payload)
  "Remove the files of texts in PAYLOAD, for which there is no reader."
  (qwen-companion-backend-drop-text payload)
  (mapc #'qwen-companion-backend-drop-text (plist-get payload :changes)))

(defun qwen-companion-chat--drop-early ()
  "Forget the reports that no chat has come for."
  (pcase-dolist (`(,_ . ,payload) qwen-companion-chat--early)
    (qwen-companion-chat--drop-texts payload))
  (setq qwen-companion-chat--early nil))

(defun qwen-companion-chat--watch ()
  "Have what is reported shown, until the daemon is left."
  (add-hook 'qwen-companion-daemon-functions #'qwen-companion-chat--report)
  (add-hook 'qwen-companion-daemon-left-hook #'qwen-companion-chat--left)
  (add-hook 'qwen-companion-backend-disconnected-hook #'qwen-companion-chat--process-gone))

(defun qwen-companion-chat--rest ()
  "Have nothing reported when there is no chat and nothing is waited for."
  (unless (or qwen-companion-chat--requests (qwen-companion-chat-buffers))
    (qwen-companion-chat--unwatch)))

(defun qwen-companion-chat--unwatch ()
  "Leave nothing behind but the buffers."
  (remove-hook 'qwen-companion-daemon-functions #'qwen-companion-chat--report)
  (remove-hook 'qwen-companion-daemon-left-hook #'qwen-companion-chat--left)
  (remove-hook 'qwen-companion-backend-disconnected-hook #'qwen-companion-chat--process-gone)
  (qwen-companion-chat--drop-early))

(provide 'qwen-companion-chat-base)
;;; qwen-companion-chat-base.el ends here
