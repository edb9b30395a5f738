;;; lint.el --- Checks one Emacs Lisp file  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/checkout.el -l scripts/lint.el -f lint-file FILE
;;
;; Compiles FILE, checks its `declare-function' forms, its doc strings and,
;; where FILE is part of the package, what package archives ask for.  Every
;; finding is printed as FILE:LINE: TEXT, and any finding fails.
;;
;; One Emacs for each file: what one file loads must not hide that the next
;; one lacks a `require'.

;;; Code:

(require 'bytecomp)
(require 'check-declare)
(require 'checkdoc)
(require 'jka-compr)
(require 'package)

(defvar package-lint-main-file)
(declare-function package-lint-buffer "package-lint" (&optional buffer))

;; Reading the sources of Emacs is no news.
(setq jka-compr-verbose nil)

(defconst lint--root default-directory "The root of the checkout.")

(defvar lint--failed nil "Non-nil after a finding.")

(defun lint--report (file line text)
  "Print that TEXT was found in FILE at LINE."
  (setq lint--failed t)
  (message "%s:%s: %s" (file-relative-name file lint--root) line text))

(defun lint--compile (file)
  "Compile FILE into a folder of its own; warnings are findings."
  (let* ((folder (make-temp-file "qwen-companion-lint-" t))
         (byte-compile-dest-file-function
          (lambda (source) (expand-file-name (concat (file-name-nondirectory source) "c") folder)))
         (print byte-compile-log-warning-function)
         (byte-compile-log-warning-function
          (lambda (&rest arguments)
            (setq lint--failed t)
            (apply print arguments))))
    (unwind-protect
        (unless (byte-compile-file file)
          (setq lint--failed t))
      (delete-directory folder t))))

(defun lint--declarations (file)
  "Check the `declare-function' forms of FILE."
  ;; It prints what it finds.
  (when (check-declare-file file)
    (setq lint--failed t)))

(defun lint--doc-strings (file)
  "Check the style of the doc strings and comments of FILE."
  (let ((checkdoc-autofix-flag 'never)
        (checkdoc-create-error-function
         (lambda (text start _end &optional _unfixable)
           (lint--report file (if start (line-number-at-pos start) 1) text)
           nil)))
    (with-current-buffer (find-file-noselect file)
      (save-window-excursion (checkdoc-current-buffer t)))))

(defun lint--package (file)
  "Check FILE as a part of the package."
  (require 'package-lint)
  (let ((package-lint-main-file (expand-file-name "qwen-companion.el" (file-name-directory file)))
        ;; No archive is asked: what is installed here can be installed.
        (package-archive-contents package-alist))
    (with-current-buffer (find-file-noselect file)
      (pcase-dolist (`(,line ,_column ,_type ,text) (package-lint-buffer))
        ;; package-lint 0.16 (Debian 12) is older than Emacs 28 and believes that it was never released.
        (unless (string-prefix-p "This makes the package uninstallable in all released Emacs" text)
          (lint--report file line text))))))

(defun lint-file ()
  "Check the file on the command line; exit with 1 if anything is found."
  (let ((file (expand-file-name (pop command-line-args-left)))
        (text-quoting-style 'grave))
    (lint--compile file)
    (lint--declarations file)
    (when (equal (file-name-directory file) lint--root)
      (lint--doc-strings file)
      (lint--package file))
    (kill-emacs (if lint--failed 1 0))))

;;; lint.el ends here
