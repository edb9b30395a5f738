;;; qwen-companion-embark.el --- Actions on CLIs, proposals and changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Embark acts on a CLI, a proposal or a change: on what is at point in a list of
;; ours, and on candidates of completion.  This file is loaded when Embark asks
;; what is there, or with a completion of ours after Embark has been loaded.

;;; Code:

(require 'subr-x)

(declare-function embark--ignore-target "ext:embark" (&rest _))
(defvar embark-general-map)
(defvar embark-keymap-alist)
(defvar embark-target-injection-hooks)

(defconst qwen-companion-embark--actions
  '((qwen-companion-session
     ("RET" . qwen-companion-session-list-visit)
     ("r" . qwen-companion-session-list-review)
     ("c" . qwen-companion-session-list-changes)
     ("s" . qwen-companion-session-list-prompt)
     ("t" . qwen-companion-session-list-retry)
     ("b" . qwen-companion-session-list-bring-home)
     ("k" . qwen-companion-session-list-end))
    (qwen-companion-proposal
     ("RET" . qwen-companion-diff-open)
     ("a" . qwen-companion-diff-accept)
     ("k" . qwen-companion-diff-reject))
    (qwen-companion-change
     ("RET" . qwen-companion-changes-visit)
     ("." . qwen-companion-changes-describe)
     ("k" . qwen-companion-changes-undo)
     ("u" . qwen-companion-changes-bring-back)
     ("s" . qwen-companion-changes-mark-seen)
     ("c" . qwen-companion-changes-comment)
     ("e" . qwen-companion-changes-ediff)
     ("w" . qwen-companion-changes-copy-patch)))
  "The actions on each type of target: (TYPE (KEY . COMMAND)...).")

(defun qwen-companion-embark-add-keymaps ()
  "Add our actions to those of Embark, once."
  (pcase-dolist (`(,type . ,actions) qwen-companion-embark--actions)
    (unless (assq type embark-keymap-alist)
      (push (cons type (qwen-companion-embark--keymap type actions)) embark-keymap-alist)
      (pcase-dolist (`(,_ . ,command) actions)
        (push (list command #'qwen-companion-embark--answer-no-question)
              embark-target-injection-hooks)))))

(defun qwen-companion-embark--keymap (type actions)
  "Define a keymap of ACTIONS on targets of TYPE; return its name."
  (let ((name (intern (format "qwen-companion-embark-%s-map"
                              (string-remove-prefix "qwen-companion-" (symbol-name type)))))
        (map (make-sparse-keymap)))
    (set-keymap-parent map embark-general-map)
    (pcase-dolist (`(,key . ,command) actions)
      (define-key map (kbd key) command))
    (set name map)
    name))

(defun qwen-companion-embark--answer-no-question (&rest _)
  "Let the user answer the questions of an action.
Embark would answer the first one with the name of the target, which is
wrong for a confirmation or a comment."
  (unless minibuffer-completion-table
    (embark--ignore-target)))

(provide 'qwen-companion-embark)
;;; qwen-companion-embark.el ends here
