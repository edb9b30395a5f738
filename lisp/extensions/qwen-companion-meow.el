;;; qwen-companion-meow.el --- The motion state of Meow  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:


;;; Commentary:

;; Meow is on in all buffers in its state for editing, and goes to another one
;; by a hook of major modes, which does not run in buffers that keep global
;; modes away.  In buffers with keys of ours it begins in its motion state: that
;; has few keys, which the user chooses, and leaves the others to the mode.  This
;; file is loaded only for a buffer that uses Meow.

;;; Code:

(declare-function meow-mode "ext:meow-core" (&optional arg) t)
(defvar meow-global-mode)
(defvar meow-mode-state-list)

(defun qwen-companion-meow-keep-keys ()
  "Have the current buffer, and all of its major mode, begin in the motion state.
A state that the user has chosen for the mode stays."
  (unless (assq major-mode meow-mode-state-list)
    (push (cons major-mode 'motion) meow-mode-state-list))
  (when meow-global-mode
    (meow-mode 1)))

(provide 'qwen-companion-meow)
;;; qwen-companion-meow.el ends here
