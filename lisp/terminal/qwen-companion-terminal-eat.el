;;; qwen-companion-terminal-eat.el --- CLIs in Eat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The terminal emulator Eat, a package in Emacs Lisp.  It is required when a
;; CLI is started in it.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function eat-exec "ext:eat" (buffer name command startfile switches))
(declare-function eat-mode "ext:eat" ())
(declare-function eat-term-send-string "ext:eat" (terminal string))
(declare-function eat-term-send-string-as-yank "ext:eat" (terminal args))
(defvar eat-terminal)

(cl-defmethod qwen-companion-terminal-start ((_kind (eql eat)) buffer command)
  "Run COMMAND in Eat in BUFFER."
  (require 'eat)
  (qwen-companion-terminal-show buffer)
  (eat-mode)
  (eat-exec buffer (buffer-name buffer) (car command) nil (cdr command)))

(cl-defmethod qwen-companion-terminal-paste ((_kind (eql eat)) text)
  "Paste TEXT into the Eat terminal of the current buffer."
  (eat-term-send-string-as-yank eat-terminal (list text)))

(cl-defmethod qwen-companion-terminal-return ((_kind (eql eat)))
  "Press return in the Eat terminal of the current buffer."
  (eat-term-send-string eat-terminal "\r"))

(provide 'qwen-companion-terminal-eat)
;;; qwen-companion-terminal-eat.el ends here
