;;; checkout.el --- Emacs with this checkout loaded  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; For `emacs -Q -l scripts/checkout.el': the libraries of this checkout can
;; be required, the packages they need are active, and the Python environment
;; that scripts/setup made is used.  The mode is not turned on.  Nothing of
;; the user's own configuration is read or written.

;;; Code:

(require 'package)

(defvar qwen-companion-python)

(let* ((root (file-name-directory
              (directory-file-name (file-name-directory (or load-file-name buffer-file-name)))))
       (build (expand-file-name ".build/" root))
       (python (expand-file-name "venv/bin/python" build)))
  (add-to-list 'load-path (directory-file-name root))
  ;; A library that was edited after it was compiled counts as edited.
  (setq load-prefer-newer t)
  ;; -Q leaves out the folder of Debian's Emacs packages.
  (add-to-list 'package-directory-list "/usr/share/emacs/site-lisp/elpa")
  (setq package-user-dir (expand-file-name "elpa" build)
        user-emacs-directory (expand-file-name "emacs.d/" build))
  ;; Native compilation has chosen the user's folder before it came to this.
  (when (bound-and-true-p native-comp-eln-load-path)
    (setcar native-comp-eln-load-path (expand-file-name "eln-cache/" build)))
  (package-initialize)
  (when (file-executable-p python)
    (setq-default qwen-companion-python python))
  (load (expand-file-name "qwen-companion-autoloads" root) t t)
  (unless (locate-library "epc")
    (display-warning 'qwen-companion
                     "The Emacs package epc is missing: run `make build', which gets it or says how"
                     :error)))

;;; checkout.el ends here
