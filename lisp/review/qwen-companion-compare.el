;;; qwen-companion-compare.el --- Compare texts with diff(1) or Ediff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; diff(1) compares texts in a process of its own; Emacs only writes the
;; texts to files.  Callers count its output or show it in a buffer in which
;; the text, which is untrusted, has no effect.
;;
;; Ediff compares where the user is to choose.  A guard cleans up after it
;; when it cannot compare.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-disk)
(require 'qwen-companion-programs)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(defvar diff-font-lock-syntax)
(defvar ediff-after-quit-hook-internal)
(defvar ediff-mode-hook)
(defvar ediff-session-registry)
(defvar diff-font-lock-prettify)
(declare-function ediff-buffers "ediff" (buffer-a buffer-b &optional startup-hooks job-name))

(defun qwen-companion-compare-run (old new labels callback)
  "Compare OLD with NEW by diff(1); return the process.
Each of these is a text, or (FILE) for the contents of FILE, which may be
missing.  LABELS are two words for them.  Call CALLBACK with the output."
  (let* ((written nil)
         (name (lambda (side)
                 (cond ((stringp side)
                        (push (qwen-companion-spool-write side 'utf-8-emacs-unix)
                              written)
                        (car written))
                       ((file-exists-p (car side)) (car side))
                       (t null-device))))
         (output nil)
         (clean (lambda () (mapc #'delete-file written))))
    (condition-case err
        (qwen-companion-programs-start
         :name "qwen-companion-diff"
         :command (list "env" "LC_ALL=C" "diff" "-a" "-u"
                        "--label" (car labels) "--label" (cadr labels)
                        "--" (funcall name old) (funcall name new))
         :connection-type 'pipe
         :coding 'utf-8-emacs-unix
         :noquery t
         :filter (lambda (_process text) (push text output))
         :sentinel (lambda (process _event)
                     (unless (process-live-p process)
                       (funcall clean)
                       (funcall callback
                                (mapconcat #'identity (nreverse output) "")))))
      (error (funcall clean)
             (signal (car err) (cdr err))))))

(defun qwen-companion-compare-with-disk (text path callback)
  "Compare TEXT, with LF line ends, with the file PATH.
Call CALLBACK with a buffer that shows the differences, or with nil if
there are none."
  (qwen-companion-compare-run
   text
   (with-temp-buffer
     (qwen-companion-disk-insert path (qwen-companion-disk-named-coding path))
     (buffer-string))
   '("accepted" "on disk")
   (lambda (output)
     (funcall callback (unless (string-empty-p output)
                         (qwen-companion-compare-make-buffer path output))))))

(defun qwen-companion-compare-make-buffer (path output)
  "Return a buffer with OUTPUT of diff(1) about the file PATH."
  (let ((buffer (get-buffer-create
                 (format "*qwen-companion difference: %s*"
                         (file-name-nondirectory (qwen-companion-untrusted-path path))))))
    (with-current-buffer buffer
      (let ((inhibit-read-only t))
        (erase-buffer)
        (insert output))
      (qwen-companion-untrusted-without-hooks
       (lambda ()
         (diff-mode)
         ;; It would run major modes on the untrusted text, and search for the file.
         (setq-local diff-font-lock-syntax nil
                     diff-font-lock-prettify nil)
         (font-lock-mode 1)))
      (qwen-companion-untrusted-show-hidden)
      (goto-char (point-min))
      (set-buffer-modified-p nil)
      (setq buffer-read-only t))
    buffer))

;;; Ediff

(defvar-local qwen-companion-compare--directory nil
  "Directory of the files of the Ediff session whose control panel this is.
Ediff writes to some of them again and again until the session ends.")

(defconst qwen-companion-compare--exact
  '((ediff-diff-options . "")
    (ediff-diff3-options . "")
    (ediff-actual-diff-options . "")
    (ediff-actual-diff3-options . "")
    (ediff-ignore-case . nil)
    (ediff-ignore-similar-regions . nil)
    (ediff-skip-diff-region-function . ediff-show-all-diffs))
  "Values of Ediff's variables that make it show every difference.
With the user's own values, the accepted text could differ from the one shown.")

(defun qwen-companion-compare-with-ediff (buffers function &optional control)
  "Call FUNCTION, which has Ediff compare the texts of BUFFERS, exactly.
If Ediff fails, delete its buffers and files and signal its error; the
caller restores the windows.  CONTROL non-nil is the control panel of a
session that compared the texts before; it is deleted as well then."
  (mapc #'qwen-companion-compare--check-text buffers)
  (let* ((directory (if control
                        (buffer-local-value 'qwen-companion-compare--directory control)
                      (file-name-as-directory
                       (make-temp-file "qwen-companion-ediff-" t))))
         (ediff-mode-hook (cons (lambda ()
                                  (qwen-companion-compare--adopt-directory directory)
                                  (pcase-dolist (`(,variable . ,value) qwen-companion-compare--exact)
                                    (set (make-local-variable variable) value)))
                                ediff-mode-hook))
         (temporary-file-directory directory)
         ;; Ediff writes six files; Emacs would wait for the disk with each.
         (write-region-inhibit-fsync t)
         ;; Ediff goes to each difference by its line: with that cache Emacs
         ;; notes each newline on the way, which takes ten times as long.
         (cache-long-scans nil)
         ;; Its progress reports would replace earlier messages.
         (inhibit-message t)
         (message-log-max nil)
         (before (delq control (buffer-list))))
    (condition-case err
        (funcall function)
      (error
       (dolist (buffer (buffer-list))
         (when (and (not (memq buffer before))
                    (string-match-p "\\`\\*[Ee]diff" (buffer-name buffer)))
           (with-current-buffer buffer
             ;; It would end a session that does not exist.
             (kill-local-variable 'kill-buffer-hook))
           (setq ediff-session-registry (delq buffer ediff-session-registry))
           (kill-buffer buffer)))
       (delete-directory directory t)
       (signal (car err) (cdr err))))))

(defun qwen-companion-compare-side (path kind text)
  "Return a new read-only buffer with TEXT, the side KIND of a change of PATH."
  (with-current-buffer (generate-new-buffer
                        (format "*qwen-companion %s: %s*" kind
                                (qwen-companion-untrusted-text (file-name-nondirectory path))))
    (insert text)
    (goto-char (point-min))
    (let ((file-name-handler-alist nil))
      (qwen-companion-untrusted-set-major-mode path))
    (set-buffer-modified-p nil)
    (setq buffer-read-only t)
    (current-buffer)))

(defun qwen-companion-compare-sides (left right own)
  "Compare the buffers LEFT and RIGHT in Ediff.
Quitting Ediff kills the buffers OWN and restores the windows.  If Ediff
fails, do the same and signal its error."
  (require 'ediff)
  (let* ((windows (current-window-configuration))
         (clean (lambda ()
                  (mapc #'kill-buffer (cl-remove-if-not #'buffer-live-p own))
                  (set-window-configuration windows))))
    (condition-case err
        (qwen-companion-compare-with-ediff
         (list left right)
         (lambda ()
           (ediff-buffers
            left right
            (list (lambda ()
                    (add-hook 'ediff-after-quit-hook-internal clean nil t))))))
      (error
       (funcall clean)
       (signal (car err) (cdr err))))))

(defun qwen-companion-compare--check-text (buffer)
  "Signal a `user-error' if diff(1) would treat the text of BUFFER as binary."
  (with-current-buffer buffer
    (qwen-companion-buffers-widened
      (goto-char (point-min))
      ;; Four times as fast as `search-forward'.
      (when (re-search-forward "[\0]" nil t)
        (user-error "Cannot compare a binary text (it contains NUL characters)")))))

(defun qwen-companion-compare--adopt-directory (directory)
  "Delete DIRECTORY, which has the files of this control panel, when it is killed."
  (setq qwen-companion-compare--directory directory)
  (setq-local temporary-file-directory directory)
  (add-hook 'kill-buffer-hook
            (lambda ()
              (when (file-directory-p directory)
                (delete-directory directory t)))
            nil t))

(provide 'qwen-companion-compare)
;;; qwen-companion-compare.el ends here
