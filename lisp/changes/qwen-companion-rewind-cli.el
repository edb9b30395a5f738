;;; qwen-companion-rewind-cli.el --- Rewind the conversation of a CLI in a terminal  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; End a CLI in a terminal of Emacs, have a private daemon rewind its
;; conversation, and restart the CLI with it in the same window.  The prompt
;; is returned for editing.  The same daemon copies conversations.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-ask)
(require 'qwen-companion-backend)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-prompts)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-rewind-target (:copier nil))
  "A prompt to before which a conversation can be rewound.
CONVERSATION is its name, as in `qwen-companion-turn-conversation', and
SESSION its name in the CLI's records, or nil for a chat.  START is the
time of the prompt in milliseconds since the epoch, and PROMPT its
beginning, on one line.  ROOT is the directory of the project.  DATA is
private to the function that made the target."
  conversation session start prompt root data)

(defconst qwen-companion-rewind-cli-start-tolerance 100
  "Maximum time from the start of a turn to its prompt, in milliseconds.")

(defun qwen-companion-rewind-cli-title (text)
  "Return the beginning of the prompt TEXT in quotes, for a message."
  (format "\"%s\"" (truncate-string-to-width (qwen-companion-untrusted-line text) 40 nil nil t)))

;;; Afterwards

(defvar qwen-companion-rewind-cli--last (make-hash-table :test #'equal)
  "The last rewind of each conversation by this Emacs, by conversation name.
Each value is (SINCE . COPY), as in `qwen-companion-rewind-note'; COPY is
`coming' until it is known.")

(defun qwen-companion-rewind-note (target copy &optional begins)
  "Record that the conversation of TARGET was rewound to before it.
COPY names a copy of the whole conversation, a string for
`qwen-companion-rewind-return-functions', or is nil for no copy.  With BEGINS
non-nil, the rewind is about to start: if it never ends, the next start
of Emacs reports that."
  (let ((conversation (qwen-companion-rewind-target-conversation target))
        (since (- (floor (qwen-companion-rewind-target-start target)) qwen-companion-rewind-cli-start-tolerance)))
    (puthash conversation (cons since (if begins 'coming copy)) qwen-companion-rewind-cli--last)
    (qwen-companion-backend-call
     'journal-rewound
     (list :conversation conversation :since since :copy copy :begins (and begins t)))))

(defun qwen-companion-rewind-cli-copy (turn)
  "Return the copy of a conversation that still has TURN, a rewound turn.
Return `coming' while the journal knows of the rewind but not of its copy
yet, and nil if there is none."
  (or (qwen-companion-turn-copy turn)
      (pcase (gethash (qwen-companion-turn-conversation turn) qwen-companion-rewind-cli--last)
        (`(,since . ,copy) (and (>= (qwen-companion-turn-start turn) since) copy)))))

(defun qwen-companion-rewind-failed (target reason)
  "Report that rewinding the conversation of TARGET failed for REASON."
  (remhash (qwen-companion-rewind-target-conversation target) qwen-companion-rewind-cli--last)
  (message "Rewinding the conversation failed: %s.  C-u C-u M-x qwen-companion-rewind tries again"
           (string-remove-suffix "." (qwen-companion-journal-sentence reason))))

;;; A CLI in a terminal

(defconst qwen-companion-rewind-cli--version "0.21.10"
  "First version of Qwen Code that can rewind a conversation from outside.")

