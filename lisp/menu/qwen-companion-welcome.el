;;; qwen-companion-welcome.el --- What is on, and what it costs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A page about what the companion does by itself, what each of that costs,
;; and a key that turns it off.  It is shown once, at the first start.

;;; Code:

(require 'qwen-companion-buffers)
(require 'qwen-companion-context)
(require 'qwen-companion-environment)

(defconst qwen-companion-welcome--items
  '(("r" qwen-companion-review-edits
     "Reviews in auto: each edit in the project waits until you accept it")
    ("j" qwen-companion-journal
     "Record of changes, to undo: copies of changed files, for two weeks")
    ("t" qwen-companion-tools-offered
     "Tools for the model: up to 400 tokens in each request")
    ("p" qwen-companion-tell-problems
     "New errors after an edit: the agent waits up to 1.5 s; some 50 tokens")
    ("u" qwen-companion-tell-unsaved
     "Unsaved text, beside prompts: held up to 0.5 s; some 20 tokens a file")
    ("c" qwen-companion-tell-changes
     "What you changed, beside prompts: held up to 1 s; the diff's tokens")
    ("a" qwen-companion-show-questions
     "Plans and questions in Emacs: the terminal asks too, after 50 s"))
  "Lines of the page: (KEY OPTION TEXT), with the cost in TEXT.")

(defvar qwen-companion-welcome--due nil
  "Non-nil when the page is shown as soon as the companion runs.")

(defvar qwen-companion-welcome-mode-map
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map (make-composed-keymap button-buffer-map special-mode-map))
    (dolist (item qwen-companion-welcome--items map)
      (define-key map (car item) #'qwen-companion-welcome-toggle)))
  "Keymap of `qwen-companion-welcome-mode'.")

(define-derived-mode qwen-companion-welcome-mode special-mode "Welcome"
  "Major mode of the page that says what is on and what it costs.
See Info node `(qwen-companion)First session'."
  :interactive nil
  (setq-local revert-buffer-function #'qwen-companion-welcome--draw))

(defun qwen-companion-welcome--draw (&rest _)
  "Write the page into the current buffer."
  (let ((inhibit-read-only t)
        (line (line-number-at-pos)))
    (erase-buffer)
    (insert "What is on, and what it costs.  Each key turns one off or on, and saves that;\n"
            "CLIs that you start afterwards use it.\n")
    (pcase-dolist (`(,key ,option ,text) qwen-companion-welcome--items)
      (insert " ")
      (insert-text-button key 'action (lambda (_) (qwen-companion-welcome-toggle key))
                          'help-echo (symbol-name option))
      (insert (if (symbol-value option) " on   " " off  ") text "\n"))
    (insert " " (substitute-command-keys "\\[quit-window]")
            "  close; M-x qwen-companion-welcome shows this page again\n")
    (goto-char (point-min))
    (forward-line (1- line))))

(defun qwen-companion-welcome-toggle (key)
  "Turn off the option of KEY on the page, or restore its default value.
Save it by customize."
  (interactive (list (this-command-keys)) qwen-companion-welcome-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-welcome-mode)
  (let ((option (nth 1 (assoc key qwen-companion-welcome--items))))
    (customize-save-variable
     option (unless (symbol-value option)
              (eval (car (get option 'standard-value)) t)))
    (revert-buffer)))

(defun qwen-companion-welcome--buffer ()
  "Return the buffer with the page."
  (with-current-buffer (get-buffer-create "*qwen-companion welcome*")
    (unless (derived-mode-p 'qwen-companion-welcome-mode)
      (qwen-companion-welcome-mode))
    (revert-buffer)
    (current-buffer)))

;;;###autoload
(defun qwen-companion-welcome ()
  "Show what is on and what it costs, with a key for each to turn it off."
  (interactive)
  (pop-to-buffer (qwen-companion-welcome--buffer)))

(defun qwen-companion-welcome-note-start ()
  "Schedule the page at the first start.
Then the companion has no directory for its records."
  (setq qwen-companion-welcome--due
        (not (file-exists-p (qwen-companion-environment-records)))))

(defun qwen-companion-welcome-if-due ()
  "Show the page at the first start, in a window that is not selected.
A daemon without a frame of the user's shows it later."
  (when (and qwen-companion-welcome--due (qwen-companion-context-frame-p))
    (setq qwen-companion-welcome--due nil)
    ;; Without a record of changes, nothing else makes that directory.
    (with-file-modes #o700
      (make-directory (qwen-companion-environment-records) t))
    (display-buffer (qwen-companion-welcome--buffer)
                    '(nil (inhibit-same-window . t)))))

(provide 'qwen-companion-welcome)
;;; qwen-companion-welcome.el ends here
