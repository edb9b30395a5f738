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

(defconst qwen-companion-embark--modes
  '((qwen-companion-session . qwen-companion-sessions-mode)
    (qwen-companion-proposal . qwen-companion-diffs-mode)
    (qwen-companion-change . qwen-companion-changes-mode))
  "The types of targets, each with the mode whose keys are its actions.")

(defun qwen-companion-embark-add-keymaps ()
  "Add our actions to those of Embark, once."
  (pcase-dolist (`(,type . ,mode) qwen-companion-embark--modes)
    (when-let* (((not (assq type embark-keymap-alist)))
                ;; There are none before the mode is loaded.
                (actions (get mode 'qwen-companion-header-actions)))
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
