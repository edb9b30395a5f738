;;; qwen-companion-buffers.el --- Helpers for buffers and keymaps  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Small helpers that most files use.

;;; Code:

(require 'subr-x)

(defmacro qwen-companion-buffers-widened (&rest body)
  "Evaluate BODY with the current buffer widened; return its value.
Restore point and the narrowing."
  (declare (indent 0) (debug t))
  `(save-excursion
     (save-restriction
       (widen)
       ,@body)))

(defun qwen-companion-buffers-text (&optional buffer)
  "Return the whole text of BUFFER, the current one by default, widened."
  (with-current-buffer (or buffer (current-buffer))
    (save-restriction
      (widen)
      (buffer-substring-no-properties (point-min) (point-max)))))

(defun qwen-companion-buffers-set-hooks (hooks on)
  "Add HOOKS, a list of (HOOK . FUNCTION), or remove them where ON is nil."
  (pcase-dolist (`(,hook . ,function) hooks)
    (if on (add-hook hook function) (remove-hook hook function))))

(defun qwen-companion-buffers-add-hooks (hooks)
  "Add HOOKS, a list of (HOOK . FUNCTION), until the current buffer is killed."
  (qwen-companion-buffers-set-hooks hooks t)
  (add-hook 'kill-buffer-hook (lambda () (qwen-companion-buffers-set-hooks hooks nil)) nil t))

(defmacro qwen-companion-buffers-when-live (buffer &rest body)
  "Evaluate BODY in BUFFER, a symbol, and return its value; nil if BUFFER is dead."
  (declare (indent 1) (debug t))
  `(when (buffer-live-p ,buffer)
     (with-current-buffer ,buffer
       ,@body)))

(defmacro qwen-companion-buffers-without-collecting (&rest body)
  "Evaluate BODY without collecting garbage, and return its value.
For a long text Emacs would collect garbage several times, and each
collection takes as long as all the work on 64 KB."
  (declare (indent 0) (debug t))
  `(let ((gc-cons-threshold (max gc-cons-threshold 20000000)))
     ,@body))

(defmacro qwen-companion-buffers-locally (&rest body)
  "Evaluate BODY in a buffer with a local directory, and return its value.
Messages and timers come in any buffer.  In a remote one, Emacs calls the
file name handler for each file, and TRAMP signals an error in that and in
what it does for the user if it is waiting for a host."
  (declare (indent 0) (debug t))
  `(with-temp-buffer
     (setq default-directory "/")
     ,@body))

(defun qwen-companion-buffers-visiting (path)
  "Return a buffer that visits the local file PATH, or nil.
Call no file name handler: PATH may come from a program."
  (let ((file-name-handler-alist nil))
    (find-buffer-visiting path)))

(defun qwen-companion-buffers-unicode-p ()
  "Return non-nil when all characters of the current buffer are Unicode.
Raw bytes and halves of a surrogate pair are not."
  (if enable-multibyte-characters
      (save-excursion
        (goto-char (point-min))
        (skip-chars-forward "\0-\uD7FF\uE000-\U0010FFFF")
        (eobp))
    (save-excursion
      (goto-char (point-min))
      (skip-chars-forward "[:ascii:]")
      (eobp))))

(defun qwen-companion-buffers-require-mode (mode)
  "Signal a `user-error' unless the buffer is in MODE, a major or minor mode."
  (unless (or (derived-mode-p mode)
              (and (boundp mode) (symbol-value mode)))
    (user-error "This works only in buffers in `%s'" mode)))

(defun qwen-companion-buffers-in-mode (name mode)
  "Return the buffer NAME in the major MODE; create it if necessary."
  (with-current-buffer (get-buffer-create name)
    (unless (derived-mode-p mode)
      (funcall mode))
    (current-buffer)))

(defun qwen-companion-buffers-keymap (&rest keys)
  "Return a keymap of KEYS, alternately a key and its binding.
A key is a string as for `kbd', or a vector.  The key :parent sets the
parent."
  (let ((map (make-sparse-keymap)))
    (while keys
      (let ((key (pop keys)) (binding (pop keys)))
        (if (eq key :parent)
            (set-keymap-parent map binding)
          (define-key map (if (stringp key) (kbd key) key) binding))))
    map))

(defvar-local qwen-companion-buffers--margins nil
  "Alist of the columns reserved in the left margin: (OWNER . COLUMNS).")

(defvar-local qwen-companion-buffers--margin-before nil
  "The left margin without reserved columns, (LOCAL . COLUMNS).")

(defvar-local qwen-companion-buffers--margin-set nil
  "The left margin as set last, with the reserved columns.")

(defun qwen-companion-buffers-set-left-margin (owner columns)
  "Reserve COLUMNS of the left margin of the current buffer for OWNER, a symbol.
0 releases them.  When no owner is left, restore the margin, unless another
package has set it meanwhile."
  (cond
   ((null qwen-companion-buffers--margins)
    (setq qwen-companion-buffers--margin-before
          (cons (local-variable-p 'left-margin-width) (or left-margin-width 0))))
   ;; As Flymake does in a terminal, from Emacs 30 on.
   ((not (eql left-margin-width qwen-companion-buffers--margin-set))
    (setq qwen-companion-buffers--margin-before (cons t (or left-margin-width 0)))))
  (setq qwen-companion-buffers--margins
        (assq-delete-all owner qwen-companion-buffers--margins))
  (when (> columns 0)
    (push (cons owner columns) qwen-companion-buffers--margins))
  (if (or qwen-companion-buffers--margins (car qwen-companion-buffers--margin-before))
      (setq left-margin-width
            (apply #'+ (cdr qwen-companion-buffers--margin-before)
                   (mapcar #'cdr qwen-companion-buffers--margins)))
    (kill-local-variable 'left-margin-width))
  (setq qwen-companion-buffers--margin-set left-margin-width)
  (dolist (window (get-buffer-window-list nil nil t))
    (set-window-margins window (or left-margin-width 0) (cdr (window-margins window)))))

(provide 'qwen-companion-buffers)
;;; qwen-companion-buffers.el ends here
