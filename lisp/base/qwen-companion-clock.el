;;; qwen-companion-clock.el --- Timers and a clock that is set back  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Timers of Emacs go by the clock of the machine.  When that is set back by
;; an hour, each pending timer is due an hour late, and all that waits
;; for it stands still: nothing is told to a CLI, no review opens, a process
;; that hangs is not noticed.
;;
;; Emacs does not say that the clock was set.  `qwen-companion-clock-check'
;; finds out; it is called on the ways that need no timer: when the Python
;; process calls, and when the user types.
;;
;; The timers of the package are known by the names of their functions, so
;; each runs a function of the package; for another one there is
;; `qwen-companion-clock-call'.

;;; Code:

(require 'timer)

(defvar qwen-companion-clock--seen 0
  "The latest time that was seen, in seconds since the epoch.")

(defun qwen-companion-clock-check ()
  "Move the timers of the package back if the clock was set back.
They are late by no more than the time since the last call then."
  (let* ((now (float-time))
         (back (- qwen-companion-clock--seen now)))
    (setq qwen-companion-clock--seen now)
    (when (> back 0)
      (dolist (timer (copy-sequence timer-list))
        (when (qwen-companion-clock--ours-p timer)
          (cancel-timer timer)
          (timer-set-time timer (time-subtract (timer--time timer) back)
                          (timer--repeat-delay timer))
          (timer-activate timer))))))

(defun qwen-companion-clock-forget ()
  "Forget the time that was seen."
  (setq qwen-companion-clock--seen 0))

(defun qwen-companion-clock-call (function &rest arguments)
  "Call FUNCTION, a closure or one of Emacs, with ARGUMENTS; for timers."
  (apply function arguments))

(defun qwen-companion-clock--ours-p (timer)
  "Return non-nil when TIMER is one of the package."
  (let ((function (timer--function timer)))
    (and (symbolp function)
         (string-prefix-p "qwen-companion-" (symbol-name function)))))

(provide 'qwen-companion-clock)
;;; qwen-companion-clock.el ends here
