;;; minibuffer.el --- Minibuffers within minibuffers, short answers  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq enable-recursive-minibuffers t
      use-short-answers t
      minibuffer-follows-selected-frame nil
      confirm-kill-emacs #'y-or-n-p
      resize-mini-windows nil)
(minibuffer-electric-default-mode 1)

;;; minibuffer.el ends here
