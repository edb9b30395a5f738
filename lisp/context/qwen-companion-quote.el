;;; qwen-companion-quote.el --- Quoting buffers and files in prompts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Text of prompts about buffers and files: the name of a file, a region with
;; its file and lines, a line for each problem of Flymake or Flycheck.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-problems)

;;; Names of files

(defun qwen-companion-quote-escape (name)
  "Return the file NAME escaped for use after `@'."
  (replace-regexp-in-string "[ \t\n\\]" "\\\\\\&" name))

(defun qwen-companion-quote-unescape (name)
  "Return the file name that was escaped as NAME after `@'."
  (replace-regexp-in-string "\\\\\\(.\\)" "\\1" name))

(defun qwen-companion-quote-relative-name (file root)
  "Return the name of FILE relative to ROOT, a directory or nil.
Outside of ROOT, the name is absolute; if ROOT is remote, it is the name
on that host.  Call no file name handler on FILE."
  (let* ((place (and root (file-remote-p root)))
         (file-name-handler-alist nil)
         (file (expand-file-name file))
         (root (and root (file-name-as-directory root))))
    (cond ((and root (string-prefix-p root file)) (substring file (length root)))
          ((and place (string-prefix-p (concat place "/") file)) (substring file (length place)))
          (t file))))

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

(defconst qwen-companion-quote--region-limit 40000
  "Most characters of a region that are quoted without asking.
The user has chosen them, but a model reads little more at a time.")

(defun qwen-companion-quote--place (start end root)
  "Return the file and the lines from START to END as text.
Name the file relative to ROOT."
  (let ((title (qwen-companion-quote-title root))
        (first (line-number-at-pos start t))
        (last (line-number-at-pos
               (if (= end (save-excursion (goto-char end) (line-beginning-position)))
                   (max start (1- end))
                 end)
               t)))
    (if (= first last)
        (format "%s, line %d" title first)
      (format "%s, lines %d-%d" title first last))))

(defun qwen-companion-quote-region (start end root)
  "Return the text from START to END as a code block with its file and lines.
Name the file relative to ROOT; use the text of the buffer.  Ask before
quoting a long text; if the user declines, return the file and lines only."
  (let ((place (qwen-companion-quote--place start end root)))
    (if (or (<= (- end start) qwen-companion-quote--region-limit)
            (y-or-n-p (format "Quote %d lines, %s, instead of only naming them? "
                              (count-lines start end)
                              (file-size-human-readable (- end start)))))
        (qwen-companion-quote-code-block place start end)
      place)))

;;; Problems

(defun qwen-companion-quote-problems (start end root)
  "Return the problems from START to END, a line for each; nil if there are none.
Name the file relative to ROOT."
  (when-let* ((problems (qwen-companion-problems start end)))
    (let ((title (qwen-companion-quote-title root)))
      (mapconcat (lambda (problem)
                   (format "%s:%d:%s %s\n" title
                           (qwen-companion-problem-line problem)
                           (if-let* ((column (qwen-companion-problem-column problem)))
                               (format "%d:" column)
                             "")
                           (qwen-companion-problems-text problem)))
                 problems ""))))

(provide 'qwen-companion-quote)
;;; qwen-companion-quote.el ends here
