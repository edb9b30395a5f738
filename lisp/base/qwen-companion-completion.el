;;; qwen-companion-completion.el --- Completion tables with categories  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Completion tables with a category, by which packages such as Embark and
;; Marginalia choose actions and annotations; the manual lists the categories.
;; In our lists, Embark finds the target at point as well.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(autoload 'qwen-companion-embark-add-keymaps "qwen-companion-embark")
(defvar embark-target-finders)

(defun qwen-companion-completion-offer-targets (function)
  "Offer Embark the targets of FUNCTION at point in the current buffer.
Call this in a mode's body.  FUNCTION is called without arguments and
returns a list of targets (TYPE NAME START . END), where TYPE is a
completion category and NAME a candidate of it."
  ;; Embark may be loaded later: `add-hook' would hide its own finders.
  (setq-local embark-target-finders
              (list (lambda ()
                      (qwen-companion-embark-add-keymaps)
                      (funcall function))
                    t)))

(defun qwen-companion-completion-table (choices category &optional annotate)
  "Return a completion table of CHOICES, in their order.
CHOICES is a list of names, an alist (NAME . VALUE), or a function that
returns either.  CATEGORY is the completion category, a symbol or nil.
ANNOTATE, called with a VALUE, returns an annotation string or nil."
  (when (featurep 'embark)
    (qwen-companion-embark-add-keymaps))
  (lambda (string predicate action)
    (let ((choices (if (functionp choices) (funcall choices) choices)))
      (if (eq action 'metadata)
          `(metadata
            (category . ,category)
            (display-sort-function . ,#'identity)
            (cycle-sort-function . ,#'identity)
            ,@(when annotate
                (let ((width (apply #'max 0 (mapcar (lambda (choice) (string-width (car choice)))
                                                    choices))))
                  `((annotation-function
                     . ,(lambda (name)
                          (when-let* ((choice (assoc name choices))
                                      (text (funcall annotate (cdr choice))))
                            (concat (make-string (- (+ width 2) (string-width name)) ?\s)
                                    text))))))))
        (complete-with-action action choices string predicate)))))

(defun qwen-companion-completion-distinct (choices)
  "Return CHOICES, an alist (NAME . VALUE), with unique names.
Number repeated names."
  (let ((counts (make-hash-table :test #'equal)))
    (mapcar (pcase-lambda (`(,name . ,value))
              (let ((unique name))
                (while (gethash unique counts)
                  (setq unique (format "%s <%d>" name (cl-incf (gethash name counts)))))
                (puthash unique 1 counts)
                (cons unique value)))
            choices)))

(defun qwen-companion-completion-read (prompt choices category &optional annotate)
  "Read the name of one of CHOICES with PROMPT; return its value.
CHOICES is an alist (NAME . VALUE), CATEGORY and ANNOTATE are as for
`qwen-companion-completion-table'."
  (cdr (assoc (completing-read
               prompt (qwen-companion-completion-table choices category annotate) nil t)
              choices)))

(defvar qwen-companion-completion--words-map
  (let ((map (make-sparse-keymap)))
    (define-key map " " #'self-insert-command)
    (define-key map "?" #'self-insert-command)
    map)
  "Keymap in which SPC and ? insert themselves instead of completing.")

(defun qwen-companion-completion-read-words (read wanted-p)
  "Call READ to read from the minibuffer, and return its value.
SPC and ? insert themselves there.  If the function WANTED-P returns nil
afterwards, even after a quit, copy the input and signal a `user-error'."
  (let ((typed "")
        (quitted nil))
    ;; The current buffer may be killed meanwhile.
    (with-temp-buffer
      (minibuffer-with-setup-hook
          (lambda ()
            (use-local-map
             (make-composed-keymap qwen-companion-completion--words-map (current-local-map)))
            (add-hook 'minibuffer-exit-hook
                      (lambda () (setq typed (minibuffer-contents-no-properties)))
                      nil t))
        (condition-case nil
            (setq typed (funcall read))
          (quit (setq quitted t)))))
    (cond ((not (funcall wanted-p))
           (unless (string-blank-p typed)
             (kill-new typed))
           (user-error "The request ended before you answered%s"
                       (if (string-blank-p typed) "" "; your text is in the kill ring")))
          (quitted (signal 'quit nil))
          (t typed))))

(provide 'qwen-companion-completion)
;;; qwen-companion-completion.el ends here
