;;; qwen-companion-bring-home.el --- Move a CLI from outside into Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Connect a CLI outside of Emacs by a command typed there, or continue its
;; conversation in a terminal or a chat of Emacs.  If two programs wrote one
;; conversation, the last writer would win, so the outside process is ended
;; first.

;;; Code:

(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-registry)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;; Loaded with the first chat.
(declare-function qwen-companion-chat-buffer "qwen-companion-chat-state" (id))
(declare-function qwen-companion-chat-connect-daemon "qwen-companion-chat-state" (chat))
(declare-function qwen-companion-chat-make-buffer "qwen-companion-chat" (id))
(declare-function qwen-companion-chat-open-session "qwen-companion-chat-state" (id))
(declare-function qwen-companion-daemon-workspace "qwen-companion-daemon" ())

(defun qwen-companion-bring-home (session)
  "Connect the CLI SESSION to Emacs, or continue its conversation here.
Let the user choose; in the second case, end the CLI first."
  (let* ((cli (or (qwen-companion-registry-of session)
                  (user-error "Only Qwen Code 0.23 or later on this machine can be moved to Emacs")))
         (buffer (qwen-companion-terminal-session-buffer session))
         (name (qwen-companion-registry-name cli)))
    (when buffer
      (user-error "Already in this Emacs, in %s" (buffer-name buffer)))
    (qwen-companion-registry-check-movable cli)
    (unless (eq 'ready (qwen-companion-state))
      (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
    (pcase (car (read-multiple-choice
                 (format "Move %s to Emacs by:" name)
                 '((?i "/ide" "It stays in its terminal and connects to this Emacs")
                   (?t "terminal" "Its conversation continues in a terminal of this Emacs")
                   (?c "chat" "Its conversation continues in a chat with a daemon"))))
      (?i (message "Type /ide enable in the terminal of %s; it connects while a file of %s is open here"
                   name (abbreviate-file-name (qwen-companion-registered-directory cli))))
      (?t (qwen-companion-registry-when-ended cli #'qwen-companion-bring-home--terminal))
      (?c (qwen-companion-bring-home--connect-daemon cli)
          (qwen-companion-registry-when-ended cli #'qwen-companion-bring-home--chat)))))

(defun qwen-companion-bring-home--terminal (cli)
  "Continue the conversation of the registered CLI in a terminal."
  (qwen-companion-terminal-open (qwen-companion-registered-directory cli)
                                (list "--resume" (qwen-companion-registered-session cli))))

(defun qwen-companion-bring-home--connect-daemon (cli)
  "Connect to a daemon for the registered CLI, or signal a `user-error'."
  (require 'qwen-companion-chat)
  (let ((default-directory (file-name-as-directory (qwen-companion-registered-directory cli))))
    (qwen-companion-chat-connect-daemon nil))
  (let ((workspace (qwen-companion-daemon-workspace)))
    (unless (or (null workspace)
                (equal workspace (qwen-companion-registered-directory cli)))
      (user-error "The daemon works in %s, and the CLI in %s; choose a terminal instead"
                  (qwen-companion-untrusted-text workspace)
                  (qwen-companion-registered-directory cli)))))

(defun qwen-companion-bring-home--chat (cli)
  "Continue the conversation of the registered CLI in a chat."
  (let* ((id (qwen-companion-registered-chat cli))
         (chat (qwen-companion-chat-buffer id)))
    (if chat
        (with-current-buffer chat
          (qwen-companion-chat-open-session id))
      (setq chat (qwen-companion-chat-make-buffer id)))
    (pop-to-buffer chat)
    (goto-char (point-max))))

(provide 'qwen-companion-bring-home)
;;; qwen-companion-bring-home.el ends here
