;;; qwen-companion-quote.el --- Quoting buffers and files in prompts  -*- lexical-binding: t; -*-

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

;; What a prompt says of buffers and files: a file by its name, a region with
;; its file and lines, diagnostics of Flymake and Flycheck line by line.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-diagnostic-beg "flymake" (diag) t)
(declare-function flymake-diagnostic-text "flymake" (diag) t)
(declare-function flymake-diagnostic-type "flymake" (diag) t)
(declare-function flycheck-error-line "ext:flycheck" (err))
(declare-function flycheck-error-level "ext:flycheck" (err))
(declare-function flycheck-error-message "ext:flycheck" (err))
(defvar flycheck-current-errors)

;;; Names of files

(defun qwen-companion-quote-escape (name)
  "Return the file NAME escaped for use after `@'."
  (replace-regexp-in-string "[ \t\n\\]" "\\\\\\&" name))

(defun qwen-companion-quote-unescape (name)
  "Return the file name that NAME, as written after `@', stands for."
  (replace-regexp-in-string "\\\\\\(.\\)" "\\1" name))

(defun qwen-companion-quote-relative-name (file root)
  "Return the name of FILE relative to ROOT, a directory or nil.
Outside of ROOT, the name is absolute.  No file name handler is used."
  (let* ((file-name-handler-alist nil)
         (file (expand-file-name file))
         (root (and root (file-name-as-directory root))))
    (if (and root (string-prefix-p root file))
        (substring file (length root))
      file)))

(defun qwen-companion-quote-title (root)
  "Return the name of the current buffer's file in ROOT, else of the buffer."
  (if-let* ((file (buffer-file-name (buffer-base-buffer))))
      (qwen-companion-quote-escape (qwen-companion-quote-relative-name file root))
    (buffer-name)))

;;; Text

(defun qwen-companion-quote--language ()
  "Return the language of the current buffer for a code block, or \"\"."
  (if (derived-mode-p 'prog-mode)
      (replace-regexp-in-string "\\(-ts\\)?-mode\\'" "" (symbol-name major-mode))
    ""))

(defun qwen-companion-quote-code-block (title start end)
  "Return the text from START to END as a code block below TITLE."
  (let* ((text (buffer-substring-no-properties start end))
         (longest (cl-loop with from = 0
                           while (string-match "^[ \t]*\\(```+\\)" text from)
                           do (setq from (match-end 0))
                           maximize (- (match-end 1) (match-beginning 1))))
         (fence (make-string (max 3 (1+ (or longest 0))) ?`)))
    (concat title ":\n"
            fence (qwen-companion-quote--language) "\n"
            text (if (string-suffix-p "\n" text) "" "\n")
            fence "\n")))

(defun qwen-companion-quote-region (start end root)
  "Return the text from START to END as a code block with its file and lines.
The file is named relative to ROOT, the text is that of the buffer."
  (let ((title (qwen-companion-quote-title root))
        (first (line-number-at-pos start t))
        (last (line-number-at-pos
               (if (= end (save-excursion (goto-char end) (line-beginning-position)))
                   (max start (1- end))
                 end)
               t)))
    (qwen-companion-quote-code-block
     (if (= first last)
         (format "%s, line %d" title first)
       (format "%s, lines %d-%d" title first last))
     start end)))

;;; Diagnostics

(defun qwen-companion-quote--flymake (start end)
  "Return Flymake's diagnostics from START to END: (LINE LEVEL TEXT)."
  (when (bound-and-true-p flymake-mode)
    (mapcar (lambda (diagnostic)
              (list (line-number-at-pos (flymake-diagnostic-beg diagnostic) t)
                    (string-remove-prefix
                     ":" (string-remove-prefix
                          "eglot-" (format "%s" (flymake-diagnostic-type diagnostic))))
                    (flymake-diagnostic-text diagnostic)))
            (flymake-diagnostics start end))))

(defun qwen-companion-quote--flycheck (start end)
  "Return Flycheck's diagnostics from START to END: (LINE LEVEL TEXT)."
  (when (bound-and-true-p flycheck-mode)
    (let ((first (line-number-at-pos start t))
          (last (line-number-at-pos end t)))
      (cl-loop for found in flycheck-current-errors
               for line = (flycheck-error-line found)
               when (and line (<= first line last))
               collect (list line
                             (format "%s" (flycheck-error-level found))
                             (or (flycheck-error-message found) ""))))))

(defun qwen-companion-quote--diagnostics (start end)
  "Return all diagnostics from START to END by line: (LINE LEVEL TEXT)."
  (cl-stable-sort (append (qwen-companion-quote--flymake start end)
                          (qwen-companion-quote--flycheck start end))
                  #'< :key #'car))

(defun qwen-companion-quote-diagnostics (start end root)
  "Return the diagnostics from START to END, a line for each; nil for none.
The file is named relative to ROOT."
  (when-let* ((found (qwen-companion-quote--diagnostics start end)))
    (let ((title (qwen-companion-quote-title root)))
      (mapconcat (pcase-lambda (`(,line ,level ,text))
                   (format "%s:%d: %s: %s\n" title line level
                           (string-join (split-string text "[\n\t ]+" t) " ")))
                 found ""))))

(provide 'qwen-companion-quote)
;;; qwen-companion-quote.el ends here
