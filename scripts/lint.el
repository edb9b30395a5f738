;;; lint.el --- Checks the Emacs Lisp files  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/checkout.el -l scripts/lint.el -f lint-files FILE...
;;
;; Compiles the files, checks their `declare-function' forms and, where they
;; are part of the package, their doc strings and what package archives ask
;; for.  Every finding is printed as FILE:LINE: TEXT, and any finding fails.
;;
;; Each file of the package is compiled in an Emacs of its own: what one file
;; loads must not hide that the next one lacks a `require'.  The others share
;; one: each of them is run in an Emacs of its own.

;;; Code:

;; Half of the time would go into collecting what it leaves; it ends soon.
(setq gc-cons-threshold (* 64 1024 1024))

(require 'bytecomp)

(defvar checkdoc-autofix-flag)
(defvar checkdoc-create-error-function)
(defvar jka-compr-verbose)
(defvar package-alist)
(defvar package-archive-contents)
(defvar package-lint-main-file)
(declare-function check-declare-file "check-declare" (file))
(declare-function checkdoc-current-buffer "checkdoc" (&optional take-notes))
(declare-function package-lint-buffer "package-lint" (&optional buffer))

(defconst lint--root default-directory "The root of the checkout.")

(defconst lint--library (or load-file-name buffer-file-name) "This file.")

(defvar lint--failed nil "Non-nil after a finding.")

(defun lint--report (file line text)
  "Print that TEXT was found in FILE at LINE."
  (setq lint--failed t)
  (message "%s:%s: %s" (file-relative-name file lint--root) line text))

(defun lint--compile (file)
  "Compile FILE into a folder of its own; warnings are findings."
  (let* ((folder (make-temp-file "qwen-companion-lint-" t))
         ;; What is measured and tested has files of its own that it needs.
         (load-path (cons (file-name-directory file) load-path))
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

(defun lint--start-compiling (file)
  "Compile FILE in an Emacs of its own; return its process.
It is not told of installed packages but by its `load-path': looking for them
would take longer than most files."
  (make-process
   :name "lint"
   :buffer (generate-new-buffer " *lint*")
   :connection-type 'pipe
   :noquery t
   :sentinel #'ignore
   :command (list (expand-file-name invocation-name invocation-directory) "-Q" "--batch"
                  ;; Else machine code of evil's advice goes into the user's own folder.
                  "-l" (expand-file-name "startup/subdirs" (file-name-directory lint--library))
                  "--eval" (format "(setq load-path '%S load-prefer-newer t)" load-path)
                  "-l" "qwen-companion-autoloads" "-l" lint--library "-f" "lint-compile" file)))

(defun lint-compile ()
  "Compile the file on the command line; exit with 1 if anything is found."
  (let ((text-quoting-style 'grave))
    (lint--compile (pop command-line-args-left))
    (kill-emacs (if lint--failed 1 0))))

(defun lint--compile-apart (files)
  "Compile each of FILES in an Emacs of its own, one per processor at a time."
  (let ((limit (string-to-number (shell-command-to-string "getconf _NPROCESSORS_ONLN")))
        running)
    (while (or files running)
      (while (and files (< (length running) (max 1 limit)))
        (push (lint--start-compiling (pop files)) running))
      ;; For the oldest one: only waiting for a certain process ends with it.
      (let ((process (car (last running))))
        (while (process-live-p process)
          (accept-process-output process))
        (while (accept-process-output process))
        (setq running (delq process running))
        (with-current-buffer (process-buffer process)
          (unless (zerop (process-exit-status process))
            (setq lint--failed t)
            (message "%s" (string-trim (buffer-string)))))))))

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
  (let ((package-lint-main-file (expand-file-name "qwen-companion.el" lint--root))
        ;; No archive is asked: what is installed here can be installed.
        (package-archive-contents package-alist))
    (with-current-buffer (find-file-noselect file)
      (pcase-dolist (`(,line ,_column ,_type ,text) (package-lint-buffer))
        ;; package-lint 0.16 (Debian 12) is older than Emacs 28 and believes that it was never released.
        (unless (string-prefix-p "This makes the package uninstallable in all released Emacs" text)
          (lint--report file line text))))))

(defun lint-files ()
  "Check the files on the command line; exit with 1 if anything is found."
  (dolist (library '(check-declare checkdoc jka-compr package package-lint))
    (require library))
  ;; Reading the sources of Emacs is no news.
  (setq jka-compr-verbose nil)
  (let* ((files (mapcar #'expand-file-name command-line-args-left))
         (package (seq-filter (lambda (file)
                                (or (equal (file-name-directory file) lint--root)
                                    (string-prefix-p (expand-file-name "lisp/" lint--root) file)))
                              files))
         (text-quoting-style 'grave))
    (setq command-line-args-left nil)
    (lint--compile-apart package)
    (mapc #'lint--declarations files)
    (dolist (file package)
      (lint--doc-strings file)
      (lint--package file))
    (mapc #'lint--compile (seq-difference files package))
    (kill-emacs (if lint--failed 1 0))))

;;; lint.el ends here
