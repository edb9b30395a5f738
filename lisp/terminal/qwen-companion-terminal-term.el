;;; qwen-companion-terminal-term.el --- CLIs in term  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The terminal emulator that is part of Emacs.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function term-char-mode "term" ())
(declare-function term-exec "term" (buffer name command startfile switches))
(declare-function term-mode "term" ())

(cl-defmethod qwen-companion-terminal-start ((_kind (eql term)) buffer command)
  "Run COMMAND in `term-mode' in BUFFER."
  (require 'term)
  (qwen-companion-terminal-show buffer)
  (term-mode)
  (term-exec buffer (buffer-name buffer) (car command) nil (cdr command))
  (term-char-mode))

(provide 'qwen-companion-terminal-term)
;;; qwen-companion-terminal-term.el ends here
