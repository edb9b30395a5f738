;;; qwen-companion-terminal-vterm.el --- CLIs in vterm  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The terminal emulator vterm, a package with a compiled module.  It is
;; required when a CLI is started in it.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function vterm-mode "ext:vterm" ())
(declare-function vterm-send-return "ext:vterm" ())
(declare-function vterm-send-string "ext:vterm" (string &optional paste-p))
(defvar vterm-kill-buffer-on-exit)
(defvar vterm-shell)

(cl-defmethod qwen-companion-terminal-start ((_kind (eql vterm)) buffer command)
  "Run COMMAND in vterm in BUFFER."
  (require 'vterm)
  (let ((vterm-shell (mapconcat #'shell-quote-argument command " ")))
    (qwen-companion-terminal-show buffer)
    (pcase-let ((`(,left . ,right) (window-margins)))
      (unless (display-graphic-p)
        ;; vterm starts its program one column wider than what a text
        ;; terminal shows: it forgets the column of the continuation sign.
        (set-window-margins nil left (1+ (or right 0))))
      (vterm-mode)
      (set-window-margins nil left right))
    (add-function :around (process-sentinel (get-buffer-process buffer))
                  #'qwen-companion-terminal-vterm--ended)))

(defun qwen-companion-terminal-vterm--ended (sentinel process event)
  "Run vterm's SENTINEL with PROCESS and EVENT.
Keep the buffer of a CLI that has failed, so that its output is readable."
  (let ((vterm-kill-buffer-on-exit
         (and vterm-kill-buffer-on-exit
              (eql 0 (process-exit-status process)))))
    (funcall sentinel process event)))

(cl-defmethod qwen-companion-terminal-paste ((_kind (eql vterm)) text)
  "Paste TEXT into the vterm of the current buffer."
  (vterm-send-string text t))

(cl-defmethod qwen-companion-terminal-return ((_kind (eql vterm)))
  "Press return in the vterm of the current buffer."
  (vterm-send-return))

(provide 'qwen-companion-terminal-vterm)
;;; qwen-companion-terminal-vterm.el ends here
