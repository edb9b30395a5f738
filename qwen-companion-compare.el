;;; qwen-companion-compare.el --- Texts compared by diff(1)  -*- lexical-binding: t; -*-

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

;; diff(1) compares while Emacs goes on; Emacs only writes the texts down
;; for it.  What it finds is counted by its caller, or shown in a buffer
;; that the text, which may be hostile, can do nothing in.  Ediff compares
;; where the user is to choose; what it cannot compare is an error here.

;;; Code:

(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-disk)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(defvar diff-font-lock-syntax)
(defvar ediff-session-registry)
(defvar diff-font-lock-prettify)

(defun qwen-companion-compare-run (old new script callback)
  "Let SCRIPT, for sh(1), compare OLD with NEW; return the process.
Each of them is a text, or (FILE) for what is in FILE, which need not be
there; SCRIPT gets their names as $1 and $2.  CALLBACK is called with
what it has printed."
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
        (make-process
         :name "qwen-companion-diff"
         :command (list "sh" "-c" script "sh" (funcall name old) (funcall name new))
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

(defconst qwen-companion-compare--script
  "LC_ALL=C diff -a -u --label accepted --label 'on disk' -- \"$1\" \"$2\""
  "What compares a text that was accepted with what is on disk.")

(defun qwen-companion-compare-with-disk (text path callback)
  "Show in a buffer how the file PATH differs from TEXT, with LF line ends.
CALLBACK is called with that buffer, or with nil when they are the same."
  (qwen-companion-compare-run
   text
   (with-temp-buffer
     (qwen-companion-disk-insert path (qwen-companion-disk-named-coding path))
     (buffer-string))
   qwen-companion-compare--script
   (lambda (output)
     (funcall callback (unless (string-empty-p output)
                         (qwen-companion-compare-make-buffer path output))))))

(defun qwen-companion-compare-make-buffer (path output)
  "Return a buffer with OUTPUT of diff, which is about the file PATH."
  (let ((buffer (get-buffer-create
                 (format "*qwen-companion difference: %s*"
                         (file-name-nondirectory (qwen-companion-untrusted-path path)))))
        (enable-local-variables nil))
    (with-current-buffer buffer
      (let ((inhibit-read-only t))
        (erase-buffer)
        (insert output))
      (setq-local change-major-mode-hook nil)
      (delay-mode-hooks (diff-mode))
      (kill-local-variable 'delayed-mode-hooks)
      ;; It would let major modes at the text, and look for the file.
      (setq-local diff-font-lock-syntax nil
                  diff-font-lock-prettify nil)
      (font-lock-mode 1)
      (qwen-companion-untrusted-show-bidi-controls)
      (goto-char (point-min))
      (set-buffer-modified-p nil)
      (setq buffer-read-only t))
    buffer))

;;; Ediff

(defun qwen-companion-compare-with-ediff (buffers function &optional control)
  "Let FUNCTION have Ediff compare the texts of BUFFERS.
If Ediff cannot do that, signal its error, and leave no buffer or file of
Ediff's.  CONTROL, if it is non-nil, is the control panel of an Ediff
session in which they were compared before, and goes then too.  The
windows are for the caller to bring back."
  (dolist (buffer buffers)
    (with-current-buffer buffer
      (save-excursion
        (save-restriction
          (widen)
          (goto-char (point-min))
          (when (search-forward "\0" nil t)
            (user-error "A text with NUL characters is binary for diff"))))))
  (let* ((directory (make-temp-file "qwen-companion-ediff-" t))
         (temporary-file-directory (file-name-as-directory directory))
         (before (delq control (buffer-list))))
    (unwind-protect
        (condition-case err
            (funcall function)
          (error
           (dolist (buffer (buffer-list))
             (when (and (not (memq buffer before))
                        (string-match-p "\\`\\*[Ee]diff" (buffer-name buffer)))
               (with-current-buffer buffer
                 ;; There is no session that they could end.
                 (kill-local-variable 'kill-buffer-hook))
               (setq ediff-session-registry (delq buffer ediff-session-registry))
               (kill-buffer buffer)))
           (signal (car err) (cdr err))))
      (delete-directory directory t))))

(provide 'qwen-companion-compare)
;;; qwen-companion-compare.el ends here