(defun qwen-companion-rewind-cli-method (target)
  "Return the method to rewind the conversation of TARGET, of a CLI in a terminal.
See `qwen-companion-rewind-conversation-functions'."
  (let* ((session (seq-find (lambda (session)
                              (equal (qwen-companion-rewind-target-session target)
                                     (qwen-companion-cli-state-conversation
                                      (qwen-companion-session-state session))))
                            (qwen-companion-backend-sessions)))
         (buffer (and session (qwen-companion-terminal-session-buffer session)))
         (reason (qwen-companion-rewind-cli--reason session buffer)))
    (cond
     (reason (list (concat "the conversation stays: " reason)))
     ((memq (qwen-companion-cli-state-activity (qwen-companion-session-state session))
            '(working asking))
      (user-error "The CLI in %s is working; cancel its turn there, or wait until it ends"
                  (buffer-name buffer)))
     ((qwen-companion-prompts-waiting buffer)
      (user-error "A prompt for the CLI in %s is queued; M-x qwen-companion-ask-take-back withdraws it"
                  (buffer-name buffer)))
     ((qwen-companion-prompts-typed-p session buffer)
      (user-error "Unsent input in %s would be lost; send or delete it first"
                  (buffer-name buffer)))
     (t (cons (format "the conversation too, restarting the CLI in %s"
                      (buffer-name buffer))
              (lambda () (qwen-companion-rewind-cli--begin session buffer target)))))))

(defun qwen-companion-rewind-cli--reason (session buffer)
  "Return why the conversation of SESSION in BUFFER cannot be rewound, or nil.
SESSION is nil if no CLI has it open, BUFFER if no terminal of Emacs has."
  (cond
   ((null session)
    "no connected CLI has it open; M-x qwen-companion-resume opens it")
   ((qwen-companion-session-place session) "its CLI runs on another host")
   ((not (and buffer
              (buffer-local-value 'qwen-companion-terminal-directory buffer)
              (not (buffer-local-value 'qwen-companion-terminal-outside buffer))))
    "its CLI is not in a terminal of M-x qwen-companion-run; quit it and open the conversation with M-x qwen-companion-resume")
   ((not (ignore-errors
           (version<= qwen-companion-rewind-cli--version (qwen-companion-session-version session))))
    (format "Qwen Code %s or later is needed" qwen-companion-rewind-cli--version))))

(defun qwen-companion-rewind-cli--begin (session buffer target)
  "Rewind the conversation of SESSION, in the terminal BUFFER, to before TARGET."
  (let ((directory (qwen-companion-rewind-cli--directory session buffer))
        (place (list buffer (get-buffer-window-list buffer nil t)
                     (append (qwen-companion-terminal-kept-arguments buffer)
                             (list "--resume" (qwen-companion-rewind-target-session target)))))
        (input num-nonmacro-input-events))
    (qwen-companion-rewind-cli-ask
     "Rewinding" directory (qwen-companion-session-id session) target
     (lambda (answer) (qwen-companion-rewind-cli--finish place directory target answer input)))))

(defun qwen-companion-rewind-cli-ask (doing directory session target function &optional tree)
  "Rewind or copy the conversation of TARGET, recorded in DIRECTORY.
SESSION is the CLI that has it open.  If it is nil, copy the conversation
up to the end of TARGET's turn, for a CLI in the directory TREE, by
default DIRECTORY.  DOING describes the action.  Return at once; FUNCTION
gets the answer."
  (let* ((reporter (make-progress-reporter (concat doing " the conversation...")))
         (timer (run-at-time 0.5 0.5 #'qwen-companion-timers-call
                             #'progress-reporter-update reporter)))
    (qwen-companion-journal-ask
     'rewind-recorded
     (list :program (qwen-companion-terminal-program) :directory directory
           :session session :tree tree
           :conversation (qwen-companion-rewind-target-session target)
           :start (floor (qwen-companion-rewind-target-start target))
           :prompt (qwen-companion-rewind-target-prompt target))
     (lambda (answer)
       (cancel-timer timer)
       ;; It opens a terminal, which a message handler must not do.
       (run-at-time 0 nil function answer)))))

(defun qwen-companion-rewind-cli--directory (session buffer)
  "Return the directory of SESSION in the terminal BUFFER.
In a worktree it differs from the terminal's."
  (let ((own (buffer-local-value 'qwen-companion-terminal-directory buffer))
        (found (qwen-companion-session-directory session)))
    (if (or (null found) (file-equal-p own found)) own found)))

(defun qwen-companion-rewind-cli--finish (place directory target answer input)
  "Resume the conversation of TARGET after ANSWER, in DIRECTORY.
PLACE is (BUFFER WINDOWS ARGUMENTS): the terminal, its windows, and the
arguments of the CLI.  Return the prompt for editing, and select its
buffer unless there was input since INPUT, a value of
`num-nonmacro-input-events'."
  (pcase-let ((`(,buffer ,windows ,arguments) place)
              (error-text (qwen-companion-recorded-rewound-error answer)))
    (unless error-text
      (qwen-companion-rewind-note target (qwen-companion-recorded-rewound-copy answer)))
    (unless (or (eq 'off (qwen-companion-state))
                (and (buffer-live-p buffer) (process-live-p (get-buffer-process buffer))))
      (qwen-companion-terminal-replace buffer windows directory arguments))
    (if error-text
        (qwen-companion-rewind-failed target error-text)
      (qwen-companion-ask-put-back (qwen-companion-rewind-target-root target)
                                   (qwen-companion-spool-text answer)
                                   (and (= input num-nonmacro-input-events)
                                        (not (active-minibuffer-window))))
      (message "Rewound to before %s; the prompt is in the prompt buffer"
               (qwen-companion-rewind-cli-title (qwen-companion-rewind-target-prompt target))))))

(provide 'qwen-companion-rewind-cli)
;;; qwen-companion-rewind-cli.el ends here
