;;; qwen-companion-timers.el --- Timers that survive clock changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Timers of Emacs follow the clock of the machine.  If that is set back by an
;; hour, each pending timer is an hour late: CLIs get no context, reviews do
;; not open, and a hanging process goes unnoticed.
;;
;; Emacs does not report clock changes.  `qwen-companion-timers-check' detects
;; them.  It is called without a timer: when the Python process calls, and when
;; the user types.
;;
;; Timers of the package are recognised by the names of their functions; to run
;; any other function, use `qwen-companion-timers-call'.
;;
;; Lists that show ages are updated by a timer while they are in a window.

;;; Code:

(require 'timer)
(require 'qwen-companion-buffers)

;;; The clock

(defvar qwen-companion-timers--seen 0
  "The latest time observed, in seconds since the epoch.")

(defun qwen-companion-timers-check ()
  "Move the timers of the package back if the clock was set back.
Each is then late by at most the time since the last call."
  (let* ((now (float-time))
         (back (- qwen-companion-timers--seen now)))
    (setq qwen-companion-timers--seen now)
    (when (> back 0)
      (dolist (timer (copy-sequence timer-list))
        (when (qwen-companion-timers--ours-p timer)
          (cancel-timer timer)
          (timer-set-time timer (time-subtract (timer--time timer) back)
                          (timer--repeat-delay timer))
          (timer-activate timer))))))

(defun qwen-companion-timers-forget ()
  "Forget the latest time observed."
  (setq qwen-companion-timers--seen 0))

(defun qwen-companion-timers-call (function &rest arguments)
  "Call FUNCTION, a closure or one of Emacs, with ARGUMENTS; for timers."
  (apply function arguments))

(defun qwen-companion-timers--ours-p (timer)
  "Return non-nil when TIMER is one of the package."
  (let ((function (timer--function timer)))
    (and (symbolp function)
         (string-prefix-p "qwen-companion-" (symbol-name function)))))

(defmacro qwen-companion-timers-cancel (&rest places)
  "Cancel the timers in PLACES, each a timer or nil, and set these to nil."
  `(progn
     ,@(mapcar (lambda (place)
                 `(when ,place
                    (cancel-timer ,place)
                    (setf ,place nil)))
               places)))

;;; Visible buffers

(defvar-local qwen-companion-timers--function nil
  "Function that updates the current buffer.")
(defvar-local qwen-companion-timers--seconds nil
  "Seconds between two updates of the current buffer.")
(defvar-local qwen-companion-timers--timer nil
  "Timer that updates the current buffer again and again while it is visible.")
(defvar-local qwen-companion-timers--soon nil
  "Timer that updates the current buffer once, or nil.")

(defun qwen-companion-timers-keep-updated (function &optional seconds)
  "Call FUNCTION in the current buffer while it is in a window.
Call it without arguments when a window begins to show the buffer, and
then every SECONDS, if non-nil.  Major modes call this."
  (setq qwen-companion-timers--function function
        qwen-companion-timers--seconds seconds)
  (add-hook 'window-buffer-change-functions #'qwen-companion-timers--shown nil t)
  (add-hook 'change-major-mode-hook #'qwen-companion-timers--stop nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-timers--stop nil t))

(defun qwen-companion-timers-visible-window ()
  "Return a window of the current buffer, or nil.
Include windows of iconified frames: deiconifying runs no hook."
  (get-buffer-window (current-buffer) 0))

(defun qwen-companion-timers-update-visible ()
  "Update the current buffer now if it is in a window, else stop doing so."
  (if (not (qwen-companion-timers-visible-window))
      (qwen-companion-timers--stop)
    (unless (or qwen-companion-timers--timer (not qwen-companion-timers--seconds))
      (setq qwen-companion-timers--timer
            (run-at-time qwen-companion-timers--seconds
                         qwen-companion-timers--seconds
                         #'qwen-companion-timers--tick (current-buffer))))
    (funcall qwen-companion-timers--function)))

(defun qwen-companion-timers-update-soon (delay)
  "Update the current buffer once in DELAY seconds if it is in a window.
Further calls until then share that update."
  (when (and (not qwen-companion-timers--soon)
             (qwen-companion-timers-visible-window))
    (setq qwen-companion-timers--soon
          (run-at-time delay nil #'qwen-companion-timers--update-once (current-buffer)))))

(defun qwen-companion-timers--update-once (buffer)
  "Update BUFFER if it is live and in a window; for a timer."
  (qwen-companion-buffers-when-live buffer
    (setq qwen-companion-timers--soon nil)
    (when (qwen-companion-timers-visible-window)
      (funcall qwen-companion-timers--function))))

(defun qwen-companion-timers--shown (window)
  "Update the buffer of WINDOW, which has begun to show it."
  (qwen-companion-timers--tick (window-buffer window)))

(defun qwen-companion-timers--tick (buffer)
  "Update BUFFER if it is live."
  (qwen-companion-buffers-when-live buffer
    (qwen-companion-timers-update-visible)))

(defun qwen-companion-timers--stop ()
  "Stop the timers of the current buffer."
  (qwen-companion-timers-cancel qwen-companion-timers--timer qwen-companion-timers--soon))

(provide 'qwen-companion-timers)
;;; qwen-companion-timers.el ends here
