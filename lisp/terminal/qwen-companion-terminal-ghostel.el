;;; qwen-companion-terminal-ghostel.el --- CLIs in Ghostel  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The terminal emulator Ghostel, a package with a compiled module.  It is
;; required when a CLI is started in it.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function ghostel-exec "ext:ghostel" (buffer program &optional args identity))
(declare-function ghostel-mode "ext:ghostel" ())
(declare-function ghostel-paste-string "ext:ghostel" (string))
(declare-function ghostel-send-string "ext:ghostel" (string))
(defvar ghostel-buffer-name-function)
(defvar ghostel-use-native-pty)

(cl-defmethod qwen-companion-terminal-start ((_kind (eql ghostel)) buffer command)
  "Run COMMAND in Ghostel in BUFFER."
  (require 'ghostel)
  (qwen-companion-terminal-show buffer)
  (ghostel-mode)
  ;; The buffer keeps its name.
  (setq-local ghostel-buffer-name-function nil)
  ;; A process of Emacs: of another, Emacs does not tell its CLI's id, by which
  ;; a session finds its terminal.
  (let ((ghostel-use-native-pty nil))
    (ghostel-exec buffer (car command) (cdr command))))

(cl-defmethod qwen-companion-terminal-paste ((_kind (eql ghostel)) text)
  "Paste TEXT into the Ghostel terminal of the current buffer."
  (ghostel-paste-string text))

(cl-defmethod qwen-companion-terminal-return ((_kind (eql ghostel)))
  "Press return in the Ghostel terminal of the current buffer."
  (ghostel-send-string "\r"))

(provide 'qwen-companion-terminal-ghostel)
;;; qwen-companion-terminal-ghostel.el ends here
