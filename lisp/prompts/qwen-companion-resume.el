;;; qwen-companion-resume.el --- Going on with recorded conversations  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Qwen Code records each conversation.  `qwen-companion-resume' lists those of
;; the project and starts a CLI that goes on with one.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-completion)
(require 'qwen-companion-messages)
(require 'qwen-companion-remote)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;;###autoload
(defun qwen-companion-resume (directory)
  "Choose a recorded conversation of the project, and start a CLI to continue it.
With a prefix argument, ask for the DIRECTORY.  At another place, the CLI
shows the conversations itself, in its terminal."
  (interactive
   (list (if current-prefix-arg
             (read-directory-name "Conversations in: " nil nil t)
           (qwen-companion-terminal-here))))
  (unless (eq 'ready (qwen-companion-state))
    (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
  (let ((directory (directory-file-name (expand-file-name directory)))
        (place (file-remote-p directory))
        (input num-nonmacro-input-events))
    (cond
     (place
      (qwen-companion-remote-check place)
      (qwen-companion-remote-run directory '("--resume") t))
     (t
      (qwen-companion-backend-request
       'list-recorded (list :directory (file-truename directory))
       (lambda (reply)
         (when reply
           ;; Nothing asks while a message is handled.
           (run-at-time 0 nil #'qwen-companion-resume--offer directory input
                        (qwen-companion-recorded-sessions-sessions reply)))))))))

(defun qwen-companion-resume--offer (directory input sessions)
  "Let the user choose one of the recorded SESSIONS of DIRECTORY, and start it.
INPUT was `num-nonmacro-input-events' then.  Ask nothing after typing since:
the next keys are meant for something else."
  (cond
   ((null sessions)
    (message "No conversation was recorded in %s" (abbreviate-file-name directory)))
   ((or (active-minibuffer-window)
        (/= input num-nonmacro-input-events))
    (message "You have gone on typing; M-x qwen-companion-resume again lists the conversations"))
   (t
    (let* ((choices (cl-loop for session in sessions
                             for number from 1
                             collect (cons (format "%d %s" number
                                                   (qwen-companion-untrusted-text
                                                    (qwen-companion-recorded-session-prompt
                                                     session)))
                                           session)))
           ;; By any part of a prompt.
           (completion-category-defaults
            (cons '(qwen-companion-recorded-session (styles substring))
                  completion-category-defaults))
           (session
            (qwen-companion-completion-read
             "Go on with: " choices 'qwen-companion-recorded-session
             (lambda (session)
               (format-time-string
                "%F %R" (/ (qwen-companion-recorded-session-time session) 1000))))))
      (qwen-companion-terminal-open
       directory (list "--resume" (qwen-companion-recorded-session-id session)))))))

(provide 'qwen-companion-resume)
;;; qwen-companion-resume.el ends here
