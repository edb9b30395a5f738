;;; checkout.el --- Emacs with this checkout loaded  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; For `emacs -Q -l scripts/checkout.el': the libraries of this checkout can
;; be required, the packages they need are active, and the Python environment
;; that scripts/setup made is used.  The mode is not turned on.  Nothing of
;; the user's own configuration is read or written.

;;; Code:

(defvar package-directory-list)
(defvar package-user-dir)
(defvar project-list-file)
(defvar qwen-companion-python)

(let* ((scripts (file-name-directory (or load-file-name buffer-file-name)))
       (root (file-name-directory (directory-file-name scripts)))
       (build (expand-file-name ".build/" root))
       (python (expand-file-name "venv/bin/python" build)))
  (load (expand-file-name "startup/subdirs" scripts) nil t)
  ;; Emacs has chosen the user's folder for these before it came to this.
  (setq auto-save-list-file-prefix (expand-file-name "auto-save-list/.saves-" user-emacs-directory)
        abbrev-file-name (expand-file-name "abbrev_defs" user-emacs-directory)
        ;; Emacs 28 would begin its name with ~, which tests set.
        project-list-file (expand-file-name "projects" user-emacs-directory))

  (require 'package)
  (setq package-user-dir (expand-file-name "elpa" build))
  ;; -Q leaves out the folder of Debian's Emacs packages.  Another Emacs may have it beside itself, see other-emacs.
  (let ((own (expand-file-name "../share/emacs/site-lisp/elpa" invocation-directory)))
    (add-to-list 'package-directory-list
                 (if (file-directory-p own) own "/usr/share/emacs/site-lisp/elpa")))
  (package-initialize)
  (unless (locate-library "epc")
    (display-warning 'qwen-companion
                     "The Emacs package epc is missing: run `make build', which gets it or says how"
                     :error))

  (add-to-list 'load-path (directory-file-name root))
  ;; A library that was edited after it was compiled counts as edited.
  (setq load-prefer-newer t)
  (load (expand-file-name "qwen-companion-autoloads" root) t t)
  (when (file-executable-p python)
    (setq-default qwen-companion-python python)))

;;; checkout.el ends here
