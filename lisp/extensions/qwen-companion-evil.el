;;; qwen-companion-evil.el --- The visual selection of Evil  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Evil's visual states select more than the region between point and mark:
;; the character under the cursor, whole lines, a block.  And in buffers with
;; keys of ours these come before Evil's, whose motions stay otherwise.  This
;; file is loaded only for a buffer that uses Evil.

;;; Code:

(declare-function evil-apply-on-block "ext:evil-common"
                  (func beg end pass-columns &rest args))
(declare-function evil-change-to-initial-state "ext:evil-core"
                  (&optional buffer message) t)
(declare-function evil-initial-state "ext:evil-core" t)
(declare-function evil-make-overriding-map "ext:evil-core" (keymap &optional state copy))
(declare-function evil-set-initial-state "ext:evil-core" (mode state))
(declare-function evil-visual-range "ext:evil-states" ())
(defvar evil-state)

(defun qwen-companion-evil-region ()
  "Return Evil's visual selection as (START END EACH-LINE), or nil.
EACH-LINE is as in `qwen-companion-context-region'."
  (when (eq evil-state 'visual)
    (pcase-let ((`(,start ,end ,type) (evil-visual-range)))
      (list start end
            (and (eq type 'block) #'qwen-companion-evil--each-line)))))

(defun qwen-companion-evil--each-line (function start end)
  "Call FUNCTION with the columns of each line of the block START to END."
  (evil-apply-on-block function start end t))

(defun qwen-companion-evil-keep-keys (map)
  "Give the keys of MAP, the current major mode's, precedence over Evil's.
The buffer begins in Evil's motion state, since it is not edited, unless
the user has set another initial state for the mode."
  (unless (evil-initial-state major-mode)
    (evil-set-initial-state major-mode 'motion))
  (evil-make-overriding-map map)
  (when (bound-and-true-p evil-local-mode)
    (evil-change-to-initial-state)))

(provide 'qwen-companion-evil)
;;; qwen-companion-evil.el ends here
