;;; reuse.el --- Make an Emacs as it was when it started  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded into the Emacs of end-to-end tests that share one (see stage.py).
;; `reuse-reset' closes what a test has opened; `reuse-visit' shows files as
;; Emacs does when they are named on its command line.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)

(defvar reuse--values nil
  "Alist of variables and the values that `reuse-reset' restores.")

(defun reuse--option-p (symbol)
  "Return non-nil if SYMBOL is an option of the companion."
  (and (string-prefix-p "qwen-companion-" (symbol-name symbol))
       (custom-variable-p symbol)
       ;; A minor mode is none, but the approval mode is.
       (not (commandp symbol))))

(defun reuse-remember ()
  "Let `reuse-reset' restore what has been set by now.
Options that have not are given their standard values by it."
  (mapatoms
   (lambda (symbol)
     (when (and (boundp symbol)
                (or (string-prefix-p "qwen-companion-python" (symbol-name symbol))
                    (memq symbol '(display-buffer-alist window-min-height
                                   qwen-companion-remote-places
                                   qwen-companion-qwen-command))))
       (setf (alist-get symbol reuse--values) (default-value symbol))))))

(defun reuse--restore-options ()
  "Give all options the values they had when Emacs had started."
  (mapatoms
   (lambda (symbol)
     (when (and (reuse--option-p symbol) (not (assq symbol reuse--values)))
       (set-default symbol (eval (car (get symbol 'standard-value)) t)))))
  (pcase-dolist (`(,symbol . ,value) reuse--values)
    (set-default symbol value)))

(defun reuse--keep-p (buffer cli)
  "Return non-nil if BUFFER is one of Emacs's own, or the one named CLI."
  (let ((name (buffer-name buffer)))
    (or (string-prefix-p " " name)
        ;; A connection to another place.
        (string-prefix-p "*tramp/" name)
        (member name (list cli "*Messages*" "*scratch*" "*qwen-companion log*")))))

(defun reuse-reset (cli)
  "Close all files, windows and buffers but the terminal named CLI.
Return non-nil when everything is as at the start."
  (unless (or (active-minibuffer-window) (qwen-companion-proposals)
              (cdr (frame-list)))
    (delete-other-windows)
    (switch-to-buffer "*scratch*")
    ;; Else this window is taken again for what was shown in it.
    (set-window-prev-buffers nil nil)
    (set-window-next-buffers nil nil)
    ;; What nobody will write any more would be shown as not written, and be a
    ;; part of what the next accepted texts are expected to be.
    (qwen-companion-proposal-end-all)
    (qwen-companion-disk-forget-all)
    (dolist (buffer (buffer-list))
      ;; Some end with others.
      (unless (or (not (buffer-live-p buffer)) (reuse--keep-p buffer cli))
        (with-current-buffer buffer
          (set-buffer-modified-p nil)
          (let (kill-buffer-query-functions)
            (kill-buffer buffer)))))
    (reuse--restore-options)
    (with-current-buffer "*scratch*"
      (erase-buffer)
      (set-buffer-modified-p nil))
    (with-current-buffer "*Messages*"
      (let ((inhibit-read-only t))
        (erase-buffer)))
    (message nil)
    (null (cl-remove-if (lambda (buffer) (reuse--keep-p buffer cli)) (buffer-list)))))

(defun reuse-visit (files)
  "Visit FILES, each as if the user looked at it, and show the last two.
The windows are those that `command-line-1' makes."
  (let (buffers)
    (dolist (file files)
      (find-file file)
      (push (current-buffer) buffers)
      ;; It runs the hooks of windows.
      (redisplay t))
    (when (cdr buffers)
      (switch-to-buffer-other-window (cadr buffers))
      (other-window -1))))

(provide 'reuse)
;;; reuse.el ends here
