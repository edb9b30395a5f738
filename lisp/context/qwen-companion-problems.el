;;; qwen-companion-problems.el --- Problems of Flymake and Flycheck  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later
;;; Commentary:

;; The problems of a buffer reported by Flymake, and by Flycheck if it is used,
;; in one form, order and wording, for prompts and tools.  Eglot and lsp-mode
;; report through them.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(declare-function flymake-diagnostic-backend "flymake" (diag) t)
(declare-function flymake-diagnostic-beg "flymake" (diag) t)
(declare-function flymake-diagnostic-text "flymake" (diag) t)
(declare-function flymake-diagnostic-type "flymake" (cl-x) t)
(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-disabled-backends "flymake" ())
(declare-function flymake-reporting-backends "flymake" ())
(declare-function flymake-running-backends "flymake" ())
(declare-function flycheck-running-p "ext:flycheck" ())
(declare-function flycheck-error-checker "ext:flycheck" (cl-x) t)
(declare-function flycheck-error-column "ext:flycheck" (cl-x) t)
(declare-function flycheck-error-filename "ext:flycheck" (cl-x) t)
(declare-function flycheck-error-level "ext:flycheck" (cl-x) t)
(declare-function flycheck-error-line "ext:flycheck" (cl-x) t)
(declare-function flycheck-error-message "ext:flycheck" (cl-x) t)

(cl-defstruct (qwen-companion-problem
               (:constructor qwen-companion-problems--make)
               (:copier nil))
  "A checker's report about a location in the current buffer.
SEVERITY is `error', `warning' or `note'.  LINE and COLUMN count from 1;
COLUMN is nil if unknown.  SOURCE names the checker, \"\" if it has no
name."
  severity line column source message)

(defun qwen-companion-problems-checked-p ()
  "Return non-nil when Flymake or Flycheck is on in the current buffer."
  (or (bound-and-true-p flymake-mode)
      (bound-and-true-p flycheck-mode)))

(defun qwen-companion-problems-pending-p ()
  "Return non-nil when a check of the current buffer has not reported yet."
  (or (and (bound-and-true-p flymake-mode)
           (let ((running (flymake-running-backends)))
             (or (not (or running (qwen-companion-problems-disabled)))
                 (cl-set-difference running (flymake-reporting-backends)))))
      (and (bound-and-true-p flycheck-mode)
           (flycheck-running-p))))

(defun qwen-companion-problems-disabled ()
  "Return the names of the checkers that Flymake has disabled in this buffer.
Leave out its legacy checker, which fails in most modes."
  (and (bound-and-true-p flymake-mode)
       (mapcar #'qwen-companion-problems--source
               (remq 'flymake-proc-legacy-flymake (flymake-disabled-backends)))))

(defun qwen-companion-problems (&optional start end)
  "Return the problems in the current buffer, the worst first, then by line.
With START and END, return those that overlap with that range."
  (save-restriction
    (widen)
    (cl-stable-sort
     (append (and (bound-and-true-p flymake-mode)
                  (mapcar #'qwen-companion-problems--of-flymake
                          (flymake-diagnostics start end)))
             (and (bound-and-true-p flycheck-mode)
                  (qwen-companion-problems--of-flycheck start end)))
     #'qwen-companion-problems--before-p)))

(defun qwen-companion-problems--before-p (a b)
  "Return non-nil if the problem A is to be listed before B."
  (let ((rank-a (qwen-companion-problems--rank a))
        (rank-b (qwen-companion-problems--rank b)))
    (if (= rank-a rank-b)
        (< (qwen-companion-problem-line a) (qwen-companion-problem-line b))
      (< rank-a rank-b))))

(defun qwen-companion-problems--rank (problem)
  "Return the rank of the severity of PROBLEM, 0 for the worst."
  (cl-position (qwen-companion-problem-severity problem) '(error warning note)))

(defun qwen-companion-problems--of-flymake (diagnostic)
  "Return the DIAGNOSTIC of Flymake as a problem."
  (let ((level (qwen-companion-problems--level (flymake-diagnostic-type diagnostic)))
        (start (flymake-diagnostic-beg diagnostic))
        (backend (flymake-diagnostic-backend diagnostic)))
    (qwen-companion-problems--make
     :severity (cond ((>= level (get 'flymake-error 'severity)) 'error)
                     ((>= level (get 'flymake-warning 'severity)) 'warning)
                     (t 'note))
     :line (line-number-at-pos start t)
     :column (save-excursion (goto-char start)
                             (1+ (- start (line-beginning-position))))
     :source (qwen-companion-problems--source backend)
     :message (flymake-diagnostic-text diagnostic))))

(defun qwen-companion-problems--source (backend)
  "Return the name of BACKEND, a function of Flymake, \"\" for a closure.
That of Eglot is `eglot-flymake-backend'."
  (if (symbolp backend)
      (string-join (cl-set-difference (split-string (symbol-name backend) "-" t)
                                      '("nil" "flymake" "backend")
                                      :test #'equal)
                   "-")
    ""))

(defun qwen-companion-problems--level (type)
  "Return the severity of the TYPE of a diagnostic of Flymake, a number."
  (let ((types nil))
    (while (and type (not (memq type types)) (not (get type 'severity)))
      (push type types)
      (setq type (get type 'flymake-category)))
    (get (if (and type (get type 'severity)) type 'flymake-error)
         'severity)))

(defun qwen-companion-problems--of-flycheck (start end)
  "Return Flycheck's problems from START to END, or of the whole buffer.
Leave out problems in other files, which a checker may report too."
  (let ((first (if start (line-number-at-pos start t) 0))
        (last (if end (line-number-at-pos end t) most-positive-fixnum)))
    (cl-loop for found in (bound-and-true-p flycheck-current-errors)
             for line = (or (flycheck-error-line found) 1)
             for file = (flycheck-error-filename found)
             when (and (<= first line last)
                       (or (null file) (null buffer-file-name)
                           (string= (file-name-nondirectory file)
                                    (file-name-nondirectory buffer-file-name))))
             collect (qwen-companion-problems--make
                      :severity (pcase (flycheck-error-level found)
                                  ('error 'error) ('warning 'warning) (_ 'note))
                      :line line
                      :column (flycheck-error-column found)
                      :source (format "%s" (or (flycheck-error-checker found) ""))
                      :message (or (flycheck-error-message found) "")))))

(defun qwen-companion-problems-text (problem &optional limit)
  "Return PROBLEM as text in one line, without its location.
If LIMIT is non-nil, cut its message after LIMIT characters."
  (let ((message (string-join
                  (split-string (qwen-companion-problem-message problem) "[\n\t ]+" t)
                  " "))
        (source (qwen-companion-problem-source problem)))
    (concat (symbol-name (qwen-companion-problem-severity problem)) ": "
            (if (and limit (length> message limit))
                (concat (substring message 0 limit) "...")
              message)
            (unless (string-empty-p source)
              (format " (%s)" source)))))

(provide 'qwen-companion-problems)
;;; qwen-companion-problems.el ends here
