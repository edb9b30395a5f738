;;; compile.el --- Compile this checkout and collect its autoloads  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/checkout.el -l scripts/compile.el -f compile-checkout FILE...
;;
;; Warnings are shown and do not fail: that is what `make lint' is for.

;;; Code:

;; It ends before what it leaves matters.
(setq gc-cons-threshold (* 64 1024 1024))

(require 'package)

(defun compile-checkout ()
  "Compile the files named on the command line; exit with 1 where that fails."
  (let ((inhibit-message t))
    (package-generate-autoloads "qwen-companion" default-directory))
  ;; A file that has got another folder would else be found in the old one too.
  (dolist (compiled (append (file-expand-wildcards "*.elc") (file-expand-wildcards "lisp/*/*.elc")))
    (unless (file-exists-p (substring compiled 0 -1))
      (delete-file compiled)))
  (let ((failed nil))
    (dolist (file command-line-args-left)
      (unless (byte-compile-file file)
        (setq failed t)))
    (kill-emacs (if failed 1 0))))

;;; compile.el ends here
