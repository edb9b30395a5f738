;;; qwen-companion-rewind-cli.el --- Rewind the conversation of a CLI in a terminal  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A CLI in a terminal of ours is ended, its conversation rewound by a daemon
;; of our own, and it goes on with it in the same place.  The prompt comes
;; back, to be edited.  A copy of a conversation is made by the same daemon.

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
CONVERSATION is its name, as `qwen-companion-turn-conversation' has it,
and SESSION its name as a CLI records it, nil where a chat has it.  START is when the prompt began,
in milliseconds since the epoch, and PROMPT its beginning, on one line.
ROOT is the directory of the project.  DATA is for the function that made
the target."
  conversation session start prompt root data)

(defconst qwen-companion-rewind-cli-early 100
  "Longest time that a turn may begin before its prompt, in milliseconds.")

(defun qwen-companion-rewind-cli-title (text)
  "Return the beginning of the prompt TEXT in quotes, for a message."
  (format "\"%s\"" (truncate-string-to-width (qwen-companion-untrusted-line text) 40 nil nil t)))

;;; Afterwards

(defvar qwen-companion-rewind-cli--last (make-hash-table :test #'equal)
  "The last rewind of each conversation from this Emacs, by the name of that.
It is (SINCE . COPY), as for `qwen-companion-rewind-note'; COPY is
`coming' until that is known.")

(defun qwen-companion-rewind-note (target copy &optional begins)
  "Note that the conversation of TARGET was rewound to before it.
COPY names it as it was before, a string for
`qwen-companion-rewind-return-functions', or nil where there is none.
With BEGINS non-nil, that is only about to be done: if it never ends, the
next start says so."
  (let ((conversation (qwen-companion-rewind-target-conversation target))
        (since (- (floor (qwen-companion-rewind-target-start target)) qwen-companion-rewind-cli-early)))
    (puthash conversation (cons since (if begins 'coming copy)) qwen-companion-rewind-cli--last)
    (qwen-companion-backend-call
     'journal-rewound
     (list :conversation conversation :since since :copy copy :begins (and begins t)))))

(defun qwen-companion-rewind-cli-copy (turn)
  "Return the copy in which TURN, which was rewound, still is.
Return `coming' while the journal has heard of the rewind and its copy is
not known yet, and nil where there is none."
  (or (qwen-companion-turn-copy turn)
      (pcase (gethash (qwen-companion-turn-conversation turn) qwen-companion-rewind-cli--last)
        (`(,since . ,copy) (and (>= (qwen-companion-turn-start turn) since) copy)))))

(defun qwen-companion-rewind-failed (target reason)
  "Say that rewinding the conversation of TARGET has failed because of REASON."
  (remhash (qwen-companion-rewind-target-conversation target) qwen-companion-rewind-cli--last)
  (message "Rewinding the conversation failed: %s.  C-u C-u M-x qwen-companion-rewind tries again"
           (string-remove-suffix "." (qwen-companion-journal-sentence reason))))

;;; A CLI in a terminal

(defconst qwen-companion-rewind-cli--version "0.21.10"
  "The first version of Qwen Code seen to rewind a conversation from outside.")

(defun qwen-companion-rewind-cli-door (target)
  "Return how the conversation of TARGET is rewound, by its CLI in a terminal.
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
      (user-error "A prompt waits for the CLI in %s; M-x qwen-companion-ask-take-back takes it back"
                  (buffer-name buffer)))
     ((qwen-companion-prompts-typed-p session buffer)
      (user-error "Something is typed in %s, which would be lost; send or delete it first"
                  (buffer-name buffer)))
     (t (cons (format "the conversation too, for which the CLI in %s ends and goes on"
                      (buffer-name buffer))
              (lambda () (qwen-companion-rewind-cli--begin session buffer target)))))))

(defun qwen-companion-rewind-cli--reason (session buffer)
  "Return why the conversation of SESSION in BUFFER cannot be rewound, or nil.
Both are nil where no CLI records it, or it is in no terminal of Emacs."
  (cond
   ((null session)
    "no connected CLI has it open; M-x qwen-companion-resume goes on with it")
   ((qwen-companion-session-place session) "its CLI runs at another place")
   ((not (and buffer
              (buffer-local-value 'qwen-companion-terminal-directory buffer)
              (not (buffer-local-value 'qwen-companion-terminal-outside buffer))))
    "its CLI is in no terminal that M-x qwen-companion-run has opened; end it, and go on with it by M-x qwen-companion-resume")
   ((not (ignore-errors
           (version<= qwen-companion-rewind-cli--version (qwen-companion-session-version session))))
    (format "only Qwen Code from %s on can do this" qwen-companion-rewind-cli--version))))

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
  "Have the conversation of TARGET, recorded in DIRECTORY, rewound; return at once.
SESSION is the CLI that has it open, or nil to have a copy of it made that
ends with the turn of TARGET, for a CLI in the directory TREE if that is
another one.  DOING says so.  FUNCTION gets the answer."
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
       ;; It opens a terminal, which nothing may do while a message is handled.
       (run-at-time 0 nil function answer)))))

(defun qwen-companion-rewind-cli--directory (session buffer)
  "Return the directory in which SESSION in the terminal BUFFER works.
It is another one than the terminal's in a worktree."
  (let ((own (buffer-local-value 'qwen-companion-terminal-directory buffer))
        (found (qwen-companion-session-directory session)))
    (if (or (null found) (file-equal-p own found)) own found)))

(defun qwen-companion-rewind-cli--finish (place directory target answer input)
  "Go on with the conversation of TARGET after ANSWER, in DIRECTORY.
PLACE is (BUFFER WINDOWS ARGUMENTS): where its terminal was, and how the
CLI goes on.  The prompt comes back, and its buffer is selected unless
there was input since INPUT, which is `num-nonmacro-input-events'."
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
