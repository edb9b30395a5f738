;;; qwen-companion-resume.el --- Going on with recorded conversations  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Qwen Code records each conversation.  `qwen-companion-resume' lists those of
;; the project and starts a CLI that continues one.  If two CLIs wrote one
;; conversation, the turns of one would be lost.  So a conversation that is
;; open continues there.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-completion)
(require 'qwen-companion-messages)
(require 'qwen-companion-registry)
(require 'qwen-companion-remote)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;;###autoload
(defun qwen-companion-resume (directory &optional newest)
  "Choose a recorded conversation of the project, and start a CLI to continue it.
If a terminal of this Emacs has it open, go there; if another one has, ask
whether to end the CLI there first.  With a prefix argument, ask for the
DIRECTORY.  With NEWEST non-nil, continue the newest conversation.  On
another machine, the CLI lists the conversations itself, in its terminal."
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
      (qwen-companion-remote-run directory (list (if newest "--continue" "--resume")) t))
     (t
      (qwen-companion-backend-request
       'list-recorded (list :directory (file-truename directory))
       (lambda (reply)
         (when reply
           ;; A handler of a message must not ask.
           (run-at-time 0 nil #'qwen-companion-resume--offer directory input
                        (qwen-companion-recorded-sessions-sessions reply)
                        newest))))))))

(defun qwen-companion-resume--offer (directory input sessions newest)
  "Choose one of the recorded SESSIONS of DIRECTORY, and start it.
INPUT was `num-nonmacro-input-events' at the request.  Ask nothing if the
user has typed since: the next keys are meant for something else.  NEWEST
is as in `qwen-companion-resume'."
  (cond
   ((and newest sessions)
    (qwen-companion-resume--continue directory (car sessions)))
   ((null sessions)
    (message "No conversation was recorded in %s" (abbreviate-file-name directory)))
   ((or (active-minibuffer-window)
        (/= input num-nonmacro-input-events))
    (message "Not listed, as you typed meanwhile; repeat M-x qwen-companion-resume"))
   (t
    (let* ((choices (cl-loop for session in sessions
                             for number from 1
                             collect (cons (format "%d %s" number
                                                   (qwen-companion-untrusted-text
                                                    (qwen-companion-recorded-session-prompt
                                                     session)))
                                           session)))
           ;; The user completes by any part of a prompt.
           (completion-category-defaults
            (cons '(qwen-companion-recorded-session (styles substring))
                  completion-category-defaults))
           (session
            (qwen-companion-completion-read
             "Continue conversation: " choices 'qwen-companion-recorded-session
             (lambda (session)
               (format-time-string
                "%F %R" (/ (qwen-companion-recorded-session-time session) 1000))))))
      (qwen-companion-resume--continue directory session)))))

(defun qwen-companion-resume--continue (directory recorded)
  "Continue the RECORDED conversation, in DIRECTORY or where it is open."
  (let* ((id (qwen-companion-recorded-session-id recorded))
         (session (qwen-companion-registry-in-conversation id))
         (buffer (and session (qwen-companion-terminal-session-buffer session)))
         (cli (and session (qwen-companion-registry-of session)))
         (open (lambda (&rest _)
                 (qwen-companion-terminal-open directory (list "--resume" id)))))
    (cond
     (buffer
      (qwen-companion-terminal-show buffer)
      (message "That conversation is open in this terminal"))
     (cli
      (condition-case err
          (progn (qwen-companion-registry-check-movable cli)
                 (qwen-companion-registry-when-ended cli open))
        (user-error (message "%s" (error-message-string err)))))
     (session
      (message "That conversation is open outside of this Emacs; quit the CLI there first"))
     (t (funcall open)))))

(provide 'qwen-companion-resume)
;;; qwen-companion-resume.el ends here
