;;; reuse.el --- Make an Emacs as it was when it started  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded into the Emacs of end-to-end tests that share one (see stage.py).
;; `reuse-reset' closes what a test has opened; `reuse-visit' shows files as
;; Emacs does when they are named on its command line.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)

(defvar reuse--variables nil
  "Alist of variables that `reuse-reset' sets, and their values.")

(defun reuse-remember ()
  "Let `reuse-reset' restore the values that options have now."
  (mapatoms
   (lambda (symbol)
     (when (or (and (string-prefix-p "qwen-companion-" (symbol-name symbol))
                    (custom-variable-p symbol)
                    (not (string-suffix-p "-mode" (symbol-name symbol)))
                    (default-boundp symbol))
               (memq symbol '(display-buffer-alist window-min-height)))
       (setf (alist-get symbol reuse--variables) (default-value symbol))))))

(defun reuse--keep-p (buffer cli)
  "Return non-nil if BUFFER is one of Emacs's own, or the one named CLI."
  (let ((name (buffer-name buffer)))
    (or (string-prefix-p " " name)
        (member name (list cli "*Messages*" "*scratch*" "*qwen-companion log*")))))

(defun reuse-reset (cli)
  "Close all files, windows and buffers but the terminal named CLI.
Return non-nil when everything is as at the start."
  (unless (or (active-minibuffer-window) (qwen-companion-diff-proposals)
              (cdr (frame-list)))
    (delete-other-windows)
    (switch-to-buffer "*scratch*")
    ;; Else this window is taken again for what was shown in it.
    (set-window-prev-buffers nil nil)
    (set-window-next-buffers nil nil)
    (dolist (buffer (buffer-list))
      (unless (reuse--keep-p buffer cli)
        (with-current-buffer buffer
          (set-buffer-modified-p nil)
          (let (kill-buffer-query-functions)
            (kill-buffer buffer)))))
    (pcase-dolist (`(,symbol . ,value) reuse--variables)
      (set-default symbol value))
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
