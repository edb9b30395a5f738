;;; subdirs.el --- Keep out of the user's own Emacs folder  -*- lexical-binding: t; no-byte-compile: t -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; scripts/checkout.el loads this, but in a terminal that is too late: Emacs
;; 28 and later have then loaded, and begun to compile natively, a library
;; for that terminal.  Before that, Emacs loads the file subdirs.el of each
;; directory in EMACSLOADPATH, and -Q does not keep it from that.  So an Emacs
;; for a person is started with
;;
;;   EMACSLOADPATH="scripts/startup:$EMACSLOADPATH" emacs -Q -l scripts/checkout.el
;;
;; (what follows the colon, nothing as a rule, stands for Emacs's own path).

;;; Code:

(defvar native-comp-async-report-warnings-errors)
(defvar native-comp-deferred-compilation)
(defvar native-comp-eln-load-path)
(defvar native-comp-jit-compilation)

(let* ((here (file-name-directory load-file-name))
       (build (expand-file-name "../../.build/" here))
       (path (getenv "EMACSLOADPATH"))
       (own (concat (directory-file-name here) path-separator)))
  (setq user-emacs-directory (expand-file-name "emacs.d/" build)
        ;; Warnings about libraries of others, in a window that nobody asked for.
        native-comp-async-report-warnings-errors 'silent
        ;; A new checkout would keep both processors busy with Emacs's own libraries while somebody has a first look.
        ;; The second name is that since Emacs 29.
        native-comp-deferred-compilation nil
        native-comp-jit-compilation nil)
  (when (bound-and-true-p native-comp-eln-load-path)
    (setcar native-comp-eln-load-path (expand-file-name "eln-cache/" build)))
  ;; An Emacs that is started from this one is none of ours.
  (when (and path (string-prefix-p own path))
    (setq load-path (delete (directory-file-name here) load-path))
    (setenv "EMACSLOADPATH" (and (not (equal path own)) (substring path (length own))))))

;;; subdirs.el ends here
