;;; qwen-companion-diagnostics.el --- Problems that checkers report  -*- lexical-binding: t; -*-

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

;; What flymake, and flycheck where it is used, say about a file, in one
;; form: eglot and lsp-mode report through them.
;;
;; After an edit by an agent, the file is checked anew even where no window
;; shows it, and what the edit has added is for the model.  Problems are
;; compared by what they say and not by where they are: lines move.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-context)
(require 'qwen-companion-messages)
(require 'qwen-companion-privacy)
(require 'qwen-companion-tools)

(declare-function flymake-diagnostic-backend "flymake" (diag) t)
(declare-function flymake-diagnostic-beg "flymake" (diag) t)
(declare-function flymake-diagnostic-text "flymake" (diag) t)
(declare-function flymake-diagnostic-type "flymake" (cl-x) t)
(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-reporting-backends "flymake" ())
(declare-function flymake-running-backends "flymake" ())
(declare-function flymake-start "flymake" (&optional deferred force))
(declare-function flycheck-buffer "ext:flycheck" ())
(declare-function flycheck-running-p "ext:flycheck" ())
(declare-function flycheck-error-line "ext:flycheck" (error))
(declare-function flycheck-error-column "ext:flycheck" (error))
(declare-function flycheck-error-level "ext:flycheck" (error))
(declare-function flycheck-error-message "ext:flycheck" (error))
(declare-function flycheck-error-checker "ext:flycheck" (error))

(cl-defstruct (qwen-companion-diagnostics-problem
               (:constructor qwen-companion-diagnostics--make-problem)
               (:copier nil))
  "What a checker says about a place in the current buffer.
SEVERITY is `error', `warning' or `note'; LINE and COLUMN count from 1."
  severity line column source message)

(defconst qwen-companion-diagnostics--severities '(error warning note)
  "The severities, the worst one first.")

;;; What is known

(defun qwen-companion-diagnostics-checked-p ()
  "Return non-nil when flymake or flycheck is on in the current buffer."
  (or (bound-and-true-p flymake-mode)
      (bound-and-true-p flycheck-mode)))

(defun qwen-companion-diagnostics-waiting-p ()
  "Return non-nil when a check of the current buffer has not reported."
  (or (and (bound-and-true-p flymake-mode)
           (let ((running (flymake-running-backends)))
             (or (null running)
                 (cl-set-difference running (flymake-reporting-backends)))))
      (and (bound-and-true-p flycheck-mode)
           (flycheck-running-p))))

(defun qwen-companion-diagnostics-problems ()
  "Return the problems in the current buffer, the worst first, then by line."
  (save-restriction
    (widen)
    (sort (append (and (bound-and-true-p flymake-mode)
                       (mapcar #'qwen-companion-diagnostics--of-flymake
                               (flymake-diagnostics)))
                  (and (bound-and-true-p flycheck-mode)
                       (mapcar #'qwen-companion-diagnostics--of-flycheck
                               (bound-and-true-p flycheck-current-errors))))
          #'qwen-companion-diagnostics--before-p)))

(defun qwen-companion-diagnostics--before-p (a b)
  "Return non-nil when the problem A is to be listed before B."
  (let ((rank-a (qwen-companion-diagnostics--rank a))
        (rank-b (qwen-companion-diagnostics--rank b)))
    (if (= rank-a rank-b)
        (< (qwen-companion-diagnostics-problem-line a)
           (qwen-companion-diagnostics-problem-line b))
      (< rank-a rank-b))))

(defun qwen-companion-diagnostics--rank (problem)
  "Return the place of the severity of PROBLEM, 0 for the worst."
  (cl-position (qwen-companion-diagnostics-problem-severity problem)
               qwen-companion-diagnostics--severities))

(defun qwen-companion-diagnostics--of-flymake (diagnostic)
  "Return the flymake DIAGNOSTIC as a problem."
  (let* ((level (qwen-companion-diagnostics--level
                 (flymake-diagnostic-type diagnostic)))
         (start (flymake-diagnostic-beg diagnostic))
         (backend (flymake-diagnostic-backend diagnostic)))
    (qwen-companion-diagnostics--make-problem
     :severity (cond ((>= level (get 'flymake-error 'severity)) 'error)
                     ((>= level (get 'flymake-warning 'severity)) 'warning)
                     (t 'note))
     :line (line-number-at-pos start t)
     :column (save-excursion (goto-char start)
                             (1+ (- start (line-beginning-position))))
     :source (and (symbolp backend) backend
                  (replace-regexp-in-string
                   "-?flymake-?\\(?:backend\\)?" "" (symbol-name backend)))
     :message (flymake-diagnostic-text diagnostic))))

(defun qwen-companion-diagnostics--level (type)
  "Return the severity of the flymake TYPE, a number."
  (let ((types nil))
    (while (and type (not (memq type types)) (not (get type 'severity)))
      (push type types)
      (setq type (get type 'flymake-category)))
    (get (if (and type (get type 'severity)) type 'flymake-error)
         'severity)))

(defun qwen-companion-diagnostics--of-flycheck (error)
  "Return the flycheck ERROR as a problem."
  (qwen-companion-diagnostics--make-problem
   :severity (pcase (flycheck-error-level error)
               ('error 'error) ('warning 'warning) (_ 'note))
   :line (or (flycheck-error-line error) 1)
   :column (flycheck-error-column error)
   :source (symbol-name (flycheck-error-checker error))
   :message (or (flycheck-error-message error) "")))

(defun qwen-companion-diagnostics-place (problem path)
  "Return PROBLEM in the file PATH as a part of an answer."
  (qwen-companion-tools-place
   path
   (qwen-companion-diagnostics-problem-line problem)
   (qwen-companion-diagnostics-problem-column problem)
   (string-join
    (delq nil
          (list (symbol-name (qwen-companion-diagnostics-problem-severity problem))
                (let ((source (qwen-companion-diagnostics-problem-source problem)))
                  (and source (not (string-empty-p source)) source))
                (qwen-companion-diagnostics-problem-message problem)))
    " ")))

(provide 'qwen-companion-diagnostics)
;;; qwen-companion-diagnostics.el ends here
