;;; qwen-companion-terminal-updates.el --- Whole updates of a terminal's screen  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A CLI redraws its screen several times a second, and marks the beginning and
;; the end of each update (synchronized output, mode 2026).  Emacs reads an
;; update in pieces of 4 KB and may redisplay between two of them, when the
;; screen is cleared and not yet filled: it flickers.  vterm, Eat and term
;; ignore the marks, so this file holds an update back until it is complete.
;; bench/terminals.py measures the effect.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defconst qwen-companion-terminal-updates--limit 0.2
  "Seconds after which an incomplete update is passed on.")

(defconst qwen-companion-terminal-updates--mark "\e\\[\\?2026\\([hl]\\)"
  "Matches the beginning of an update, with an h, or its end, with an l.")

(cl-defstruct (qwen-companion-terminal-updates--begun
               (:constructor qwen-companion-terminal-updates--make-begun))
  "The TEXT of an incomplete update, and the TIMER that passes it on."
  (text "") timer)

(defun qwen-companion-terminal-coalesce-screen-updates (process)
  "Pass each update of the screen to the filter of PROCESS in one piece."
  (let ((begun (qwen-companion-terminal-updates--make-begun)))
    (add-function :around (process-filter process)
                  (lambda (filter process string)
                    (qwen-companion-terminal-updates--pass-complete begun filter process string)))))

(defun qwen-companion-terminal-updates--pass-complete (begun filter process string)
  "Pass to FILTER the complete part of BEGUN and STRING, output of PROCESS."
  (let* ((text (concat (qwen-companion-terminal-updates--begun-text begun) string))
         (whole (qwen-companion-terminal-updates--whole text))
         (rest (substring text whole))
         (timer (qwen-companion-terminal-updates--begun-timer begun)))
    (when (and timer (or (> whole 0) (string-empty-p rest)))
      (cancel-timer timer)
      (setq timer nil))
    ;; The mark of the beginning alone draws nothing, so it may wait.
    (when (and (not timer) (length> rest (length "\e[?2026h")))
      (setq timer (run-at-time qwen-companion-terminal-updates--limit nil
                               #'qwen-companion-terminal-updates--flush
                               begun filter process)))
    (setf (qwen-companion-terminal-updates--begun-text begun) rest
          (qwen-companion-terminal-updates--begun-timer begun) timer)
    (unless (zerop whole)
      (funcall filter process (substring text 0 whole)))))

(defun qwen-companion-terminal-updates--flush (begun filter process)
  "Pass BEGUN, output of PROCESS, to FILTER without waiting for its end."
  (let ((text (qwen-companion-terminal-updates--begun-text begun)))
    (setf (qwen-companion-terminal-updates--begun-text begun) ""
          (qwen-companion-terminal-updates--begun-timer begun) nil)
    (when (buffer-live-p (process-buffer process))
      (funcall filter process text))))

(defun qwen-companion-terminal-updates--whole (text)
  "Return the length of the part of TEXT before an incomplete update."
  (let ((from 0)
        (begin nil))
    (while (string-match qwen-companion-terminal-updates--mark text from)
      (setq from (match-end 0)
            begin (and (equal "h" (match-string 1 text))
                       (or begin (match-beginning 0)))))
    (or begin (length text))))

(provide 'qwen-companion-terminal-updates)
;;; qwen-companion-terminal-updates.el ends here
