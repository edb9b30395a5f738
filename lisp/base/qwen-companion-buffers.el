;;; qwen-companion-buffers.el --- The whole of a buffer, live buffers, keymaps, lists  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Forms that recur wherever buffers are worked with.

;;; Code:

(require 'seq)
(require 'subr-x)

(defvar tabulated-list-format)
(declare-function tabulated-list-print-entry "tabulated-list" (id cols))

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

(defun qwen-companion-buffers-visiting (path)
  "Return a buffer that visits the file PATH of this machine, or nil.
No handler of file names is asked, as for names that others have written."
  (let ((file-name-handler-alist nil))
    (find-buffer-visiting path)))

(defun qwen-companion-buffers-unicode-p ()
  "Return non-nil when all characters of the current buffer are Unicode.
Neither the bytes of another encoding nor halves of a surrogate pair are."
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
  "Signal a `user-error' unless MODE, major or minor, is that of this buffer."
  (unless (or (derived-mode-p mode)
              (and (boundp mode) (symbol-value mode)))
    (user-error "This works in buffers with `%s' only" mode)))

(defun qwen-companion-buffers-in-mode (name mode)
  "Return the buffer NAME, made if need be, in the major MODE."
  (with-current-buffer (get-buffer-create name)
    (unless (derived-mode-p mode)
      (funcall mode))
    (current-buffer)))

(defun qwen-companion-buffers-print-entry (id columns number)
  "Print the entry ID with COLUMNS of a list.
Where the text of column NUMBER, from 0, is too long, print the end of it.
COLUMNS that the list has no room for come in a second line."
  (let* ((text (aref columns number))
         (width (string-width text))
         (excess (- width (cadr (aref tabulated-list-format number)))))
    (when (> excess 0)
      (setq columns (copy-sequence columns))
      (aset columns number
            (propertize (concat "…" (truncate-string-to-width text width (1+ excess)))
                        'help-echo text)))
    (tabulated-list-print-entry id (qwen-companion-buffers--fold columns))))

(defun qwen-companion-buffers--fold (columns)
  "Return COLUMNS; those without room go into a second line of the last one."
  (let* ((count (length tabulated-list-format))
         (rest (delete "" (append (seq-subseq columns count) nil))))
    (if (= count (length columns))
        columns
      (setq columns (seq-subseq columns 0 count))
      (aset columns (1- count)
            (concat (string-pad (aref columns (1- count))
                                (cadr (aref tabulated-list-format (1- count))) nil t)
                    (and rest (concat "\n    " (string-join rest "  ")))))
      columns)))

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
  "Columns of the left margin that are in use: (OWNER . COLUMNS).")

(defvar-local qwen-companion-buffers--margin-before nil
  "The left margin without those, (LOCAL . COLUMNS).")

(defvar-local qwen-companion-buffers--margin-set nil
  "The left margin that was set last, with those.")

(defun qwen-companion-buffers-set-left-margin (owner columns)
  "Give OWNER, a symbol, COLUMNS of the left margin of the current buffer.
With 0, take them back; once nobody has any, the margin is as it was, or as
another package has set it meanwhile."
  (cond
   ((null qwen-companion-buffers--margins)
    (setq qwen-companion-buffers--margin-before
          (cons (local-variable-p 'left-margin-width) (or left-margin-width 0))))
   ;; Flymake does in a terminal, from Emacs 30 on.
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
